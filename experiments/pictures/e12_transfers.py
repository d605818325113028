"""A block in one piece and in many."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("blk-overhead", "fetch-bw-only")
WHOLE, PIECE = 5 << 20, 32 << 10


def draw(rows: Rows) -> Picture:
    """Time of 5 MiB in 160 pieces over its time in one piece, by where they lie and how many are in flight."""
    of = {(row["where"], row["depth"], row["repeat"], row["size_bytes"]): row["block_s"] for row in rows}
    found, order = [], []
    for where, depth in dict.fromkeys((row["where"], row["depth"]) for row in rows):
        repeats = [repeat for a, b, repeat, size in of if (a, b, size) == (where, depth, WHOLE)]
        told = where if where != "disk" else f"disk, {depth} in flight"
        order.append(told)
        ratios = (of[where, depth, repeat, PIECE] / of[where, depth, repeat, WHOLE] for repeat in repeats)
        found.append({"category": told, "series": "pieces of 32 KiB"} | spread(ratios, 1))
    return (
        dots(found, "time in 160 pieces / time in one piece", order=order, series=["pieces of 32 KiB"], rule=1),
        "What it costs that a block lies in pieces",
        f"5 MiB, {max(row['repeat'] for row in rows) + 1} repeats, mean and 95 % interval, measured on this machine's memory and disk",
    )
