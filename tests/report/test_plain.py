"""Plain tables: as wide as the terminal at most, no character of a cell lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.report.plain import listed, table, wrapped

CELL = st.text("abc 123%", max_size=24)


@given(columns=st.integers(1, 6), data=st.data())
def test_every_cell_is_there_and_fits(columns, data):
    rows = data.draw(st.lists(st.lists(CELL, min_size=columns, max_size=columns), min_size=1, max_size=6))
    heads = [f"head{column}" for column in range(columns)]
    lines = table("Title", heads, "<" * columns, rows)
    assert all(len(line) <= 80 for line in lines)
    assert sorted("".join("".join(lines[4:]).split())) == sorted("".join("".join(map("".join, rows)).split()))


def test_alignment_and_kept_line_breaks():
    lines = table("T", ("name", "value"), "<>", [("a", "1"), ("long name", "10\nx")])
    assert lines == [
        "",
        "T",
        "  name       value",
        "  ────────────────",
        "  a              1",
        "  long name     10",
        "                 x",
    ]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_follows_the_terminal(monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    words = "words " * 60
    for lines in (wrapped(words), listed("Title", [words]), table("T", ("a", "b"), "<<", [("one", words)])):
        assert width - 10 < max(map(len, lines)) <= width


def test_an_empty_list_has_no_title():
    assert listed("Mind", []) == []
