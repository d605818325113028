"""The demand of a recording, against plain loops over blocks and heads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import Scripted, random_masks, small_recording

from kvpager.core import ALL_LAYERS
from kvpager.errors import BadInput
from kvpager.replay.stream import Setting, make_stream
from kvpager.selectors.topp_mass import TopPMass


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    granularity=st.sampled_from(["head", "layer"]),
    fold=st.sampled_from(["mean", "max"]),
    observe=st.sampled_from(["read", "all"]),
    context=st.sampled_from([24, 27]),
)
def test_each_tick_equals_plain_loops(seed, granularity, fold, observe, context):
    recording = small_recording(seed, context=context)
    masks = random_masks(np.random.default_rng(seed), recording, 0.3)
    stream = make_stream(recording, Scripted(masks), Setting(granularity, "layer", observe, fold))
    ticks = [(step, layer) for step in range(recording.steps) for layer in range(2)]
    assert [tuple(ask.tick) for ask in stream.asks] == ticks
    for ask in stream.asks:
        step, layer = ask.tick
        mask, mass, open_block = masks[step][layer], recording.mass[step, layer], recording.open_block(step)
        asks, seen = {}, {}
        for block in range(open_block + 1):
            for head in range(2):
                unit = (block * 2 + layer) * 2 + head if granularity == "head" else block * 2 + layer
                if block < open_block and mask[head, block]:
                    asks[unit] = asks.get(unit, 0) + 1
                if block == open_block or mask[head, block] or observe == "all":
                    seen.setdefault(unit, []).append(np.float32(mass[head, block]))
        folded = (
            {u: sum(m) / 2 if fold == "mean" else max(m) for u, m in seen.items()}
            if granularity == "layer"
            else {u: m[0] for u, m in seen.items()}
        )
        assert dict(zip(ask.units.tolist(), ask.asks.tolist(), strict=True)) == asks
        assert ask.units.tolist() == sorted(asks)
        assert dict(zip(ask.seen.units.tolist(), ask.seen.mass.tolist(), strict=True)) == pytest.approx(
            folded, rel=2e-3, abs=1e-6
        )


def test_the_step_clock_joins_the_layers_of_a_step():
    recording = small_recording(3)
    layered = make_stream(recording, TopPMass())
    joined = make_stream(recording, TopPMass(), Setting(clock="step"))
    for step, ask in enumerate(joined.asks):
        parts = [part for part in layered.asks if part.tick.step == step]
        assert ask.tick == (step, ALL_LAYERS)
        assert ask.units.tolist() == sorted(unit for part in parts for unit in part.units.tolist())
        by_ask = sorted(zip(ask.units[ask.unit_of_ask].tolist(), ask.head_of_ask.tolist(), strict=True))
        assert by_ask == sorted(
            pair for part in parts for pair in zip(part.units[part.unit_of_ask].tolist(), part.head_of_ask.tolist(), strict=True)
        )
    assert joined.read_mass == layered.read_mass >= 0.9


@pytest.mark.parametrize(("field", "value"), [("granularity", "heads"), ("clock", "steps"), ("observe", "none"), ("fold", "sum")])
def test_unknown_settings_are_refused(field, value):
    with pytest.raises(BadInput, match=f"unknown {field} '{value}'"):
        make_stream(small_recording(), TopPMass(), Setting(**{field: value}))


def test_a_selector_that_looks_at_residency_is_refused():
    class Local(TopPMass):
        residency_free = False

    with pytest.raises(BadInput, match="looks at residency"):
        make_stream(small_recording(), Local())
