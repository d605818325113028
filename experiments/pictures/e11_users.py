"""Users at ten tokens a second, by what a step reads."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("users-17-slo", "target-10tok", "users of 128K tokens at ten tokens a second")
SYSTEMS = {
    "note-000-cxl": "the notes' system",
    "b200-host-cxl": "B200, host DRAM, CXL, NVMe",
    "b200x4-tp": "four B200, all KV in HBM",
}


def draw(rows: Rows) -> Picture:
    """Users of 128K tokens on each system, dense and selective."""
    mine = [row for row in rows if row["system"]]
    reads = sorted({row["read_fraction"] for row in mine})
    told = {read: "dense attention" if read == 1 else f"reading {100 * read:g} %" for read in reads}
    of: dict[tuple[str, float], list[float]] = {}
    for row in mine:
        of.setdefault((row["system"], row["read_fraction"]), []).append(row["users"])
    found = [{"category": told[read], "series": SYSTEMS[system]} | spread(each, 1) for (system, read), each in of.items()]
    texts = len({row["text"] for row in mine if row["text"]})
    return (
        dots(found, "users of 128K tokens", order=list(told.values()), series=list(SYSTEMS.values()), rule=16),
        "How many users get ten tokens a second",
        f"Llama-3-70B; mean and 95 % interval over {texts} texts whose hits by size are assumed to hold for it; dashed: the note's 16",
    )
