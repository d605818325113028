"""What raising one weight, or the cuts, changes."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread
from experiments.texts import SWITCHES

CLAIMS = ("p-dir-E", "p-dir-R", "p-dir-N", "p-dir-threshold")
RAISED = {"E": "w_E raised", "R": "w_R raised", "N": "w_N raised", "higher cuts": "both cuts raised"}
KINDS = {
    "hits": "all accesses",
    "sustained": "under sustained attention",
    "paused": "after a pause of more than 16 steps",
    "sink": "on the sink zone",
    "elsewhere": "elsewhere",
}
SWITCHED = "32 steps after a change of topic, beyond before"


def draw(rows: Rows) -> Picture:
    """Change of hits by kind of access: text by text against the notes' point."""
    of = {(row["text"], row["raised"]): row for row in rows}
    texts = list(dict.fromkeys(text for text, _ in of))
    found = []
    for name, told in RAISED.items():
        pairs = {text: (of[text, name], of[text, "cuts" if "cuts" in name else ""]) for text in texts}
        found += [
            {"category": kind, "series": told}
            | spread((up[key] - base[key] for text, (up, base) in pairs.items() if text not in SWITCHES), 1)
            for key, kind in KINDS.items()
        ]
        after = ((up["after"] - base["after"]) - (up["before"] - base["before"]) for up, base in map(pairs.get, SWITCHES))
        found.append({"category": SWITCHED, "series": told} | spread(after, 1))
    return (
        dots(found, "points of hits", order=[*KINDS.values(), SWITCHED], series=list(RAISED.values()), rule=0),
        "What raising one constant changes, by kind of access",
        f"mean and 95 % interval over {len(texts) - len(SWITCHES)} texts, last row over {len(SWITCHES)}; SmolLM2, E ranked, simulated",
    )
