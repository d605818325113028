"""What an EMA misses that sees read units only."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, dots, spread

CLAIMS = ("ema-feedback",)
HITS, LOST = "as a placement: accesses that hit, HBM 10 %", "as a selector: questions lost, reading 10 %"
SERIES = {"read": "EMA of what was read", "all": "EMA of everyone's mass", "keys": "bounds on keys"}


def draw(rows: Rows) -> Picture:
    """Hits of a placement that sees read units only or all, and questions that a selector by EMA or by keys loses."""
    placed = [row for row in rows if row["part"] == "placement"]
    asked = {row["selector"].partition(":")[0]: row for row in rows if row["part"] == "selector"}
    found = [{"category": HITS, "series": SERIES[key]} | spread(row[key] for row in placed) for key in ("read", "all")]
    for name, key in (("history", "read"), ("key_bound", "keys")):
        ends = {
            "value": 100 * asked[name]["lost_share"],
            "low": 100 * asked[name]["lost_low"],
            "high": 100 * asked[name]["lost_high"],
        }
        found.append({"category": LOST, "series": SERIES[key]} | ends)
    return (
        dots(found, "%", order=[HITS, LOST], series=list(SERIES.values())),
        "What an EMA of read units is good for",
        f"placement: mean and 95 % interval over {len(placed)} texts, simulated; selector: {asked['history']['of']} questions after "
        "their context that dense attention answers, 95 % interval by Wilson, measured; SmolLM2",
    )
