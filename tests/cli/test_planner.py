"""The planner's commands as a user meets them: answers, refusals in one line, light imports, tables within 80 columns."""

import functools
import json
import subprocess
import sys

import pytest
from tests.stored import save_recording

from kvpager.hardware import load
from kvpager.hardware import probe as probing
from kvpager.models import builtin_names
from kvpager.testing.recordings import synthetic_recording

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA = ("--model", "llama-3.1-70b")
PLAN = ("plan", *LLAMA, "--system", "note-000-cxl", "--users", "16", "--read", "5.55%")
COMPARE = ("compare", "note-000-offload", "note-000-cxl", *LLAMA, "--users", "16", "--read", "5.55%")
BREAKEVEN = ("breakeven", *LLAMA, "--accelerator", "b200")


def test_model(well, here):
    (here / "config.json").write_text(json.dumps(CONFIG))
    document = well("model", "config.json", "--context", "128K", "--json").document
    assert document["family"] == "llama"
    assert document["kv_bytes_per_token"] == 327_680
    assert document["bytes"]["context_tokens"] == 131_072
    assert document["bytes"]["architectural"] == 42_949_672_960
    assert document["bytes"]["engine_reserved"] >= document["bytes"]["architectural"]
    assert "40 GiB = 42.95 GB  [vendor-spec]" in well("model", "llama-3.1-70b").out


