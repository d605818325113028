"""Request traces for tests: any that hypothesis can think of, comparison, and the same trace as lines of a foreign format."""

import dataclasses
import json

import numpy as np
from hypothesis import strategies as st

from kvpager.traces.requests import COLUMNS, RequestTrace


def first_seen(ids):
    """Number ids densely by first appearance, in plain Python."""
    numbers = {}
    return [numbers.setdefault(int(value), len(numbers)) for value in ids]


@st.composite
def traces(draw, *, blocks=True):
    """Any request trace: ids that are not chained, one to eight requests, empty ones among them."""
    n = draw(st.integers(1, 8))
    size = draw(st.integers(1, 20)) if blocks else 0
    inputs = draw(st.lists(st.integers(1, 100), min_size=n, max_size=n))
    counts = [draw(st.sampled_from([i // size, -(-i // size)])) if size else 0 for i in inputs]
    ids = first_seen(draw(st.lists(st.integers(0, 12), min_size=sum(counts), max_size=sum(counts))))
    tenants = draw(st.lists(st.text(max_size=4), min_size=1, max_size=3))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    return RequestTrace(
        time_s=np.sort(np.array(column(st.floats(0, 1e6)), np.float64)),
        session=np.array(column(st.integers(-1, 3)), np.int64),
        parent=np.array([draw(st.integers(-1, row - 1)) for row in range(n)], np.int64),
        input_tokens=np.array(inputs, np.int64),
        output_tokens=np.array(column(st.integers(0, 50)), np.int64),
        tenant=np.array(column(st.integers(0, len(tenants) - 1)), np.int32),
        starts=np.cumsum([0, *counts], dtype=np.int64),
        blocks=np.array(ids, np.int32),
        block_size=size,
        chained=False,
        tenants=tuple(tenants),
        source={"made_up": draw(st.text(max_size=4))},
    )


def same(one, two):
    """Whether two traces are equal in every field."""
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype if isinstance(a, np.ndarray) else a == b
        for a, b in ((getattr(one, part.name), getattr(two, part.name)) for part in dataclasses.fields(RequestTrace))
    )


def split(trace, rows):
    """Cut a trace into pieces of at most `rows` requests."""
    known = 0
    for first in range(0, len(trace), rows):
        after = min(first + rows, len(trace))
        begin, end = trace.starts[first], trace.starts[after]
        piece = dataclasses.replace(
            trace,
            **{name: getattr(trace, name)[first:after] for name in COLUMNS},
            starts=trace.starts[first : after + 1] - begin,
            blocks=trace.blocks[begin:end],
            first_row=first,
            first_block=known,
        )
        yield piece
        known = piece.distinct


def mooncake_lines(trace):
    """The trace as Mooncake would write it, with ids that are not dense."""
    for row in range(len(trace)):
        ids = trace.blocks[trace.starts[row] : trace.starts[row + 1]].tolist()
        yield json.dumps(
            {
                "timestamp": int(1000 * trace.time_s[row]),
                "input_length": int(trace.input_tokens[row]),
                "output_length": int(trace.output_tokens[row]),
                "hash_ids": [7919 * i + 3 for i in ids],
            }
        )
