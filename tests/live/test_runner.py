"""What the evaluation drives: a turn is read whole, single tokens as the selector says."""

import numpy as np
from tests.live.conftest import loaded, tiny_model

from kvpager.evaluate.dense import DenseRunner
from kvpager.live.opening import open_store, plan_budget
from kvpager.live.transformers.runner import TieredRunner

SELECTOR = "recent_only:read_fraction=0.1"


def test_a_turn_reads_everything_and_a_step_does_not(tmp_path):
    model = loaded(tiny_model("llama"))
    tokens = np.random.default_rng(0).integers(3, 190, 620).tolist()
    budget = plan_budget(model.geometry, context_tokens=640, hbm="60%", rows=2, selector=SELECTOR)
    dense = DenseRunner(model)
    with open_store(model, tmp_path / "store", budget, selector=SELECTOR) as store:
        tiered = TieredRunner(model, store, measure_every=1)
        for runner in (dense, tiered):
            runner.start(tokens[:600])
        forks = dense.fork(), tiered.fork()
        turns = [fork.turn(tokens[600:]) for fork in forks]
        np.testing.assert_allclose(turns[1], turns[0], atol=2e-4)
        assert forks[1].facts() == {}, "a turn needs no measuring"
        steps = [fork.feed(tokens[:1]) for fork in forks]
        assert np.abs(steps[1] - steps[0]).max() > 1e-3
        assert forks[1].facts()["read_mass"] < 0.9
        assert forks[1].generate(2)[0] == int(steps[1].argmax())
        forks[1].close()
