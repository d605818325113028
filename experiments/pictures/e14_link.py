"""How busy the link is that leads out of HBM."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, lines, spread

CLAIMS = ("capacity-driven", "prefetch-never")


def draw(rows: Rows) -> Picture:
    """Time of a step's misses over the step's own time, by context and users."""
    mine = [row for row in rows if row["link_s"] is not None and row["link_s"] > 0]
    of: dict[tuple[str, int], list[float]] = {}
    series = []
    for users in sorted({row["users"] for row in mine}):
        for dense in (True, False):
            told = f"{users} users, {'dense' if dense else 'selective'}"
            series.append(told)
            for row in mine:
                if row["users"] == users and (row["text"] == "dense") == dense:
                    of.setdefault((told, row["context_tokens"]), []).append(row["link_s"] / row["own_s"])
    found = [{"at": context / 1024, "series": told} | spread(each, 1) for (told, context), each in of.items()]
    ticks = sorted({row["at"] for row in found})
    used = {row["series"] for row in found}
    series = [name for name in series if name in used]
    chart = lines(found, "context, K tokens", "link's time / step's own time", series=series, log="xy", ticks=ticks, rule=1)
    return (
        chart,
        "How busy the link out of HBM is",
        "Llama-3.1-70B on the notes' system, HBM holding as much as fits; selective: the blocks that hold 95 % of each head's mass, "
        "mean and 95 % interval over texts, assumed to hold for it; above the dashed line no window is left for prefetch",
    )
