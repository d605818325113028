"""Scores of a whole stream at once are those of `MassEMA` and `normalise`, tick by tick."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.driving import small_stream

from kvpager.core import UnitTable
from kvpager.errors import BadInput
from kvpager.policies.scores import NORMALISERS, MassEMA, normalise
from kvpager.replay.massscores import mass_scores, scaled_scores


def tick_by_tick(stream, alpha, scale):
    header = stream.recording.header
    table = UnitTable(len(header.layers), header.num_kv_heads, header.block_size, stream.recording.head_block_bytes)
    sequence = table.new_sequence()
    table.open_many(sequence, -(-header.context_tokens // header.block_size))
    ema, rows = MassEMA(table, alpha), []
    for seen in [*stream.prefill, *[ask.seen for ask in stream.asks]]:
        while seen.tick.step >= 0 and len(table.blocks(sequence)) <= stream.recording.open_block(seen.tick.step):
            table.open(sequence, len(table.blocks(sequence)))
        ema.on_new()
        ema.on_mass(seen)
        scaled = normalise(table.layer_view(ema.scores, seen.tick.layer).T, scale).T.ravel()
        rows.append(np.pad(scaled, (0, stream.recording.blocks * header.num_kv_heads - scaled.size)))
    return np.stack(rows)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), context=st.integers(4, 30), scale=st.sampled_from(NORMALISERS), alpha=st.floats(0.01, 1.0))
def test_the_whole_stream_at_once_is_tick_by_tick(seed, context, scale, alpha):
    stream = small_stream(seed, context=context)
    found = scaled_scores(stream, mass_scores(stream, alpha), scale)
    assert found.tolist() == tick_by_tick(stream, alpha, scale).tolist()


def test_an_alpha_of_nothing_is_refused():
    with pytest.raises(BadInput, match="alpha is 0"):
        mass_scores(small_stream(1), 0.0)
