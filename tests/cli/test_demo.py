"""``kvpager demo``: its document, its folder, and the laws that its figures must obey."""

import subprocess
from dataclasses import replace

import orjson
import pytest

from kvpager import demo
from kvpager.traces.attention import read_recording

SECTIONS = {
    "kvpager", "command", "evidence", "machine", "versions", "seed", "trace", "ladder", "bounds", "curves", "access_definitions",
    "heatmap", "locality", "head_types", "claims", "conclusion", "report", "plan", "live",
}  # fmt: skip


def assert_keeps_the_contract(document, folder):
    """The keys of the design, and law 2: no rung above its own bound."""
    assert set(document) == SECTIONS
    ladder = document["ladder"]
    assert (ladder["hbm_fraction"], ladder["pool"]) == (0.0684, "global")
    assert [rung["name"] for rung in ladder["rungs"]] == ["lru", "sink", "ema", "per_head", "prefetch"]
    for place in [ladder, *ladder["others"]]:
        for rung in place["rungs"]:
            assert 0 <= rung["block_hit_ratio"] <= rung["bound"] + 1e-9 <= 1 + 1e-9
            assert 0 <= rung["mass_hit_ratio"] <= 1
            assert rung["evidence"] == "simulated"
    assert {(other["hbm_fraction"], other["pool"]) for other in ladder["others"]} == {
        (size, pool) for size in (0.054, 0.0684, 0.10, 0.25) for pool in ("global", "equal")
    } - {(0.0684, "global")}
    assert set(document["bounds"]) == {"dense", "belady"}
    assert document["bounds"]["belady"] == max(rung["bound"] for rung in ladder["rungs"] if "prefetch" not in rung)
    by_place = {(row["policy"], row["pool"], row["hbm_fraction"]): row["block_hit_ratio"] for row in document["curves"]}
    for (_, pool, size), ratio in by_place.items():
        assert ratio <= by_place["belady", pool, size] + 1e-9
    parity = document["live"]["parity"]
    assert parity["simulated_loads"] == parity["live_loads"] == parity["backing_store_reads"] > 0
    assert document["live"]["tokens_identical"] is True
    assert document["live"]["exact"]["per_tier"]["nvme"]["accesses"] > 0
    assert {path.name for path in folder.iterdir()} == {"attention.zarr", "run.zarr", "report.html", "report.json"}
    assert document["report"] == str(folder / "report.html")
    assert orjson.loads((folder / "report.json").read_bytes()) == document
    assert read_recording(folder / "attention.zarr").steps == document["trace"]["steps"] == 32


@pytest.fixture
def tiny_in_its_place(monkeypatch, tiny):
    """Let the demo's model be the tiny one."""
    from kvpager.live import transformers as live

    load = live.load_model
    monkeypatch.setattr(live, "load_model", lambda name, **options: load(str(tiny), **options))
    monkeypatch.setattr(demo, "QUICK", replace(demo.QUICK, live_context_tokens=300, live_steps=8))


def test_demo_on_a_tiny_model(well, here, tiny_in_its_place):
    answer = well("demo", "--quick", "--out", here / "out", "--json")
    assert_keeps_the_contract(answer.document, here / "out")
    assert answer.document["command"] == "kvpager demo --quick --out out --json"
    stages = list(dict.fromkeys(line.partition(":")[0] for line in answer.err.splitlines()))
    assert stages == ["prefill", "decode", "ladder", "curves", "definitions of access", "plan", "live run", "report"]


def test_demo_ends_with_the_table_the_verdict_and_the_path(well, here, tiny_in_its_place):
    lines = well("demo", "--quick", "--out", "out").out.splitlines()
    assert any(line.lstrip().startswith("+ RoPE/EMA prefetch") for line in lines)
    assert lines[-1] == "Report: out/report.html"


def test_a_demo_that_is_interrupted_leaves_the_last_report(kvpager, here, tiny_in_its_place, monkeypatch):
    from kvpager.report import html

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(html, "write_report", interrupt)
    (here / "out").mkdir()
    (here / "out" / "report.html").write_text("before")
    answer = kvpager("demo", "--quick", "--out", "out")
    assert (answer.code, answer.out, answer.complaints) == (2, "", ["kvpager: interrupted"])
    assert (here / "out" / "report.html").read_text() == "before"
    assert read_recording(here / "out" / "attention.zarr").steps == 32


@pytest.mark.long
@pytest.mark.timeout(900)
def test_demo_on_the_real_model(here, entry):
    done = subprocess.run([*entry, "demo", "--quick", "--json", "--out", str(here / "out")], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    document = orjson.loads(done.stdout)
    assert_keeps_the_contract(document, here / "out")
    assert document["trace"]["model"] == "smollm2"
    assert b"Traceback" not in done.stderr
