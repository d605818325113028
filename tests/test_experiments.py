"""The experiments: each empirical claim has one, what is published is what their results say, and broken-off runs go on."""

import importlib
import math
import sys
from pathlib import Path

import orjson
import pytest

from kvpager.claims.check import outcome, row
from kvpager.claims.findings import finding, findings, results
from kvpager.claims.ledger import claims
from kvpager.errors import BadInput, InvariantError, UnknownName

ROOT = Path(__file__).resolve().parents[1]
EMPIRICAL = {id for id, one in claims().items() if one.verdict == "empirical-claim-to-test"}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def commands():
    return importlib.import_module("experiments.__main__")


@pytest.fixture
def study(tmp_path):
    from experiments.recordings import QUICK
    from experiments.study import Study

    return Study("E99", "whether it works", QUICK, tmp_path)


def test_every_empirical_claim_has_an_experiment(commands):
    settled = {claim for module in commands.experiments().values() for claim in module.CLAIMS}
    assert settled >= EMPIRICAL
    assert settled <= set(claims())


def test_every_experiment_says_what_it_finds_out_and_has_published(commands):
    for name, module in commands.experiments().items():
        assert len(commands.question(module)) > 20
        document = orjson.loads((commands.RESULTS / f"{name}.json").read_bytes())
        assert document["experiment"] == name
        assert document["scale"]["name"] == "full"
        assert {found["claim"] for found in document["findings"]} == set(module.CLAIMS)
        assert (commands.RESULTS / f"{name}.parquet").is_file()


def test_what_is_published_is_what_the_results_say():
    from experiments.publish import publish

    assert publish(ROOT / "experiments" / "results", check=True) == 0


def test_a_stale_page_is_found(tmp_path, monkeypatch):
    from experiments import publish

    monkeypatch.setattr(publish, "PAGE", tmp_path / "true.md")
    monkeypatch.setattr(publish, "FILE", tmp_path / "findings.json")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    results = ROOT / "experiments" / "results"
    assert publish.publish(results, check=True) == 1
    assert publish.publish(results, check=False) == 0
    assert publish.publish(results, check=True) == 0
    (tmp_path / "true.md").write_text("97 %")
    assert publish.publish(results, check=True) == 1


@pytest.mark.parametrize("id", sorted(EMPIRICAL))
def test_the_ledger_shows_what_was_found(id):
    found = finding(id)
    assert found is not None
    assert outcome(id) == found.outcome
    shown = row(id)
    assert (shown["outcome"], shown["evidence"], shown["run"]) == (found.outcome, found.evidence, f"kvpager claims {id} --run")
    assert found.says.rstrip(".") in shown["finding"]
    if found.outcome != "not settleable here":
        assert shown["figure"]["value"] == found.figure["value"]
        assert "low" in shown["figure"]


def test_every_claim_has_its_picture():
    for one in findings().values():
        assert (ROOT / "docs" / "img" / one.picture).is_file(), one
    for one in results():
        assert not one.picture or (ROOT / "docs" / "img" / one.picture).is_file(), one.picture


def test_every_picture_can_be_drawn_from_what_is_published(tmp_path):
    from experiments.pictures import draw, drawn_by

    drawn = draw(ROOT / "experiments" / "results", tmp_path)
    assert {path.name for path in drawn} == set(drawn_by())
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in drawn)


def test_an_interval_is_students():
    from experiments.study import interval

    found = interval([1.0, 2.0, 3.0])
    assert found.value == 2
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3))  # t quantile for 2 degrees of freedom, standard deviation 1
    assert interval([5.0]).high == math.inf


def test_a_finished_part_is_not_made_again(study):
    rows = study.once("part", lambda: [{"value": 1}])
    assert study.once("part", lambda: pytest.fail("made again")) == rows == [{"value": 1}]
    assert study.once("another part", lambda: [{"value": 2}]) == [{"value": 2}]


def test_signs(study):
    from experiments.study import Interval

    study.sign("up", Interval(2, 1, 3))
    study.sign("down", Interval(-2, -3, -1))
    study.sign("open", Interval(1, -1, 3))
    assert study.signs == {"up": 1, "down": -1, "open": 0}


def test_a_sign_that_comes_out_the_other_way_fails(commands, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "RESULTS", tmp_path)
    (tmp_path / "E1.json").write_bytes(orjson.dumps({"signs": {"a": 1, "b": -1, "c": 0}}))
    assert commands._agrees("E1", {"a": 1, "b": 0, "c": -1})
    assert not commands._agrees("E1", {"a": -1, "b": -1})
    assert "'a' came out with the sign -1" in capsys.readouterr().err


def test_a_finding_needs_one_of_four_outcomes(study):
    with pytest.raises(InvariantError, match="E99 finds 'true' of ladder-values"):
        study.find("ladder-values", "true", "it is")


def test_results_are_two_files_that_say_who_made_them(study, tmp_path):
    from pyarrow import parquet

    study.once("rows", lambda: [{"text": "a", "value": 1}, {"text": "b", "value": 1.5}, {"text": "c"}])
    study.find("ladder-values", "contradicted", "no", value=1 / 3, low=0.2, high=math.inf, unit="%")
    path = study.write(tmp_path / "results", "python -m experiments E99")
    document = orjson.loads(path.read_bytes())
    assert {"machine", "versions", "seeds", "command", "date", "signs", "findings", "results"} <= document.keys()
    assert document["findings"][0]["figure"] == {"value": 0.333333, "low": 0.2, "high": None, "unit": "%"}
    assert parquet.read_table(path.with_suffix(".parquet")).column("value").to_pylist() == [1.0, 1.5, None]


def test_bad_input(commands, tmp_path, monkeypatch, capsys):
    with pytest.raises(UnknownName, match="experiment 'E77' does not exist"):
        commands.run("E77", quick=True, work=tmp_path)
    assert commands.main(["E77"]) == 2
    assert "choose among E1" in capsys.readouterr().err
    from experiments import texts

    monkeypatch.setattr(texts, "ARCHIVE", "kvpager-no-such-archive==0")
    with pytest.raises(BadInput, match="which pip cannot fetch"):
        texts.TEXTS["novel"].read(tmp_path)


def test_a_switch_of_topic_is_where_it_is_said_to_be(tmp_path):
    from experiments.recordings import tokens_of
    from experiments.texts import TEXTS

    class Words:
        def tokenize(self, text):
            return [hash(word) % 1000 for word in text.split()]

    model = Words()
    code = model.tokenize(TEXTS["code"].read(tmp_path))
    docs = model.tokenize(TEXTS["docs"].read(tmp_path))
    from experiments import recordings

    switches = {"there": ("code", "code", "docs"), "back": ("code", "docs", "code")}
    for name, parts in switches.items():
        recordings.SWITCHES[name] = parts
    try:
        there = tokens_of("there", model, tmp_path, 100, 40, 10)
        back = tokens_of("back", model, tmp_path, 100, 40, 10)
    finally:
        for name in switches:
            del recordings.SWITCHES[name]
    assert there == code[:110] + docs[:30]
    assert back == code[:55] + docs[:55] + code[55:85]
    assert sys.modules["experiments.recordings"].FULL.switch_at == 128