def test_model_by_dtype_and_rank(well, here):
    half = well("model", "llama-3.1-70b", "--dtype", "fp8", "--json").document["bytes"]["architectural"]
    rank = well("model", "llama-3.1-70b", "--tp", "4", "--json").document["bytes"]["architectural"]
    assert (half, rank) == (42_949_672_960 // 2, 42_949_672_960 // 4)
    lines = well("model", "gpt-oss-20b", "--explain", "--json").document["explain"]
    assert lines[0].startswith("architectural_bytes = 3.224 GB = sum over layers")
    assert "engine_reserved_bytes" in lines[1]


def test_plan(well, here):
    document = well(*PLAN, "--json", "--explain").document
    answers = document["answers"]
    assert answers["users_by_capacity"]["value"] == 372
    assert answers["users_at_slo"]["low"] <= answers["users_at_slo"]["value"] <= answers["users_at_slo"]["high"]
    assert document["step"]["step_s"]["formula"] == "max(compute_s, memory_s) + exposed_s"
    assert set(document["step"]["step_s"]["inputs"]) == {"compute_s", "memory_s", "exposed_s"}
    assert any(line.startswith("users_at_slo = ") for line in document["explain"])
    assert (
        well("plan", *LLAMA, "--system", "note-000-cxl", "--json").document["answers"]["users_at_slo"].startswith("not derivable")
    )


def test_plan_reads_well_at_80_columns(well, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = well(*PLAN).out
    assert max(map(len, out.splitlines()[1:])) <= 80
    for words in ("users at SLO", "binding constraint: service level", "Not counted", "Assumed, not calibrated", "assumption"):
        assert words in out
    explained = well(*PLAN, "--explain").out
    assert "How this was derived:" in explained
    assert "  weights_bytes = 141.1 GB = params x bytes of a weight  [" in explained


def test_an_assumption_can_be_replaced(well, here):
    ideal = well(*PLAN, "--assume", "placement=1", "--assume", "lookahead=1", "--json").document
    assert ideal["assumptions"]["placement"]["value"] == 1
    assert ideal["answers"]["token_s"]["value"] < well(*PLAN, "--json").document["answers"]["token_s"]["value"]


def test_a_trace_gives_the_hits(well, here):
    save_recording(synthetic_recording(seed=1), here / "t.zarr")
    traced = ("--trace", "t.zarr", "--read", "20%", "--context", "128K", "--users", "4")
    document = well("plan", *LLAMA, "--system", "note-000-cxl", *traced, "--json").document
    read = document["asked"]["read_fraction"]
    assert "simulated" in read["labels"]
    assert "replay of" in read["source"]
    assert document["step"]["miss_share"]["high"] < 1


def test_a_plan_gives_its_curve_to_the_next(well, here):
    """The recording is not needed again, and the answer is the same, with the same chain."""
    save_recording(synthetic_recording(seed=1), here / "t.zarr")
    question = ("plan", *LLAMA, "--system", "note-000-cxl", "--context", "128K", "--users", "4", "--json", "--explain")
    first = well(*question, "--trace", "t.zarr", "--read", "20%")
    (here / "first.json").write_text(first.out)
    again = well(*question, "--curve", "first.json").document
    assert again["answers"]["users_at_slo"] == first.document["answers"]["users_at_slo"]
    assert again["curves"][0]["byte_hit_ratios"] == first.document["curves"][0]["byte_hit_ratios"]
    lines = "\n".join(again["explain"])
    for words in ("users_at_slo = ", "token_s of that many users", "first.json: replay of synthetic", "between the points"):
        assert words in lines
    assert "no hit curve given" not in lines
    (here / "again.json").write_text(json.dumps(again))
    assert well(*question, "--curve", "again.json", "--read", "20%").document["answers"] == again["answers"]
    swept = well("plan", *LLAMA, "--system", "note-000-cxl", "--curve", "first.json", "--sweep", "users=4", "--json").document
    assert swept["columns"]["token_s"] == [again["answers"]["token_s"]["value"]]
    saving = well(*COMPARE[:-2], "--curve", "first.json", "--json").document
    assert saving["asked"]["read_fraction"]["value"] == 0.2


def test_sweep(well, here):
    options = ("plan", *LLAMA, "--system", "b200-host-cxl", "--read", "10%", "--sweep", "context=4K,32K,users=1:8")
    document = well(*options, "--json").document
    assert document["points"] == 16
    columns = document["columns"]
    assert sorted(set(columns["context_tokens"])) == [4096, 32768]
    one = well(
        "plan", *LLAMA, "--system", "b200-host-cxl", "--read", "10%", "--context", "32K", "--users", "8", "--json"
    ).document
    assert columns["token_s"][-1] == one["answers"]["token_s"]["value"]
    out = well(*options[:-1], "context=4K:64K:4K,users=1:5").out
    assert "50 more points" in out


def test_compare(well, here, monkeypatch):
    document = well(*COMPARE, "--json").document
    owning = [row["owning"] for row in document["rows"]]
    assert [round(one["capex_usd"]["value"]) for one in owning] == [160_000, 103_000]
    assert [round(one["tco_usd"]["value"]) for one in owning] == [177_219, 111_389]
    assert [one["power_w"]["value"] for one in owning] == [3900, 1900]
    monkeypatch.setenv("COLUMNS", "80")
    out = well(*COMPARE).out
    for words in ("$160,000", "$103,000", "$177,219", "$111,389", "3.9 kW", "1.9 kW", "systems for all users"):
        assert words in out
    assert out.index("Not counted for note-000-cxl") > out.index("$111,389")
    assert "tco_usd = $111,389" in well(*COMPARE, "--explain").out


def test_breakeven(well, here, monkeypatch):
    document = well(*BREAKEVEN, "--json").document
    orders = document["note"]["orders_of_magnitude"]
    assert (round(orders["low"], 2), round(orders["high"], 2)) == (1.74, 2.62)
    assert document["here"]["note_formula"]["orders_of_magnitude"]["high"] < 2
    assert document["note"]["floor_s"]["value"] == 0.0175
    assert set(document["attention_share"]) == {"50,000", "131,072"}
    assert document["nvme"]["note"]["ratios"]
    monkeypatch.setenv("COLUMNS", "80")
    out = well(*BREAKEVEN).out
    assert max(map(len, out.splitlines())) <= 80
    for words in ("1.74 to 2.62 orders of magnitude", "17.5 ms", "NVMe", "Decision: fetch"):
        assert words in out
    assert "floor_s = 17.5 ms" in well(*BREAKEVEN, "--explain").out


def test_probe(well, here, monkeypatch):
    quick = {"sizes": [4096], "depths": [1], "max_bytes": 8 << 20, "memory_bytes": 1 << 20}
    monkeypatch.setattr(probing, "probe", functools.partial(probing.probe, **quick))
    document = well("probe", "--seconds", "1", "--json", "--out", "machine.toml").document
    assert {"this-dram", "this-disk"} <= set(document["tiers"])
    assert "this-disk" in load([here / "machine.toml"]).tiers
    assert [path.name for path in here.iterdir()] == ["machine.toml"]


def test_list_knows_models_and_systems(well, here):
    assert set(well("list", "models", "--json").document["models"]) == set(builtin_names())
    assert "note-000-cxl" in well("list", "systems").out
    assert "b200" in well("list", "accelerators").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("model", "llama-3.1-7b"), ["unknown model 'llama-3.1-7b'", "llama-3.1-70b"]),
        (("model", "llama-3.1-8b", "--dtype", "fp7"), ["'fp7'", "fp8"]),
        (("model", "llama-3.1-8b", "--tp", "3"), ["tp = 3"]),
        (("plan", *LLAMA, "--system", "note-000-cxi"), ["'note-000-cxi'", "note-000-cxl"]),
        ((*PLAN, "--context", "0"), ["token count '0'"]),
        ((*PLAN, "--context", "1T"), ["token count '1T'"]),
        ((*PLAN, "--read", "0%"), ["size '0%'"]),
        ((*PLAN, "--slo", "100"), ["100"]),
        ((*PLAN, "--slo", "5GB"), ["service level '5GB'", "100ms"]),
        ((*PLAN, "--users", "0"), ["at least 1"]),
        ((*PLAN, "--assume", "mfu"), ["--assume 'mfu'", "mfu=0.5"]),
        ((*PLAN, "--assume", "mfx=1"), ["no assumption 'mfx'", "kv_efficiency"]),
        ((*PLAN, "--sweep", "users"), ["--sweep 'users'", "context=4K"]),
        ((*PLAN, "--sweep", "rows=1"), ["no axis 'rows'", "users"]),
        ((*PLAN, "--sweep", "users=9:1"), ["no range"]),
        ((*PLAN, "--catalogue", "none.toml"), ["none.toml", "cannot be read"]),
        ((*PLAN, "--params", "70"), ["--params '70'"]),
        (("plan", *LLAMA, "--system", "note-000-cxl", "--trace", "t.zarr"), ["--trace 't.zarr'", "--read"]),
        (("plan", *LLAMA, "--system", "note-000-cxl", "--curve", "none.json"), ["curve file 'none.json' cannot be read"]),
        ((*PLAN, "--trace", "t.zarr", "--curve", "a.json"), ["both give hits"]),
        (("compare", "b200-hbm", *LLAMA), ["two different systems"]),
        (("breakeven", *LLAMA, "--accelerator", "b20"), ["'b20'", "b200"]),
        ((*BREAKEVEN, "--tokens", "0"), ["at least 1 token"]),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_in_one_line(refused, here, arguments, words):
    refused(*arguments, words=words)


def test_a_config_without_parameters_asks_for_them(refused, well, here):
    (here / "config.json").write_text(json.dumps(CONFIG))
    refused("plan", "--model", "config.json", "--system", "b200-hbm", words=["how many parameters", "--params 8.03e9"])
    assert well("plan", "--model", "config.json", "--system", "b200-hbm", "--params", "70e9", "--json").document["answers"][
        "fits"
    ]


@pytest.mark.parametrize("arguments", [PLAN, COMPARE, BREAKEVEN, ("model", "llama-3.1-70b")], ids=lambda value: value[0])
def test_no_planner_command_loads_anything_heavy(arguments, here):
    heavy = {"torch", "numba", "transformers", "zarr", "altair", "jinja2", "joblib", "pandas"}
    code = f"""
import sys
sys.argv = {["kvpager", *arguments, "--json"]!r}
from kvpager.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
print(sorted({heavy!r} & {{name.split(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "[]"
