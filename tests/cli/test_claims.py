"""``kvpager claims``: the ledger for people and for programs."""

import subprocess
import sys

import pytest

from kvpager.claims.ledger import VERDICTS, claims

KEYS = {"id", "note", "claim", "stated", "derived", "figure", "verdict", "status", "outcome", "evidence", "finding", "run"}


def test_all_of_them_as_json(well):
    rows = well("claims", "--json").document
    assert [row["id"] for row in rows] == [*claims()]
    assert all(set(row) == KEYS for row in rows)
    softmax = next(row for row in rows if row["id"] == "softmax-example")
    assert softmax["stated"]["value"] == [6, 52, 14, 28]
    assert softmax["derived"]["value"] == pytest.approx([17.78, 37.64, 19.85, 24.73], abs=0.005)
    assert (softmax["verdict"], softmax["outcome"], softmax["run"]) == ("inconsistent", "contradicted", None)
    ladder = next(row for row in rows if row["id"] == "ladder-values")
    assert (ladder["outcome"], ladder["run"]) == ("contradicted", "kvpager claims ladder-values --run")
    assert ladder["figure"]["low"] <= ladder["figure"]["value"] <= ladder["figure"]["high"] < 97


def test_one_is_explained_step_by_step(well):
    out = well("claims", "softmax-example").out
    for needle in ("0.12, 0.87, 0.23, 0.45", "6.34132", "17.78 / 37.64 / 19.85 / 24.73 %", "outcome  contradicted"):
        assert needle in out
    both = well("claims", "kv-128k", "crossover").out
    assert both.index("kv-128k") < both.index("crossover")


@pytest.mark.parametrize("verdict", VERDICTS)
def test_by_verdict(well, verdict):
    ids = [id for id, one in claims().items() if one.verdict == verdict]
    assert [row["id"] for row in well("claims", "--verdict", verdict, "--json").document] == ids
    out = well("claims", "--verdict", verdict).out
    assert f"\n{len(ids)} claims: " in out
    assert out.count(verdict) >= len(ids)


def test_the_list_marks_what_has_fallen(well):
    lines = {line.split(" ")[0]: line for line in well("claims").out.splitlines()}
    assert lines["capex-36"].endswith("[withdrawn]")
    assert lines["cxl-latency-200"].endswith("[demoted]")
    assert "[" not in lines["kv-per-token"]
    assert "none of them is assumption" in well("claims", "kv-128k", "--verdict", "assumption").out


def test_the_register(well):
    assert {"alpha", "A", "W", "D"} <= {one["symbol"] for one in well("claims", "--uncalibrated", "--json").document}
    out = well("claims", "--uncalibrated").out
    assert "fitted by E7: 0.1 (0.1 to 0.2), within a point 0.05 to 0.3; used by policy ema" in out
    assert "fitted by no run; used by plan, compare" in out


def test_bad_input_is_refused(refused):
    refused("claims", "softmax-exmple", words=("'softmax-exmple'", "near: softmax-example"))
    refused("claims", "kv-128k", "ladder", "--json", words=("'ladder'", "ladder-"))
    refused("claims", "--verdict", "wrong", words=("'wrong'", "inconsistent", "assumption"))


def test_running_an_experiment_is_refused_where_there_is_none(refused):
    refused("claims", "--run", words=("name them",))
    refused("claims", "kv-128k", "--run", words=("'kv-128k'", "no experiment", "kvpager claims kv-128k"))
    refused("claims", "ladder-values", "--quick", words=("--quick", "--run"))
    refused("claims", "ladder-valu", "--run", words=("near: ladder-values",))


def test_running_an_experiment(monkeypatch, well):
    asked = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **how: asked.append(command) or subprocess.CompletedProcess(command, 0)
    )
    well("claims", "ladder-values", "ladder-rope-4", "locality-80-10", "--run", "--quick")
    assert [command[1:] for command in asked] == [["-m", "experiments", "E3", "E1", "--quick"]]


def test_outside_a_checkout_it_says_where_the_experiments_are(monkeypatch, refused, tmp_path):
    from kvpager.cli import claims as command

    monkeypatch.setattr(command, "__file__", str(tmp_path / "a" / "b" / "c" / "claims.py"))
    refused("claims", "ladder-values", "--run", words=("source repository", "clone it"))


def test_it_loads_nothing_heavy():
    code = (
        "import sys\nfrom kvpager.cli import main\nsys.argv = ['kvpager', 'claims', '--json']\nmain()\n"
        "sys.exit(str(sorted({'torch', 'numba', 'transformers', 'zarr', 'altair', 'jinja2'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"
