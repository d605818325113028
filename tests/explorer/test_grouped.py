"""Each value has its place under its name; what is endless, or zero on a logarithmic axis, has none."""

import math

from kvpager.explorer.grouped import Mark, grouped

LOG = "{:g}".format


def values(chart):
    return list(chart.to_dict()["datasets"].values())


def test_a_line_a_series_and_one_for_the_name():
    marks = [Mark("one", "a", 0.1), Mark("one", "a", 0.2), Mark("one", "b", 0.3), Mark("two", "b", 0.4)]
    chart = grouped(marks, "share", rule=0.5)
    rows = next(data for data in values(chart) if "value" in data[0])
    assert [(row["at"], row["value"]) for row in rows] == [(1, 0.1), (1, 0.2), (2, 0.3), (4, 0.4)]
    assert [[row["at"] for row in data] for data in values(chart) if "name" in data[0]] == [[0, 3]]
    assert [{"rule": 0.5}] in values(chart)


def test_what_lies_beyond_the_axis_ends_at_it():
    marks = [Mark("one", "a", 10.0, (0.0, math.inf)), Mark("two", "a", 0.0), Mark("three", "a", math.inf, (5.0, math.inf))]
    rows = next(data for data in values(grouped(marks, "times", log=LOG)) if "series" in data[0])
    assert [row.get("value") for row in rows] == [10.0, None, None]
    assert [(row.get("low"), row.get("high")) for row in rows] == [(1.0, 10.0), (None, None), (5.0, 10.0)]
