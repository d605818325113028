"""What the commands answer: JSON by the contract, tables for people, help with an example."""

import re
import subprocess
from importlib.metadata import entry_points

import orjson
import pytest
import typer

import kvpager as package
from kvpager import cli
from kvpager.errors import InvariantError, UnknownName
from kvpager.evaluate import TASKS
from kvpager.live.summaries import SUMMARIES
from kvpager.pager import Pager
from kvpager.policies import POLICIES
from kvpager.testing.recordings import synthetic_recording
from kvpager.tiers.base import TIERS

COMMANDS = sorted(typer.main.get_command(cli.app).commands)
REPLAY = ("replay", "t.zarr", "--jobs", "1")

PROVENANCE = {"kvpager", "command", "evidence", "machine", "versions", "seed", "trace"}
TRACE = {
    "path", "model", "text", "mode", "context_tokens", "steps", "blocks", "block_size", "layers", "kv_heads", "q_heads", "fold",
    "tokens_sha256", "weights_sha256", "kv_bytes", "recorded",
}  # fmt: skip
ROW = {
    "policy", "pool", "granularity", "fold", "hbm_fraction", "capacity_units", "units", "selector", "access", "clock", "observe",
    "warmup_steps", "steps", "seed", "accesses", "block_hits", "block_hit_ratio", "byte_hit_ratio", "mass_hit_ratio",
    "step_hit_ratio", "demand_only_hit_ratio", "read_mass", "p5_head_mass", "per_tier", "fetched_units_per_step",
    "fetched_bytes_per_step", "missed_units_per_step", "moves_per_step", "dropped_per_step", "pinned_share", "staging_fraction",
    "metadata_fraction", "dense_bound", "top_mass_oracle", "realisable", "evidence", "labels", "bound", "bound_kind", "misses",
}  # fmt: skip


def test_replay_answers_by_the_contract(well, store):
    document = well(*REPLAY, "--policy", "lru,ema+sink:16,belady", "--capacity", "10%,25%", "--json").document
    assert set(document) == PROVENANCE | {"rows", "uncalibrated"}
    assert set(document["trace"]) == TRACE
    assert document["command"] == "kvpager replay t.zarr --jobs 1 --policy lru,ema+sink:16,belady --capacity 10%,25% --json"
    rows = document["rows"]
    assert [(row["policy"], row["hbm_fraction"]) for row in rows] == [
        (policy, size) for size in (0.1, 0.25) for policy in ("lru", "ema+sink:16", "belady")
    ]
    for row in rows:
        assert set(row) == ROW
        assert row["block_hit_ratio"] == row["block_hits"] / row["accesses"] <= row["bound"] + 1e-12
        assert sum(row["per_tier"].values()) == row["accesses"]
        assert sum(row["misses"].values()) == row["accesses"] - row["block_hits"]
    assert [row["realisable"] for row in rows] == [True, True, False] * 2


def test_a_prefetcher_and_a_tier_2_add_their_figures(well, store):
    (row,) = well(*REPLAY, "--prefetch", "previous", "--dram", "25%", "--json").document["rows"]
    assert set(row) == ROW | {"prefetcher", "prefetch"}
    assert set(row["prefetch"]) >= {"precision", "coverage", "wasted_bytes"}
    assert row["per_tier"]["dram"] > 0


@pytest.mark.parametrize(("size", "units"), [("25%", 42), ("0.25", 42), ("42", 42), ("21KiB", 42), ("100%", 168), ("168", 168)])
def test_a_size_is_a_share_bytes_or_units(well, store, size, units):
    """168 units of 512 bytes."""
    (row,) = well(*REPLAY, "--capacity", size, "--json").document["rows"]
    assert (row["capacity_units"], row["units"]) == (units, 168)


def test_settings_travel_through_commas(well, store):
    policies = "placement:cuts=[0.3,0.6],scale=rank,lru+sink:16+recent,ema:alpha=0.1,persist_scores=false"
    rows = well(*REPLAY, "--policy", policies, "--json").document["rows"]
    assert [row["policy"] for row in rows] == [
        "placement:cuts=[0.3,0.6],scale=rank", "lru+sink:16+recent", "ema:alpha=0.1,persist_scores=false",
    ]  # fmt: skip


def test_options_reach_the_replay(well, store):
    options = {
        "pool": "equal",
        "granularity": "layer",
        "clock": "step",
        "observe": "all",
        "selector": "topk_mass:read_fraction=0.2",
    }
    (row,) = well(*REPLAY, *[f"--{key}={value}" for key, value in options.items()], "--seed", "7", "--json").document["rows"]
    assert {key: row[key] for key in options} == options
    assert (row["seed"], row["realisable"]) == (7, False)


def test_replay_prints_a_table(well, store):
    out = well(*REPLAY, "--policy", "lru,blend", "--capacity", "10%,25%").out
    assert re.search(r"^ *lru +10\.00 % in HBM( +[\d.]+ %){4}", out, re.MULTILINE)
    assert re.search(r"^ *blend +25\.00 % in HBM( +[\d.]+ %){4}", out, re.MULTILINE)
    assert "simulated" in out


def test_processes_change_nothing(well, store):
    call = ("replay", "t.zarr", "--policy", "lru,ema,blend,random", "--json")
    documents = [well(*call, "--jobs", jobs).document for jobs in (1, 2)]
    assert documents[0]["rows"] == documents[1]["rows"]


