"""The exported page: whole, self-contained, and in words where there is nothing to draw."""

import json
import re
from html.parser import HTMLParser

import pytest
from tests.stored import save_recording

from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity
from kvpager.explorer.choices import Choices
from kvpager.explorer.part import Figure, Screen, in_order
from kvpager.explorer.shown import matching, show, tiles
from kvpager.explorer.static import write_page
from kvpager.report.charts.base import Table
from kvpager.testing.recordings import synthetic_recording


class Page(HTMLParser):
    """What a page holds: what it would load, its headings, its charts, its text."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.charts, self.policy, self.text, self._inside = [], [], "", [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self._inside.append(tag)
        self.loads += [found[name] for name in ("src", "href", "srcset", "data") if name in found]
        if "data-chart" in found:
            self.charts.append(found["data-chart"])
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._inside):
            self.text.append(data)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording and no run."""
    path = tmp_path_factory.mktemp("static") / "t.zarr"
    return Choices(trace=str(save_recording(synthetic_recording(context_tokens=640, steps=32), path)))


@pytest.fixture(scope="module")
def exported(tmp_path_factory, recorded):
    path = tmp_path_factory.mktemp("page") / "walk.html"
    return path, write_page(recorded, path)


def test_it_loads_nothing(exported):
    text = exported[0].read_text(encoding="utf-8")
    found = Page(text)
    assert found.policy.startswith("default-src 'none'")
    assert [one for one in found.loads if not one.startswith(("#", "data:"))] == []
    styles = "".join(re.findall(r"<style>(.*?)</style>", text, flags=re.DOTALL))
    assert "@import" not in styles
    assert "url(" not in styles


def test_every_part_has_its_drawings_or_says_what_it_takes(exported):
    path, missing = exported
    text = path.read_text(encoding="utf-8")
    found, specs = Page(text), json.loads(re.search(r'(?<=id="specs">).*?(?=</script>)', text, flags=re.DOTALL).group())
    assert found.charts == list(specs)
    words = " ".join(" ".join(found.text).split())
    for part in in_order():
        assert f"{part.number}. {part.title}" in words
        drawn = [name for name in found.charts if name.split("-")[0] == str(part.number)]
        assert bool(drawn) is (part.title not in missing) or not show(part, Choices()).screen.panels
    assert words.count("is chosen") + words.count("none is chosen") >= len(missing)


def test_words_of_files_are_text_and_nothing_else(tmp_path):
    path = tmp_path / "walk.html"
    missing = write_page(Choices(trace="<script>alert(1)</script>.zarr"), path)
    text = path.read_text(encoding="utf-8")
    assert missing
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_a_part_without_a_recording_says_how_to_make_one(tmp_path):
    path = tmp_path / "walk.html"
    missing = write_page(Choices(), path)
    assert "Scores that follow attention: the EMA" in missing
    assert "&#39;kvpager record --text FILE -o trace.zarr&#39;" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["walk.txt", "walk", "folder.html"])
def test_a_target_that_is_no_page_is_refused(tmp_path, name):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(BadInput, match=name):
        write_page(Choices(), tmp_path / name)


def test_what_is_shown_is_made_once_until_the_choices_or_a_file_change(tmp_path):
    (part,) = [part for part in in_order() if part.title.endswith("the EMA")]
    path = tmp_path / "t.zarr"
    choices = Choices(trace=str(save_recording(synthetic_recording(context_tokens=160, steps=16), path)))
    once = show(part, choices)
    assert show(part, choices) is once
    assert show(part, choices.but(alpha=0.5)) is not once
    (path / "touched").touch()
    assert show(part, choices) is not once


TABLE = Table("claims", ("id", "says"), [("a-1", "Ninety seven"), ("b-2", "ninety")], ["measured", "assumption"])


@pytest.mark.parametrize(
    ("text", "ids"), [("", ["a-1", "b-2"]), ("SEVEN", ["a-1"]), ("ninety b", ["b-2"]), ("assum", ["b-2"]), ("x", [])]
)
def test_a_table_is_searched_by_every_word(text, ids):
    found = matching(TABLE, text)
    assert [row[0] for row in found.rows] == ids
    assert len(found.evidence) == len(ids)


def test_a_tile_has_value_unit_range_and_label():
    made = Quantity(0.0175, "s", frozenset([Evidence.ASSUMPTION]), low=0.0169, high=0.0182)
    (tile,) = tiles(Screen((), (Figure("a token", made, "kvpager plan", "x"),), "Words."))
    assert tile == {"value": "17.5 ms", "span": "16.9 ms to 18.2 ms", "label": "a token", "evidence": "assumption"}
