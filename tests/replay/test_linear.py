"""The compiled replay of linear scores has exactly the hits of the Pager with the policy ``placement``."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import logged, small_stream

from kvpager.errors import BadInput
from kvpager.policies.placement import Placement
from kvpager.replay.linear import Features, Script, replay_linear
from kvpager.replay.stream import Setting

SCALES = ("raw", "rank", "max", "uniform")


@st.composite
def points(draw):
    """Weights on the simplex, coarse enough for many ties."""
    a, b = sorted(draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    return a / 4, (b - a) / 4, (4 - b) / 4


def hits_by_step(log, stream, sink_units):
    """Hits of a logged run, [steps, 2]: other units, units of the sink zone."""
    found = np.zeros((stream.recording.steps, 2), np.int64)
    for tick, hits, _ in log:
        for unit in hits:
            found[tick[0], int(unit < sink_units)] += 1
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    context=st.integers(4, 30),
    weights=points(),
    scale=st.sampled_from(SCALES),
    cuts=st.sampled_from([None, (0.0, 0.5), (0.2, 0.6), (0.7, 0.9)]),
    room=st.integers(8, 40),
    alpha=st.sampled_from([0.05, 0.2, 1.0]),
    half_life=st.sampled_from([0.7, 3.0, 128.0]),
    sink_tokens=st.integers(0, 12),
)
def test_it_is_the_pager_step_by_step(seed, context, weights, scale, cuts, room, alpha, half_life, sink_tokens):
    stream = small_stream(seed, context=context)
    policy = Placement(weights, alpha, scale, cuts, half_life, sink_tokens)
    replay, log = logged(stream, policy, room, seed=seed)
    script = Script(stream)
    features = Features(script, alpha, scale, half_life, sink_tokens)
    groups = features.sink[script.units].astype(np.int8)
    found = replay_linear(features, weights, room, cuts=cuts or (-np.inf, np.inf), groups=groups, seed=seed)
    slow = hits_by_step(log, stream, np.count_nonzero(features.sink))
    assert found.hits.tolist() == slow[:, : found.hits.shape[1]].tolist()
    assert found.hits.sum() == slow.sum()
    ends = {tick[0]: residents for tick, _, residents in log}
    assert found.held.tolist() == [len(ends[step]) for step in range(stream.recording.steps)]
    assert found.moves.sum() == replay.counts.kept


def test_features_are_what_the_policy_ranks_by():
    stream = small_stream(3, context=22)
    policy = Placement((0.3, 0.4, 0.3), 0.2, "rank", None, 5.0, 8)
    replay, _ = logged(stream, policy, 30)
    features = Features(Script(stream), 0.2, "rank", 5.0, 8)
    *_, (step, last) = features.steps()
    tick = stream.asks[-1].tick
    assert step == tick.step
    assert features.at_end().tolist() == last.tolist()
    units = np.arange(replay.table.size, dtype=np.int32)
    assert np.allclose(np.array([0.3, 0.4, 0.3]) @ last, policy.keep_key(tick, units), rtol=1e-12)


def test_another_zone_and_half_life_share_the_scores():
    features = Features(Script(small_stream(1)), sink_tokens=8)
    other = features.with_(half_life=2.0, sink_tokens=0)
    assert other.ema is features.ema
    assert not other.sink.any()
    assert other.recency[2] == 0.5


def test_pauses_count_steps_since_the_last_access():
    script = Script(small_stream(2, context=24))
    last = script.first_use
    slow = []
    for ask in script.stream.asks:
        slow += [ask.tick.step - last[unit] for unit in ask.units]
        last[ask.units] = ask.tick.step
    assert script.pauses.tolist() == slow
    assert script.accesses((script.pauses > 2).astype(np.int8)).sum() == len(script.units)


@pytest.mark.parametrize("setting", [Setting("layer"), Setting(clock="step")])
def test_what_it_does_not_know_is_refused(setting):
    with pytest.raises(BadInput, match="units of heads under the layer clock"):
        Script(small_stream(0, setting=setting))
