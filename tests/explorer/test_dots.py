"""Dots on a logarithmic axis: what the axis holds, how its ticks are labelled, and what has no place on it."""

import json
import math
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.dots import Dot, dots, log_axis

POSITIVE = st.floats(1e-9, 1e18)


def quantity(value, low=None, high=None):
    return Quantity(value, "s", frozenset({Evidence.ANALYTICAL}), low=low, high=high)


def data(spec):
    return [row for rows in spec.get("datasets", {}).values() for row in rows] + [
        row for layer in spec.get("layer", []) for row in layer.get("data", {}).get("values", [])
    ]


@given(st.lists(POSITIVE, min_size=1, max_size=6), st.sampled_from([2.0, 10.0, 1024.0]), st.booleans())
def test_axis_holds_every_value_and_labels_each_tick_with_itself(values, base, tight):
    x, (first, last) = log_axis([*values, 0.0, -1.0, math.inf], "title", lambda value: f"{value:.6g}", base, tight=tight)
    assert first <= min(values) * (1 + 1e-6)
    assert last >= max(values) * (1 - 1e-6)
    assert (first, last) == (min(values), max(values)) or not tight
    axis = x.to_dict()["axis"]
    labels, offset, every = re.fullmatch(
        r"(\[.*\])\[round\(\(log\(datum\.value\) / [\d.e+-]+ - (-?\d+)\) / (\d+)\)\]", axis["labelExpr"]
    ).groups()
    assert 1 < len(axis["values"]) <= 4
    for tick in axis["values"]:  # as the page evaluates it
        place = round((math.log(tick) / math.log(base) - int(offset)) / int(every))
        assert json.loads(labels)[place] == f"{tick:.6g}"


def test_what_is_zero_or_endless_is_named_and_not_drawn():
    rows = [
        Dot("nothing", quantity(0.0), "a"),
        Dot("something", quantity(2.0, 1.0, 4.0), "a"),
        Dot("no end", quantity(math.inf), "b"),
    ]
    drawn = data(dots(rows, "time").to_dict())
    assert [row["name"] for row in drawn if "name" in row] == ["nothing: 0 s", "something: 2 s", "no end: never"]
    assert {(row["order"], row["value"], row["low"], row["high"]) for row in drawn if "value" in row} == {(1, 2.0, 1.0, 4.0)}


def test_a_range_from_zero_ends_at_the_axis():
    drawn = data(dots([Dot("wide", quantity(2.0, 0.0, math.inf), "a")], "time").to_dict())
    ends = {(row["low"], row["high"]) for row in drawn if "value" in row}
    assert ends == {(1.0, 10.0)}


@pytest.mark.parametrize("kinds", [("a", "a"), ("a", "b")])
def test_series_have_shapes_of_their_own_and_a_legend_if_there_are_several(kinds):
    spec = dots([Dot("x", quantity(1.0), kinds[0]), Dot("y", quantity(2.0), kinds[1])], "time").to_dict()
    encoding = next(layer["encoding"] for layer in spec["layer"] if "shape" in layer["encoding"])
    assert encoding["shape"]["field"] == encoding["color"]["field"] == "kind"
    assert (encoding["color"]["legend"] is None) == (len(set(kinds)) == 1)
