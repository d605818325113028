"""Bad input to model, replay, ladder, report and list: one line with object, place and remedy; exit 2; nothing written."""

import json
import shutil

import pytest
import zarr

REPLAY = ("replay", "t.zarr", "--jobs", "1")


def ids(cases):
    return [" ".join(case[0]) or "''" for case in cases]


POLICIES = [
    (["--policy", "lur"], ["'lur'", "policies", "lru, lfu", "kvpager list policies"]),
    (["--policy", "lru,emma"], ["'emma'", "did you mean ema"]),
    (["--policy", ","], ["','", "give at least one"]),
    (["--policy", "lru+snk"], ["wrapper 'snk'", "'lru+snk'", "sink"]),
    (["--policy", "lru+sink:many"], ["'sink:many'", "'lru+sink:many'", "whole number of tokens"]),
    (["--policy", "lru+recent:-3"], ["'recent:-3'", "whole number of tokens"]),
    (["--policy", "ema+max:layr"], ["'layr'", "'ema+max:layr'", "choose max or mean, layer or all"]),
    (["--policy", "lru:alpha=0.5"], ["'lru'", "'alpha=0.5'", "no settings"]),
    (["--policy", "ema:alfa=0.5"], ["'ema'", "'alfa=0.5'", "alpha=0.2"]),
    (["--policy", "ema:alpha=high"], ["'alpha=high'", "alpha=0.2"]),
    (["--policy", "ema:alpha=true"], ["'alpha=true'", "alpha=0.2"]),
    (["--policy", "ema:alpha=3"], ["alpha is 3", "above 0 and at most 1"]),
    (["--policy", "placement:weights=[1]"], ["weights [1]", "three"]),
    (["--policy", "placement:cuts=5"], ["cuts 5", "[0.3,0.6]"]),
    (["--policy", "placement:scale=rnak"], ["'rnak'", "raw, rank, max, uniform"]),
    (["--selector", "topp_mas"], ["'topp_mas'", "selectors", "topp_mass"]),
    (["--selector", "topp_mass:p=2"], ["p = 2", "at most 1"]),
    (["--prefetch", "blen"], ["'blen'", "prefetchers", "blend"]),
    (["--pool", "globl"], ["pool 'globl'", "global, layer or equal"]),
    (["--clock", "setp"], ["clock 'setp'", "layer or step"]),
    (["--granularity", "hed"], ["granularity 'hed'", "head or layer"]),
    (["--observe", "al"], ["observe 'al'", "read or all"]),
]


@pytest.mark.parametrize(("options", "words"), POLICIES, ids=ids(POLICIES))
def test_names_and_settings(refused, store, options, words):
    refused(*REPLAY, "--capacity", "20%", *options, words=words)


SIZES = [
    (["0"], ["'0'", "above 0 and at most 100%"]),
    (["0%"], ["'0%'", "above 0"]),
    (["-1"], ["'-1'", "above 0"]),
    (["-5%"], ["'-5%'", "above 0"]),
    (["-8MiB"], ["'-8MiB'", "negative"]),
    (["100.1%"], ["'100.1%'", "at most 100%"]),
    (["1TB"], ["'1TB'", "of all KV", "at most 100%"]),
    (["169"], ["'169'", "all 168 units", "give fewer"]),
    (["1.5"], ["'1.5'", "at most 100%"]),
    (["0.1%"], ["0.1 %", "give at least"]),
    (["64B"], ["give at least"]),
    (["1"], ["give at least"]),
    (["47G"], ["'47G'", "'G'", "ambiguous", "47GB"]),
    (["5 per cent"], ["'5 per cent'", "not a number with a unit", "5%"]),
    (["lots"], ["'lots'", "5%"]),
    (["nan"], ["'nan'"]),
    ([""], ["''", "give at least one"]),
    (["20%,0.1%"], ["0.1 %", "give at least"]),
]


@pytest.mark.parametrize(("sizes", "words"), SIZES, ids=ids(SIZES))
def test_sizes(refused, store, sizes, words):
    refused(*REPLAY, f"--capacity={sizes[0]}", words=words)


@pytest.mark.parametrize(("size", "words"), [("0.1%", ["0.1 %", "give at least"]), ("47G", ["ambiguous"]), ("200%", ["at most"])])
def test_sizes_of_the_ladder_and_of_tier_2(refused, store, size, words):
    refused("ladder", "t.zarr", "--jobs", "1", "--hbm", size, words=words)
    if size != "0.1%":  # a tier 2 of no unit is none
        refused(*REPLAY, "--dram", size, words=words)


