"""Whether an EMA of attention follows what tokens receive when only what is read can be seen.

Two ways to use it. To place: the same demand, with the mass of read units only and with everyone's. To choose what is read: the
closed loop asked, after a context, for what the context told once, with the EMA and with keys as selectors.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.loop import READ, SELECTOR
from experiments.recordings import load
from experiments.study import Study, interval
from experiments.texts import TEST
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep

CLAIMS = ("ema-feedback",)
SIZE = 0.10
HISTORY = f"history:read_fraction={READ}"


def run(study: Study) -> None:
    """Compare both uses with their rivals."""
    texts = TEST[:4] if study.quick else TEST
    rows = [study.once(f"{text}, {SIZE}", partial(_placed, study, text))[0] for text in texts]
    gain = interval([100 * (row["all"] - row["read"]) for row in rows])
    trials = 1 if study.quick else 2
    lost = {row["selector"]: row for row in study.once(f"{trials} contexts", partial(_asked, study, trials))}
    ema, keys = lost[HISTORY], lost[SELECTOR]
    study.find(
        "ema-feedback",
        CONTRADICTED if ema["lost_low"] > keys["lost_high"] else INCONCLUSIVE if ema["lost"] else SUPPORTED,
        f"as a placement it loses nothing by seeing read units only: with everyone's mass hits change by {gain.value:+.1f} points at "
        f"10 % ({len(rows)} texts). As a selector it cannot find a block that nobody has read yet: of {ema['of']} questions asked after "
        f"their context that dense attention answers, {ema['lost']} are lost when a tenth is read by EMA, {keys['lost']} when by keys",
        value=100 * ema["lost_share"], low=100 * ema["lost_low"], high=100 * ema["lost_high"], unit="%",
        labels=(Evidence.EMULATED, Evidence.MEASURED),
    )  # fmt: skip
    study.sign("lost by EMA as selector minus lost by keys", float(ema["lost"] - keys["lost"]))


def _placed(study: Study, text: str) -> list[dict[str, Any]]:
    path = study.recording(text)
    case = Case("ema", SIZE, bound=False)
    found = {observe: sweep(Source(path, observe=observe), [case], jobs=1)[0]["block_hit_ratio"] for observe in ("read", "all")}
    return [{"part": "placement", "text": text, "hbm_fraction": SIZE, **found}]


def _asked(study: Study, trials: int) -> list[dict[str, Any]]:
    from kvpager.evaluate import evaluate
    from kvpager.evaluate.dense import DenseRunner, ModelLanguage
    from kvpager.evaluate.outcome import Kept
    from kvpager.live.opening import open_store, plan_budget
    from kvpager.live.transformers.runner import TieredRunner

    model, rows = load("smollm2", study.work), []
    tokens = 900 if study.quick else 1900
    task = f"needle:trials={trials},tokens={tokens}"
    kept = Kept(study.work / "needles-by-selector", model.weights_sha256)
    for selector in (HISTORY, SELECTOR):
        budget = plan_budget(model.geometry, context_tokens=tokens + 512, hbm="60%", rows=2, selector=selector)
        with (
            TemporaryDirectory(prefix="kv-", dir=study.work) as folder,
            open_store(model, Path(folder) / "store", budget, selector=selector) as store,
        ):
            runner = TieredRunner(model, store)
            found = evaluate(DenseRunner(model), {selector: runner}, [task], ModelLanguage(model), None, "turn", kept)
        judged = found["tasks"][0]["runners"][selector]
        keys = ("right", "lost", "of", "lost_share", "lost_low", "lost_high", "kl_mean")
        rows.append({"part": "selector", "selector": selector} | {key: judged[key] for key in keys})
    return rows
