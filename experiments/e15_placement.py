"""Which placement wins on held-out texts, and what it reaches of the best that is possible.

The default policy against textbook policies, a static split and two clairvoyant ones, on recordings of dense attention: true
clock, mass of read units only, access = a head's top 95 % of mass. Notes' rungs at their own size are in experiment 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from experiments.placing import NEXT_MASS, SPAN_STEPS, Rows, at, replayed
from experiments.recordings import GEMMA
from experiments.study import Interval, Study, interval
from experiments.texts import TEST

CLAIMS = ()
DEFAULT, SPLIT = "blend", "access-ema+split:16"
TEXTBOOK = ("lru", "lfu", "w-tinylfu", "s3-fifo", "ema", "access-ema", "last-step")
CHANGED = {
    "access only": "blend:mass_weight=0",
    "mass weight 3": "blend:mass_weight=3",
    "mass weight 30": "blend:mass_weight=30",
    "mass only": "ema",
    "no keep bonus": "blend:keep_bonus=0",
    "keep bonus 0.2": "blend:keep_bonus=0.2",
    "access alpha 0.05": "blend:access_alpha=0.05",
    "access alpha 0.2": "blend:access_alpha=0.2",
}
LAYERS = 30  # of SmolLM2
RATES = tuple(f"future-rate:ticks={steps * LAYERS}" for steps in (16, 64))
"""What a policy could reach that knows rates of access, but no order."""
MIDDLE = 0.10
"""The other pools, rates, and the default policy with one thing changed are replayed at this size only."""


class Goals(NamedTuple):
    """Set beforehand, for each text: least shares in %, least 5th-percentile head mass, most moves in % of units a step."""

    belady_share: float
    mass_share: float
    p5_head_mass: float
    moves_percent: float


GOALS = {0.054: Goals(96.5, 93, 0.55, 0.1), MIDDLE: Goals(92.5, 95, 0.65, 0.25), 0.25: Goals(92, 99, 0.90, 0.65)}
WORDS = (
    "% of Belady's hits",
    "% of the next-step-mass oracle's mass",
    "of the mass for the head at the 5th percentile",
    "% of units moved a step",
)


def run(study: Study) -> None:
    """Replay everything on each text; judge against the goals and the rivals."""
    sizes = (MIDDLE,) if study.quick else tuple(GOALS)
    found = {text: _text(study, text, sizes) for text in (("code", "docs", "report") if study.quick else TEST)}
    for size in sizes:
        _goals(study, found, size, DEFAULT)
        _rivals(study, found, size)
    _pools(study, found)
    if study.quick:
        study.result(f"{DEFAULT} on another model", "left out of the reduced form, as are ablations and the other sizes")
        return
    _changed(study, found)
    _rates(study, found)
    gemma = {"model": GEMMA, "context_tokens": 8064, "steps": 128}
    theirs = {text: _text(study, text, sizes, **gemma) for text in ("code", "report")}
    for size in sizes:
        _goals(study, theirs, size, f"{DEFAULT}, Gemma-3-270M,", "SmolLM2's ")


def _text(study: Study, text: str, sizes: tuple[float, ...], **how: Any) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        policies = [(policy, "global") for policy in (DEFAULT, SPLIT, *TEXTBOOK)]
        if size == MIDDLE and not how:
            policies += [(DEFAULT, "layer"), *((policy, "equal") for policy in (DEFAULT, *TEXTBOOK))]
            policies += [(policy, "global") for policy in CHANGED.values() if policy not in TEXTBOOK and not study.quick]
        rows += replayed(study, text, size, policies, **how)
    return rows


def _goals(study: Study, found: Rows, size: float, name: str, whose: str = "") -> None:
    """The default policy on every text, against what it was to reach on each."""
    ours = {text: at(rows, DEFAULT, size) for text, rows in found.items()}
    told = []
    for key, goal, words in zip(Goals._fields, GOALS[size], WORDS, strict=True):
        sign, values = (-1 if key == "moves_percent" else 1), [row[key] for row in ours.values()]
        missed = [text for text, row in ours.items() if sign * row[key] < sign * goal]
        reached = f"missed on {', '.join(missed)}" if missed else "met on each"
        told.append(
            f"{min(values):.3g} to {max(values):.3g} {words} ({whose}goal {'≥' if sign > 0 else '≤'} {goal:g}: {reached})"
        )
    worst = min(ours.values(), key=lambda row: row["belady_share"])
    hits = [100 * row["block_hit_ratio"] for row in ours.values()]
    study.result(
        f"{name} at {100 * size:g} %", f"in one global pool, on {len(ours)} texts that no constant was fitted on, {'; '.join(told)}. Hits are "
        f"{min(hits):.0f} to {max(hits):.0f} %. The figure is the lowest share of Belady's hits, on {worst['text']}, its interval over spans "
        f"of {SPAN_STEPS} steps",
        value=worst["belady_share"], low=worst["belady_share_low"], high=worst["belady_share_high"], unit="%",
    )  # fmt: skip


def _gain(found: Rows, key: str, size: float, ours: tuple[str, str], theirs: tuple[str, str], scale: float = 100) -> Interval:
    """What one (policy, pool) has more than another, over texts."""
    pairs = [[at(rows, policy, size, pool)[key] for policy, pool in (ours, theirs)] for rows in found.values()]
    return interval(scale * (mine - other) for mine, other in pairs)


def _rivals(study: Study, found: Rows, size: float) -> None:
    """The default policy against each other one in the same pool, and against the best of the textbook on each text."""
    pairs = []
    for rows in found.values():
        best = max((at(rows, policy, size) for policy in TEXTBOOK), key=lambda row: row["block_hit_ratio"])
        pairs.append((at(rows, DEFAULT, size), best))
    hits, mass = (interval(100 * (a[key] - b[key]) for a, b in pairs) for key in ("block_hit_ratio", "mass_hit_ratio"))
    moves = interval(b["moves_percent"] / a["moves_percent"] for a, b in pairs)
    here = (DEFAULT, "global")
    each = {policy: _gain(found, "block_hit_ratio", size, here, (policy, "global")) for policy in (*TEXTBOOK, SPLIT)}
    study.result(
        f"{DEFAULT} against other policies at {100 * size:g} %", f"{hits.value:+.2f} points of hits, {mass.value:+.1f} points of mass and "
        f"{moves.value:.1f} times fewer moves than the textbook policy with the most hits on each text, in the same global pool "
        f"({', '.join(sorted({b['policy'] for _, b in pairs}))}), mean of {len(found)} texts. Points of hits over each: "
        + ", ".join(f"{policy} {gain.value:+.1f}" for policy, gain in each.items()),
        value=hits.value, low=hits.low, high=hits.high, unit="points",
    )  # fmt: skip
    study.sign(f"{100 * size:g} %: {DEFAULT} − best of the textbook", hits)
    for policy in ("lru", "ema", SPLIT):
        study.sign(f"{100 * size:g} %: {DEFAULT} − {policy}", each[policy])


def _pools(study: Study, found: Rows) -> None:
    """One global pool against shares, under each policy."""

    def gain(policy: str, pool: str = "equal") -> Interval:
        return _gain(found, "block_hit_ratio", MIDDLE, (policy, "global"), (policy, pool))

    pooled = gain(DEFAULT)
    each = ", ".join(f"{policy} {gain(policy).value:+.1f}" for policy in (DEFAULT, *TEXTBOOK))
    study.result(
        f"global pool at {100 * MIDDLE:g} %", f"points of hits of one global pool over equal shares for each layer and head: {each}; over a "
        f"pool a layer, {DEFAULT} {gain(DEFAULT, 'layer').value:+.1f} (mean of {len(found)} texts)",
        value=pooled.value, low=pooled.low, high=pooled.high, unit="points",
    )  # fmt: skip
    for policy in (DEFAULT, "ema", "lru"):
        study.sign(f"{policy}: global − equal pool", gain(policy))


def _changed(study: Study, found: Rows) -> None:
    """The default policy with one thing changed."""
    told, here = [], (DEFAULT, "global")
    for what, policy in CHANGED.items():
        there = (policy, "global")
        hits, mass = (_gain(found, key, MIDDLE, there, here).value for key in ("block_hit_ratio", "mass_hit_ratio"))
        low = _gain(found, "p5_head_mass", MIDDLE, there, here, 1).value
        moves = interval(at(rows, policy, MIDDLE)["moves_percent"] for rows in found.values()).value
        told.append(f"{what} {hits:+.2f} / {mass:+.1f} / {low:+.2f} / {moves:.2f}")
    alone = _gain(found, "block_hit_ratio", MIDDLE, here, (CHANGED["access only"], "global"))
    study.result(
        f"{DEFAULT}, one thing changed, at {100 * MIDDLE:g} %", "change in points of hits / points of mass / 5th-percentile head mass / and "
        f"moves in % of units a step, mean of {len(found)} texts: {'; '.join(told)}. The figure is what its mass term is worth in hits",
        value=alone.value, low=alone.low, high=alone.high, unit="points",
    )  # fmt: skip


def _rates(study: Study, found: Rows) -> None:
    """How much of Belady's lead lies in the order of accesses, and how much in rates that history does not tell."""
    rates = {text: replayed(study, text, MIDDLE, [(policy, "global") for policy in RATES]) for text in found}

    def share(policy: str) -> Interval:
        return interval(at(rows, policy, MIDDLE)["belady_share"] for rows in rates.values())

    ours = interval(at(rows, DEFAULT, MIDDLE)["belady_share"] for rows in found.values())
    seen = interval(at(rows, NEXT_MASS, MIDDLE)["belady_share"] for rows in found.values())
    short, long = map(share, RATES)
    study.result(
        f"what history cannot tell, at {100 * MIDDLE:g} %", f"a policy that knew how often each unit will be asked for in the next 16 steps, "
        f"but no order, would have {short.value:.1f} % of Belady's hits, one that knew it of the next 64 steps {long.value:.1f} %, one "
        f"that knew all mass of the next step {seen.value:.1f} %; {DEFAULT} has {ours.value:.1f} %, mean of {len(found)} texts",
        value=short.value, low=short.low, high=short.high, unit="%",
    )  # fmt: skip
