"""Which way the placement score goes when one of its weights, or its cuts, is raised.

From the notes' point, E ranked: each weight plus 0.2 at the others' expense, both cuts plus 0.1. Judged on what the notes say
it does: accesses under sustained attention, after a long pause, to the sink zone, and the steps after a change of topic. Weights
share 6.84 % of the KV, the notes' HBM; cuts alone decide how much HBM is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.study import Interval, Study, interval
from experiments.texts import SWITCHES, TEST, TEXTS
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.replay.constants import NOTES, NOTES_CUTS, Constants, Text, load_text
from kvpager.replay.ladder import NOTE_HBM_FRACTION
from kvpager.replay.linear import Script, replay_linear

CLAIMS = ("p-dir-E", "p-dir-R", "p-dir-N", "p-dir-threshold")
RAISE, CUT_RAISE = 0.2, 0.1
LONG_PAUSE, WINDOW, AFTER = 16, 16, 32
"""Steps: a pause that is long; the window in which sustained attention asks at every other step; those after a switch."""

STABLE = tuple(text for text in TEST if text in TEXTS)


def run(study: Study) -> None:
    """Replay the notes' point and each raised one; compare their hits by kind of access and by time."""
    rows = {(row["text"], row["raised"]): row for text in TEST for row in _text(study, text)}

    def change(name: str, figure: str, texts: tuple[str, ...] = STABLE) -> Interval:
        return interval(
            [rows[text, name][figure] - rows[text, "cuts" if name == "higher cuts" else ""][figure] for text in texts]
        )

    def later(name: str) -> Interval:
        """Change in the steps after a switch beyond that before it."""
        both = [(rows[text, name], rows[text, ""]) for text in SWITCHES]
        return interval([(up["after"] - base["after"]) - (up["before"] - base["before"]) for up, base in both])

    _judge(study, "p-dir-E", "raising w_E", change("E", "hits"), change("E", "moves"), {
        "hits under sustained attention": (change("E", "sustained"), 1),
        f"hits in the {AFTER} steps after a change of topic, beyond the change before it": (later("E"), -1),
    })  # fmt: skip
    _judge(study, "p-dir-R", "raising w_R", change("R", "hits"), change("R", "moves"), {
        f"hits in the {AFTER} steps after a change of topic, beyond the change before it": (later("R"), 1),
        f"hits after a pause of more than {LONG_PAUSE} steps": (change("R", "paused"), -1),
    })  # fmt: skip
    _judge(study, "p-dir-N", "raising w_N", change("N", "hits"), change("N", "moves"), {
        "hits on the sink zone": (change("N", "sink"), 1),
        "hits elsewhere": (change("N", "elsewhere"), -1),
    })  # fmt: skip
    _judge(study, "p-dir-threshold", "raising both cuts", change("higher cuts", "hits"), change("higher cuts", "moves"), {
        "share of the KV that stays in HBM": (change("higher cuts", "used"), -1),
        "all hits": (change("higher cuts", "hits"), -1),
    })  # fmt: skip


def _judge(study: Study, claim: str, what: str, hits: Interval, moves: Interval, parts: dict[str, tuple[Interval, int]]) -> None:
    """Supported if every part has the claimed sign, contradicted if one surely has the other."""
    signs = [0 if found.low <= 0 <= found.high else int(np.sign(found.value)) * claimed for found, claimed in parts.values()]
    outcome = CONTRADICTED if min(signs) < 0 else SUPPORTED if min(signs) > 0 else INCONCLUSIVE
    said = "; ".join(
        f"{name} {found.value:+.2f} points ({found.low:+.2f} to {found.high:+.2f}; claimed: {'more' if claimed > 0 else 'fewer'})"
        for name, (found, claimed) in parts.items()
    )
    first, _ = next(iter(parts.values()))
    size = "HBM as large as the cuts make it" if "cuts" in what else f"{100 * NOTE_HBM_FRACTION:.2f} % of the KV"
    study.find(
        claim,
        outcome,
        f"{what} from the notes' point (SmolLM2, E ranked, {size}, {len(STABLE)} texts and {len(SWITCHES)} with a change of "
        f"topic): {said}. All hits {hits.value:+.2f} points ({hits.low:+.2f} to {hits.high:+.2f}), units newly kept "
        f"{moves.value:+.0f} a step",
        value=first.value, low=first.low, high=first.high, unit="points",
    )  # fmt: skip
    for name, (found, _) in parts.items():
        study.sign(f"{what}: {name}", found)
    study.sign(f"{what}: all hits on stable texts", hits)


