"""Law 3, the prediction form, on real weights: 6K tokens of context, 64 steps."""

from pathlib import Path

import pytest

from kvpager.live.opening import open_store, plan_budget
from kvpager.live.transformers import load_model
from kvpager.live.transformers.runner import TieredRunner
from kvpager.replay.run import replay_run
from kvpager.traces.recorder import read_text
from kvpager.traces.runcounts import tier_counters
from kvpager.traces.runstore import read_run

CONTEXT, STEPS = 6144, 64
SELECTOR = "outlier_mean:read_fraction=0.1"


def run(loaded, tokens, folder, policy, hbm, record=None):
    """One selective run in lockstep; what its tiers counted, and how many units HBM held."""
    budget = plan_budget(loaded.geometry, context_tokens=CONTEXT + STEPS, hbm=hbm, selector=SELECTOR)
    with open_store(loaded, folder, budget, policy=policy, selector=SELECTOR, lockstep=True, record=record) as store:
        runner = TieredRunner(loaded, store)
        runner.start(tokens[:CONTEXT])
        runner.generate(STEPS)
        counts = store.counts
        seen = {"hits": counts.hits, "units": counts.units, "served": counts.served.tolist()}
        return budget.hbm_units, seen, tier_counters({2: store.dram, 3: store.disk}, store.layout.unit_bytes)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_one_recorded_run_predicts_three_that_were_never_recorded(tmp_path):
    loaded = load_model("smollm2")
    tokens = loaded.tokenize(read_text(Path(__import__("argparse").__file__)))
    run(loaded, tokens, tmp_path / "logged", "blend", "10%", tmp_path / "run.zarr")
    log = read_run(tmp_path / "run.zarr")
    for policy, hbm in (("ema", "5%"), ("lru", "20%"), ("access-ema", "40%")):
        units, seen, tiers = run(loaded, tokens, tmp_path / policy, policy, hbm)
        predicted = replay_run(log, policy=policy, hbm_units=units)
        assert predicted.counts.unit_hits == seen["hits"]
        assert predicted.counts.unit_accesses == seen["units"]
        assert predicted.counts.served == seen["served"]
        assert predicted.document["tiers"] == tiers
        assert predicted.counts.loads > 0
