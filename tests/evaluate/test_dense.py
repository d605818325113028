"""The dense runner equals one pass over the whole sequence; a fork leaves its origin as it was."""

import numpy as np
import pytest
import torch
from tests.live.conftest import loaded, tiny_model

from kvpager.errors import BadInput
from kvpager.evaluate.dense import DenseRunner


def whole(model, tokens):
    """Logits after each token, in one pass without a cache."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_it_decodes_as_one_pass_does(family):
    model = tiny_model(family)
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 190, 700).tolist()
    runner = DenseRunner(loaded(model))
    runner.start(tokens[:620])
    fork, other = runner.fork(), runner.fork()
    logits = fork.feed(tokens[620:])
    said = fork.generate(5)
    exact = whole(model, tokens + said)
    np.testing.assert_allclose(logits, exact[620:700], atol=2e-4)
    assert said == exact[699:704].argmax(1).tolist()
    np.testing.assert_allclose(other.turn(tokens[620:650]), logits[29], atol=2e-4)
    np.testing.assert_allclose(runner.feed(tokens[620:630]), logits[:10], atol=2e-4)


def test_generating_from_nothing_is_refused():
    runner = DenseRunner(loaded(tiny_model("llama")))
    with pytest.raises(BadInput, match="start or feed first"):
        runner.generate(1)
    assert runner.feed([]).shape == (0, 199)
