"""Where attention mass lies: by age, by distance, per layer, head and context.

Token-level mass per query head of teacher-forced decode steps, as the recorder adds it up, at contexts from 1K to 8K tokens.
"""

from __future__ import annotations

from typing import Any

from experiments.recordings import GEMMA
from experiments.study import Study, interval
from experiments.texts import TEXTS
from kvpager.analysis.locality import profile
from kvpager.claims.ledger import CONTRADICTED, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.replay.attention import warmup_steps
from kvpager.traces.attention import read_recording

CLAIMS = ("locality-80-10", "head-ranges")
CONTEXTS = (1024, 2048, 3968)

MEASURED = (Evidence.MEASURED,)


def run(study: Study) -> None:
    """Profile each text at each context; judge the notes' 80 % on the newest 10 %."""
    main = [_row(study, text) for text in TEXTS]
    if not study.quick:
        for context in CONTEXTS:
            for text in ("code", "docs"):
                _row(study, text, context_tokens=context, steps=128)
        for text in ("code", "report"):
            _row(study, text, model=GEMMA, context_tokens=8064, steps=128)
    raw = interval([100 * row["newest_10_percent"] for row in main])
    bare = interval([100 * row["newest_10_percent_without_first_4"] for row in main])
    first = interval([100 * row["first_4"] for row in main])
    study.find(
        "locality-80-10",
        CONTRADICTED if raw.high < 80 else SUPPORTED,
        f"the newest 10 % of the tokens hold {raw.value:.0f} % of the mass, mean over heads, on {len(main)} texts at "
        f"{study.scale.context_tokens:,} tokens (SmolLM2); {bare.value:.0f} % of what the first four tokens leave over, which "
        f"hold {first.value:.0f} % themselves",
        value=raw.value, low=raw.low, high=raw.high, unit="%", labels=MEASURED,
    )  # fmt: skip
    study.sign("80 % minus mass on the newest 10 %", interval([80 - 100 * row["newest_10_percent"] for row in main]))
    anchors = interval([100 * (row["first_100"] - row["first_4"]) for row in main])
    recent = interval([100 * row["last_200"] for row in main])
    study.find(
        "head-ranges",
        CONTRADICTED if anchors.high < 5 else SUPPORTED,
        f"positions 4 to 99 hold {anchors.value:.2f} % of the mass: the anchor zone is one to four tokens, not a hundred; "
        f"the last 200 tokens hold {recent.value:.0f} %",
        value=anchors.value, low=anchors.low, high=anchors.high, unit="%", labels=MEASURED,
    )  # fmt: skip
    study.sign(
        "mass on the first 4 minus mass on tokens 4 to 99", interval([2 * row["first_4"] - row["first_100"] for row in main])
    )


def _row(study: Study, text: str, **how: Any) -> dict[str, Any]:
    def make() -> list[dict[str, Any]]:
        recording = read_recording(study.recording(text, **how))
        found = profile(recording, warmup_steps(recording.steps))
        special = ("first_1", "first_4", "first_100", "last_200", "newest_10_percent", "newest_10_percent_without_first_4")
        need = {f"blocks_for_{target}": found["blocks_needed"][target]["mean_share"] for target in ("0.95", "0.97", "0.99")}
        row = {
            name: found[name] for name in ("model", "text", "context_tokens", "steps", *special, "q_heads_newest_10_at_least_80")
        }
        return [row | need | {"relative": found["relative"]["mean"], "absolute": found["absolute"]["mean"]}]

    return study.once(f"{text} {sorted(how.items())}", make)[0]
