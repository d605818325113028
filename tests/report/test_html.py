"""The page without a browser: one file, nothing fetched, nothing lost, nothing run that was text."""

import errno
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvpager.errors import BadInput, StorageFull
from kvpager.report.html import write_pngs, write_report

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Elements, attributes and the text of scripts; checks that tags close in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.scripts, self.words = [], [], {}, []
        self.feed(text)
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.setdefault(self.tags[-1][1].get("id"), []).append(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory, example):
    path = tmp_path_factory.mktemp("report") / "new folder" / "report.html"
    assert write_report(example, path) == path
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(written):
    return Page(written)


def test_is_semantic(page):
    names = [tag for tag, _ in page.tags]
    assert names.count("h1") == names.count("main") == names.count("header") == 1
    assert {"nav", "section", "figure", "figcaption", "table", "th", "dl", "details"} <= set(names)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for key in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(key, ids[0]) in ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in ids


def test_loads_nothing(page):
    for tag, attributes in page.tags:
        assert "src" not in attributes, tag
        assert attributes.get("href", "#").startswith(("#", "data:")), tag
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "Content-Security-Policy" in a.values())
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_every_chart_has_its_spec_and_alternative(page):
    specs = json.loads("".join(page.scripts["specs"]))
    places = [attributes["data-chart"] for _, attributes in page.tags if "data-chart" in attributes]
    assert sorted(places) == sorted(specs)
    assert len(places) == 20
    assert all(len(spec["description"]) > 60 for spec in specs.values())


def test_text_stays_text(page, written):
    assert "<script>alert" not in written
    assert any("<script>alert(1)</script> & argparse.py" in words for words in page.words)


def test_a_name_cannot_close_the_script(document, tmp_path):
    document["access_definitions"][0]["name"] = "</script><b>"
    written = write_report({"access_definitions": document["access_definitions"]}, tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    specs = json.loads("".join(Page(written).scripts["specs"]))
    assert "</script><b>: 6.8 %" in [row["text"] for rows in specs["definitions-bars"]["datasets"].values() for row in rows]


def test_every_row_of_every_table_has_a_label(written):
    rows = re.findall(r"<tr>(?:(?!</tr>).)*</tr>", written, flags=re.DOTALL)
    body = [row for row in rows if 'scope="row"' in row]
    assert len(body) > 200
    assert all('class="badge ' in row for row in body)


def test_says_where_it_comes_from(page):
    words = " ".join(page.words)
    for needle in (
        "ab" * 32,
        "cd" * 32,
        "an example processor",
        "2.13.0",
        "kvpager demo --quick --out run",
        "in a checkout of kvpager 0.1.0",
    ):
        assert needle in words
    assert "withdrawn the ladder" in words
    assert "72 → 80 → 87 → 93 → 97" in words


def test_is_small_and_the_same_each_time(written, example, tmp_path):
    assert len(written) < 1_500_000
    assert write_report(example, tmp_path / "again.html").read_text(encoding="utf-8") == written


def test_absent_sections_are_left_out(document, tmp_path):
    page = Page(write_report({"ladder": document["ladder"]}, tmp_path / "r.html").read_text(encoding="utf-8"))
    charts = {attributes["data-chart"] for _, attributes in page.tags if "data-chart" in attributes}
    assert charts == {"ladder-global", "ladder-equal", "factors-global", "factors-equal"}


def test_refused_document_writes_nothing(tmp_path):
    with pytest.raises(BadInput):
        write_report({"ladder": {}}, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, StorageFull), (errno.EACCES, BadInput)])
def test_failure_leaves_the_old_report(document, tmp_path, monkeypatch, number, error):
    path = tmp_path / "r.html"
    path.write_text("old")

    def fail(self, target):
        raise OSError(number, "no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(error, match=r"r\.html"):
        write_report({"access_definitions": document["access_definitions"]}, path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["r.html"]


def test_folder_is_no_file(document, tmp_path):
    with pytest.raises(BadInput, match="is a folder"):
        write_report({"access_definitions": document["access_definitions"]}, tmp_path)


def test_pictures(document, tmp_path):
    some = {key: document[key] for key in ("access_definitions", "heatmap")}
    written = write_pngs(some, tmp_path / "png", width=300)
    assert [path.name for path in written] == ["definitions-bars.png", "heatmap-cells.png"]
    for path in written:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20]) >= 600
    with pytest.raises(BadInput, match="light or dark"):
        write_pngs(some, tmp_path, theme="sepia")
