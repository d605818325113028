"""The terminal's tables: nothing cut at 80 columns, every figure there."""

from io import StringIO

import pytest
from rich.console import Console

from kvpager.errors import BadInput
from kvpager.report.text import print_context, print_document, print_ladder, print_rows


def printed(function, *arguments, width, **more):
    console = Console(width=width, force_terminal=False, color_system=None, file=StringIO())
    function(*arguments, console, **more)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_fits(document, width):
    text = printed(print_document, document, width=width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    flat = " ".join(text.split())
    for needle in (
        "LRU 0.0 % 55.0 % 72 % 22.2 % 17.8 % 4.2 MB",
        "+ RoPE/EMA prefetch 45.1 % 53.0 % 97 %",
        "equal 25.00 % 49.1 %",
        "withdrawn",
    ):
        assert needle in flat


def test_ladder_names_what_is_shared(document):
    text = printed(print_ladder, document, width=80)
    assert "6.84 % of the KV in HBM, global pool, simulated" in text


def test_context_says_everything(document):
    text = " ".join(printed(print_context, document["ladder"]["rungs"][0], width=80).split())
    for needle in (
        "access block in its KV head's top-95 % mass set; open block not counted",
        "selector topp_mass",
        "unit head, 45,720 units",
        "pool global",
        "clock layer",
        "observe read",
        "steps 128, after 64 of warm-up",
        "dense bound 6.8 %",
        "top-mass oracle 25.2 %",
        "read mass 95.8 %",
        "staging 3.0 % of the KV",
        "metadata 1.1 % of the KV",
    ):
        assert needle in text


def test_rows_keep_apart_what_differs(document):
    rows = document["curves"]
    text = printed(print_rows, rows, width=80, title="All")
    assert text.startswith("All, simulated")
    assert len([line for line in text.splitlines() if "in HBM" in line]) == len(rows)
    assert "pool" in text


def test_rows_without_traffic_say_so(document):
    row = {key: value for key, value in document["curves"][0].items() if not key.startswith("fetched")}
    assert "–" in printed(print_rows, [row], width=80)


def test_bad_document_prints_nothing(document):
    del document["ladder"]["rungs"][0]["bound"]
    with pytest.raises(BadInput):
        printed(print_document, document, width=80)
