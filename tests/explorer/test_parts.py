"""Every part, for any choices: it shows, its sliders move it, and its numbers are the command line's."""

import shlex

import orjson
import pytest
from typer.testing import CliRunner

from kvpager.cli.root import app
from kvpager.evidence import Evidence
from kvpager.explorer.choices import Choices
from kvpager.explorer.part import in_order

PARTS = {part.title: part for part in in_order()}
MOVED = {
    "context": 65_536, "users": 4, "read": 0.10, "slo_ms": 200.0, "tokens": 64, "layer": 1, "head": 1, "block": 2, "alpha": 0.5,
    "w_r": 0.5, "w_e": 0.1, "w_n": 0.7, "cut_1": 0.1, "cut_2": 0.9, "half_life": 16, "hbm": 0.25, "distance": 64,
    "prefetch": 0.05,
}  # fmt: skip


def told(document, key):
    for step in key.split("."):
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_figures_are_what_the_command_line_prints(part, chosen):
    documents = {}
    for figure in part.screen(chosen).figures:
        if figure.command not in documents:
            found = CliRunner().invoke(app, [*shlex.split(figure.command)[1:], "--json"])
            assert found.exit_code == 0, found.output
            documents[figure.command] = orjson.loads(found.stdout)
        printed = told(documents[figure.command], figure.key)
        if not isinstance(printed, dict):
            assert figure.quantity.value == pytest.approx(printed, rel=1e-12), figure.label
            continue
        assert figure.quantity.value == pytest.approx(printed["value"], rel=1e-12), figure.label
        assert (figure.quantity.unit, figure.quantity.evidence) == (printed["unit"], Evidence.of(printed["evidence"]))


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_each_slider_moves_the_pictures(part, chosen):
    before = [panel.spec() for panel in part.screen(chosen).panels]
    for name in part.sliders:
        assert MOVED[name] != getattr(chosen, name)
        assert [panel.spec() for panel in part.screen(chosen.but(**{name: MOVED[name]})).panels] != before, name


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_is_said_in_words(part, chosen):
    shown = part.screen(chosen)
    assert len(shown.panels) <= 2
    assert shown.words.endswith(".")
    assert part.shows.endswith(".")
    assert part.known.endswith(".")
    assert part.command(chosen).startswith("kvpager ")
    for row in part.claimed():
        assert row["outcome"]


def test_numbers_are_unique_and_without_gap():
    assert [part.number for part in in_order()] == list(range(1, len(PARTS) + 1))


def test_choices_outside_are_refused():
    from kvpager.errors import BadInput

    with pytest.raises(BadInput, match="alpha = 2"):
        Choices(alpha=2.0)