def _variants() -> dict[str, Constants]:
    base = replace(NOTES, scale="rank")
    found = {"": base}
    for i, name in enumerate("REN"):
        rest = 1 - base.weights[i]
        raised = [base.weights[j] + RAISE if j == i else base.weights[j] * (1 - RAISE / rest) for j in range(3)]
        found[name] = replace(base, weights=(raised[0], raised[1], raised[2]))
    first, second = NOTES_CUTS
    return found | {
        "cuts": replace(base, cuts=NOTES_CUTS),
        "higher cuts": replace(base, cuts=(first + CUT_RAISE, second + CUT_RAISE)),
    }


def _text(study: Study, name: str) -> list[dict[str, Any]]:
    def make() -> list[dict[str, Any]]:
        text = load_text(study.recording(name), "topp_mass", NOTE_HBM_FRACTION)
        return [{"text": name, "raised": raised} | _figures(study, text, one) for raised, one in _variants().items()]

    return study.once(f"{name} {RAISE} {CUT_RAISE} {LONG_PAUSE} {WINDOW} {AFTER}", make)


def _figures(study: Study, text: Text, constants: Constants) -> dict[str, Any]:
    """Per cent of hits by kind of access, and in the steps around a switch."""
    features, counted = text.features(constants), slice(text.warmup, None)
    kinds = {
        "sink": features.sink[text.script.units].astype(np.int8),
        "paused": (text.script.pauses > LONG_PAUSE).astype(np.int8),
        "sustained": _sustained(text.script),
    }
    every_unit = text.script.stream.units
    units = every_unit if constants.cuts else text.units
    found: dict[str, Any] = {}
    for kind, groups in kinds.items():
        accesses = text.script.accesses(groups)[counted]
        outcome = replay_linear(features, constants.weights, units, cuts=constants.cuts or (-np.inf, np.inf), groups=groups)
        hits = outcome.hits[counted]
        found[kind] = 100 * float(hits[:, 1].sum() / accesses[:, 1].sum())
        if kind == "sink":
            found["elsewhere"] = 100 * float(hits[:, 0].sum() / accesses[:, 0].sum())
    found |= {"hits": 100 * float(hits.sum() / accesses.sum()), "moves": float(outcome.moves[counted].mean()),
              "used": 100 * float(outcome.held[counted].mean() / every_unit)}  # fmt: skip
    at, every, asked = study.scale.switch_at, outcome.hits.sum(axis=1), text.script.accesses().sum(axis=1)
    for name, span in (("before", slice(max(text.warmup, at - AFTER), at)), ("after", slice(at, at + AFTER))):
        found[name] = 100 * float(every[span].sum() / asked[span].sum())
    return found


def _sustained(script: Script) -> NDArray[np.int8]:
    """Mark accesses whose unit was asked for in at least half of the last `WINDOW` steps."""
    blocks, layers, heads = script.shape
    recent = np.zeros((WINDOW, blocks * layers * heads), np.bool_)
    found = np.empty(len(script.units), np.int8)
    ends = script.ends[::layers]
    for step in range(script.stream.recording.steps):
        units = script.units[ends[step] : ends[step + 1]]
        found[ends[step] : ends[step + 1]] = recent[:, units].sum(axis=0) >= WINDOW // 2
        recent[step % WINDOW] = False
        recent[step % WINDOW, units] = True
    return found
