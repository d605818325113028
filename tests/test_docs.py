"""The docs are part of the program: their code runs, their links lead somewhere, their tables are the registries'."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from kvpager import policies
from kvpager.cli import app
from kvpager.policies import POLICIES
from kvpager.replay.attention import Replay, capacity_units
from kvpager.replay.stream import make_stream
from kvpager.selectors import SELECTORS
from kvpager.testing.recordings import synthetic_recording

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```(\w+)[ \t]*([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
POLICY_PAGE = ROOT / "CONTRIBUTING.md"


def page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(language: str) -> list[tuple[Path, str, str]]:
    """Page, rest of the fence's first line, and text of every block in `language`."""
    return [
        (page, rest.strip(), text)
        for page in PAGES
        for found, rest, text in FENCE.findall(page.read_text(encoding="utf-8"))
        if found == language
    ]


def block_ids(language: str) -> list[str]:
    return [f"{page_name(page)}#{number}" for number, (page, _, _) in enumerate(blocks(language))]


@pytest.mark.parametrize(("page", "rest", "text"), blocks("python"), ids=block_ids("python"))
def test_python_blocks_run(page, rest, text, tmp_path):
    """A block may opt out by ``not run: <reason>`` after the language; the reason is what a reader needs."""
    if rest:
        assert re.fullmatch(r"not run: \w.{10,}", rest), f"{page_name(page)}: say why: 'not run: <reason>', not {rest!r}"
        compile(text, page_name(page), "exec")
        return
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{page_name(page)}:\n{text}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_make_targets_named_in_the_docs_exist(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    lines = [line for where, _, text in blocks("sh") if where == page for line in text.splitlines()]
    named = {found[1] for code in inline + lines if (found := re.match(r"make ([a-z][a-z-]*)", code))}
    assert named <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_named_in_the_docs_exist(page):
    commands = set(typer.main.get_command(app).commands)
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    lines = [line for where, _, block in blocks("sh") if where == page for line in block.splitlines()]
    named = {
        found[1] for code in re.findall(r"`([^`\n]+)`", text) + lines if (found := re.match(r"kvpager ([a-z][a-z-]*)", code))
    }
    assert named <= commands


def anchors(page: Path) -> set[str]:
    """Anchors that a page's headings get on the forge."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_internal_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"(?:src|href)=\"([^\"]+)\"", text):
        if re.match(r"(https?|mailto):", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page_name(page)} links to {link}, which does not exist"
        assert target.is_relative_to(ROOT), f"{page_name(page)} links out of the checkout: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page_name(page)} links to {link}, which has no such heading"


def test_readme_opens_with_what_it_is_and_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.match(r"# kvpager\n\nkvpager .+\n(.+\n)*\n```sh\nmake demo .*\nmake test .*\n```\n", text)


def test_tables_are_what_the_registries_say():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    marked = [found[2] for page in PAGES for found in tables.MARK.finditer(page.read_text(encoding="utf-8"))]
    assert set(marked) == set(tables.REGISTRIES), "each registry has its table in the docs"
    assert tables.main(["--check"]) == 0, "a table is stale: run make tables"


def test_a_stale_table_is_noticed():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = "before\n<!-- table: policies -->\n| old |\n<!-- end of table -->\nafter\n"
    filled = tables.filled(page)
    assert filled != page
    assert "| `lru` |" in filled
    assert filled.startswith("before\n")
    assert filled.endswith("<!-- end of table -->\nafter\n")
    assert tables.filled(filled) == filled


def policy_of_the_guide() -> str:
    """The one Python block of the contributors' guide: a whole policy file."""
    (text,) = [text for page, _, text in blocks("python") if page == POLICY_PAGE]
    return text


def test_the_policy_of_the_guide_is_one_file_that_is_found_and_replays(tmp_path, monkeypatch):
    """Put into the folder, and nothing else done, it can be named, obeys the laws and beats chance."""
    (tmp_path / "ask_rate.py").write_text(policy_of_the_guide(), encoding="utf-8")
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    monkeypatch.setattr(POLICIES, "_found", dict(POLICIES._found))
    monkeypatch.setattr(POLICIES, "_searched", False)
    monkeypatch.delitem(sys.modules, "kvpager.policies.ask_rate", raising=False)
    assert "ask-rate" in POLICIES

    stream = make_stream(synthetic_recording(steps=48), SELECTORS["topp_mass"]())
    units = capacity_units(stream, 0.1, "global")
    counts = {name: Replay(stream, POLICIES[name](), units, check=True).run() for name in ("random", "ask-rate", "belady")}
    assert counts["ask-rate"].accesses == counts["belady"].accesses > 0
    assert counts["random"].unit_hits < counts["ask-rate"].unit_hits < counts["belady"].unit_hits
    monkeypatch.delitem(sys.modules, "kvpager.policies.ask_rate")


def test_the_policy_of_the_guide_keeps_the_house_rules(tmp_path):
    path = tmp_path / "ask_rate.py"
    path.write_text(policy_of_the_guide(), encoding="utf-8")
    settings = ["--config", str(ROOT / "pyproject.toml"), "--extend-ignore", "D102,INP", str(path)]
    done = subprocess.run([sys.executable, "-m", "ruff", "check", *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(policy_of_the_guide().splitlines()) <= 150
    assert all(word in policy_of_the_guide() for word in ("Source: ", "Differs "))