USAGE = [
    (["replay"], ["Missing argument 'trace'", "kvpager replay --help"]),
    (["replay", "t.zarr", "--polcy", "lru"], ["--polcy", "--policy", "kvpager replay --help"]),
    (["replay", "t.zarr", "--seed", "one"], ["--seed", "kvpager replay --help"]),
    (["replay", "t.zarr", "--jobs", "-2"], ["--jobs", "kvpager replay --help"]),
    (["replay", "t.zarr", "again"], ["again", "kvpager replay --help"]),
    (["demo", "--quik"], ["--quik", "--quick", "kvpager demo --help"]),
    (["record", "--out", "x.zarr"], ["Missing option '--text'", "kvpager record --help"]),
    (["replya"], ["'replya'", "'replay'", "kvpager --help"]),
    (["list", "polices"], ["'polices'", "policies, selectors"]),
]


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=ids(USAGE))
def test_options_and_commands(refused, store, arguments, words):
    refused(*arguments, words=words)


def change_attributes(store, **changes):
    metadata = json.loads((store / "zarr.json").read_text())
    metadata["attributes"] |= changes
    (store / "zarr.json").write_text(json.dumps(metadata))


def foreign(store):
    shutil.rmtree(store)
    zarr.create_group(store).create_array("mass", shape=(3,), dtype="float16")


DAMAGES = {
    "missing": (shutil.rmtree, ["does not exist", "kvpager record"]),
    "no zarr": (lambda store: (store / "zarr.json").unlink(), ["not a Zarr group", "kvpager record"]),
    "foreign": (foreign, ["another program", "kvpager record"]),
    "newer": (lambda store: change_attributes(store, version=99), ["format version 99", "update kvpager"]),
    "truncated": (lambda store: (store / "steps_done").unlink(), ["truncated", "record anew"]),
    "too short": (lambda store: (store / "steps_done").write_text("90"), ["contradict", "record anew"]),
    "gap": (lambda store: (store / "mass" / "c.1.0.0.0").unlink(), ["'mass'", "step 16 is missing", "record anew"]),
    "cut": (lambda store: (store / "bound" / "c.0.0.0.0").write_bytes(b"x"), ["'bound'", "corrupt", "record anew"]),
}


@pytest.mark.parametrize("command", ["replay", "ladder"])
@pytest.mark.parametrize(("damage", "words"), DAMAGES.values(), ids=DAMAGES)
def test_recordings(refused, store, command, damage, words):
    damage(store)
    refused(command, "t.zarr", "--jobs", "1", words=["'t.zarr'", *words])


def test_a_file_is_no_recording(refused, here):
    (here / "t.zarr").write_text("{}")
    refused("replay", "t.zarr", words=["'t.zarr'", "kvpager record"])


RUNS = {
    "missing": (None, ["'run.json'", "cannot be read", "kvpager demo"]),
    "no json": (b"{", ["'run.json'", "not JSON", "kvpager demo"]),
    "binary": (b"\xff\xfe\x00", ["'run.json'", "not JSON", "kvpager demo"]),
    "list": (b"[1]", ["JSON object", "kvpager demo"]),
    "foreign": (b'{"rows": []}', ["ladder", "kvpager demo"]),
    "edited": (b'{"ladder": {"pool": "global", "rungs": []}}', ["ladder", "run"]),
}


@pytest.mark.parametrize(("content", "words"), RUNS.values(), ids=RUNS)
def test_runs_to_report_on(refused, here, content, words):
    if content is not None:
        (here / "run.json").write_bytes(content)
    refused("report", "run.json", words=words)


CONFIGS = {
    "missing": (None, ["'config.json'", "give a config.json"]),
    "no json": ("{", ["'config.json'", "not JSON", "Hugging Face"]),
    "list": ("[]", ["'config.json'", "not a JSON object"]),
    "unknown": ('{"model_type": "gpt2"}', ["'gpt2'", "llama", "qwen3"]),
    "lacking": ('{"model_type": "llama"}', ["num_hidden_layers"]),
}


@pytest.mark.parametrize(("content", "words"), CONFIGS.values(), ids=CONFIGS)
def test_model_configs(refused, here, content, words):
    if content is not None:
        (here / "config.json").write_text(content)
    refused("model", "config.json", words=words)


@pytest.mark.parametrize("context", ["0", "-4", "1.5", "12G", "many", "K"])
def test_context_lengths(refused, here, context):
    (here / "config.json").write_text('{"model_type": "llama"}')
    refused("model", "config.json", f"--context={context}", words=[repr(context), "128K"])


def test_places_that_cannot_be_written(refused, here, store):
    (here / "file").write_text("x")
    refused("demo", "--quick", "--out", "file/out", words=["'file/out'", "--out"])
    (here / "folder" / "attention.zarr").mkdir(parents=True)
    refused("demo", "--quick", "--out", "folder", words=["'folder/attention.zarr'", "not a recording", "choose another"])


def test_what_a_library_says_still_is_one_line(refused, monkeypatch, store):
    def fail(*args, **kwargs):
        raise ValueError("first\n\n  second")

    monkeypatch.setattr(zarr, "open_group", fail)
    refused("replay", "t.zarr", words=["'t.zarr'", "first second"])