def test_ladder_answers_by_the_contract(well, store):
    document = well("ladder", "t.zarr", "--jobs", "1", "--json").document
    assert set(document) == PROVENANCE | {"ladder", "bounds", "uncalibrated"}
    ladder = document["ladder"]
    assert set(ladder) == {"hbm_fraction", "pool", "rungs", "others", "references"}
    assert (ladder["hbm_fraction"], ladder["pool"]) == (0.0684, "global")
    assert [rung["name"] for rung in ladder["rungs"]] == ["lru", "sink", "ema", "per_head", "prefetch"]
    assert all(set(rung) >= ROW | {"name", "label"} for rung in ladder["rungs"])
    assert {(other["hbm_fraction"], other["pool"]) for other in ladder["others"]} == {
        (size, pool) for size in (0.054, 0.0684, 0.1, 0.25) for pool in ("global", "equal")
    } - {(0.0684, "global")}
    assert document["bounds"]["belady"] == max(rung["bound"] for rung in ladder["rungs"][:4])
    assert 0 < document["bounds"]["dense"] <= 0.0684


def test_ladder_in_front_of_other_sizes_with_subsets(well, store):
    document = well("ladder", "t.zarr", "--jobs", "1", "--hbm", "21KiB", "--subsets", "--json").document["ladder"]
    assert document["hbm_fraction"] == pytest.approx(0.25)
    for subsets in document["subsets"]:
        assert len(subsets["rows"]) == 16
        ratios = {tuple(entry["factors"]): entry["block_hit_ratio"] for entry in subsets["rows"]}
        everything = max(ratios, key=len)
        assert sum(subsets["shapley"].values()) == pytest.approx(ratios[everything] - ratios[()])


def test_ladder_leaves_out_sizes_that_a_short_recording_cannot_hold(well, here, save):
    save(synthetic_recording(context_tokens=160, steps=16), here / "short.zarr")
    ladder = well("ladder", "short.zarr", "--jobs", "1", "--hbm", "20%", "--json").document["ladder"]
    assert {other["hbm_fraction"] for other in ladder["others"]} == {0.2, 0.25}


def test_ladder_then_report(well, here, store):
    answer = well("ladder", "t.zarr", "--jobs", "1", "--json")
    (here / "run.json").write_text(answer.out)
    assert well("report", "run.json").out == "report.html\n"
    assert "<html" in (here / "report.html").read_text(encoding="utf-8")
    document = well("report", "run.json", "-o", "pages/r.html", "--png", "pictures", "--json").document
    assert document["report"] == "pages/r.html"
    assert document["pictures"]
    assert sorted(document["pictures"]) == sorted(f"pictures/{path.name}" for path in (here / "pictures").iterdir())
    assert all((here / name).read_bytes().startswith(b"\x89PNG") for name in document["pictures"])


def test_ladder_prints_its_tables(well, store):
    out = well("ladder", "t.zarr", "--jobs", "1").out
    assert "+ RoPE/EMA prefetch" in out
    assert "Block hits at every size and pool" in out
    assert "dense bound" in out


@pytest.mark.parametrize(
    "kind",
    ["models", "systems", "accelerators", "families", "policies", "selectors", "prefetchers", "summaries", "tasks", "tiers"],
)
def test_list(well, here, kind):
    document = well("list", kind, "--json").document
    assert set(document) == {kind}
    assert all(document[kind].values()), "each says what it is"
    lines = well("list", kind).out.splitlines()
    assert [line.split()[0] for line in lines] == list(document[kind])
    if kind == "policies":
        assert set(document[kind]) == set(POLICIES)


@pytest.mark.parametrize("kind", ["summaries", "tasks"])
def test_list_needs_no_compiler(entry, kind):
    hidden = f"import sys; sys.modules['numba'] = None; {entry[2]}"
    done = subprocess.run([*entry[:2], hidden, "list", kind], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("registry", [SUMMARIES, TASKS, TIERS], ids=lambda registry: registry.kind)
def test_an_unknown_name_is_sent_to_a_list_that_exists(well, here, registry):
    with pytest.raises(UnknownName, match=f"'kvpager list {registry.kind}' shows all"):
        registry["nothing-of-the-kind"]
    assert set(well("list", registry.kind, "--json").document[registry.kind]) == set(registry)


def test_version(well):
    assert well("--version").out == f"{package.__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_shows_an_example(well, command):
    out = " ".join(well(command, "--help").out.split())
    assert re.search(rf"Example: kvpager {command} \S", out)


def test_help_where_nothing_is_asked(kvpager):
    answer = kvpager()
    assert "Usage: kvpager" in answer.out
    assert all(f" {command} " in answer.out for command in COMMANDS)
    assert answer.err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_json(well, command):
    assert "--json" in well(command, "--help").out


def test_the_installed_script_is_this_entry():
    (script,) = [found for found in entry_points(group="console_scripts") if found.name == "kvpager"]
    assert script.load() is cli.main


def test_as_a_process(here, store, entry):
    done = subprocess.run([*entry, *REPLAY, "--policy", "lru", "--json"], capture_output=True, check=True)
    assert [row["policy"] for row in orjson.loads(done.stdout)["rows"]] == ["lru"]
    assert done.stderr == b"replay: 1/1\n"
    done = subprocess.run([*entry, *REPLAY, "--policy", "lur"], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"kvpager: unknown name 'lur'")
    assert done.stderr.count(b"\n") == 1


def test_a_reader_that_leaves_early_causes_no_traceback(here, store, entry):
    with subprocess.Popen([*entry, *REPLAY, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b"replay: 1/1\n"
        assert process.wait() == 1


def test_a_broken_law_is_no_bad_input(kvpager, store, monkeypatch):
    def broken(self, tick, done):
        raise InvariantError("planted")

    monkeypatch.setattr(Pager, "settle", broken)
    with pytest.raises(InvariantError, match="planted"):
        kvpager(*REPLAY)
