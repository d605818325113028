"""``kvpager convert``, ``replay`` and ``curve`` on request traces."""

import gzip
import json

import numpy as np
import pytest

from kvpager.replay.requests import Case, replay_requests
from kvpager.testing.requests import document_requests, session_requests
from kvpager.traces.formats import load_requests
from kvpager.traces.requeststore import write_requests


def lines(*requests):
    """Mooncake lines of prompts of full blocks of 512 tokens."""
    return "".join(
        json.dumps({"timestamp": 1000 * at, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}) + "\n"
        for at, ids in enumerate(requests)
    )


@pytest.fixture
def mooncake(here):
    (here / "m.jsonl").write_text(lines([0, 1, 2], [0, 1, 3], [0, 1, 2, 4]))
    return "m.jsonl"


@pytest.fixture
def sessions(here):
    trace = session_requests()
    write_requests(here / "s.parquet", trace)
    return trace


# ── convert ──────────────────────────────────────────────────────────────────────────────────────


def test_convert_writes_what_loads_as_the_same(here, well, mooncake):
    found = well("convert", mooncake, "-o", "m.parquet", "--json").document
    assert (found["requests"], found["blocks"], found["distinct_blocks"], found["block_size"]) == (3, 10, 5, 512)
    assert found["chained"]
    assert found["evidence"] == "measured"
    assert "3 requests, 10 blocks of 512 tokens, 5 distinct" in well("convert", mooncake, "-o", "n.parquet").out
    first, second = load_requests(here / mooncake), load_requests(here / "m.parquet")
    np.testing.assert_array_equal(first.blocks, second.blocks)
    np.testing.assert_array_equal(first.time_s, second.time_s)


def test_convert_to_oracle_general_and_back_keeps_the_accesses(here, well, sessions):
    well("convert", "s.parquet", "-o", "s.oracleGeneral")
    well("convert", "s.oracleGeneral", "-o", "back.parquet", "--format", "oracle-general")
    np.testing.assert_array_equal(load_requests(here / "back.parquet").blocks, sessions.blocks)


def test_skipped_lines_are_counted(here, kvpager):
    (here / "m.jsonl").write_text(lines([0, 1]) + "{\n" + lines([0, 1]))
    answer = kvpager("convert", "m.jsonl", "-o", "m.parquet", "--skip-bad", 1, "--json")
    assert answer.code == 0
    assert answer.document["source"]["skipped"]["count"] == 1


def test_bad_traces_are_refused(here, refused, mooncake):
    (here / "broken.jsonl").write_text(lines([0, 1]) + '{"timestamp": 1}\n')
    (here / "back.jsonl").write_text("".join(reversed(lines([0], [1]).splitlines(keepends=True))))
    (here / "empty.jsonl").write_text("")
    whole = gzip.compress(lines(*[[at] for at in range(900)]).encode())
    (here / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    refused("convert", "none.jsonl", "-o", "x.parquet", words=["none.jsonl"])
    refused("convert", "broken.jsonl", "-o", "x.parquet", "--format", "mooncake", words=["broken.jsonl", "line 2"])
    refused("convert", "back.jsonl", "-o", "x.parquet", "--format", "mooncake", words=["back.jsonl"])
    refused("convert", "empty.jsonl", "-o", "x.parquet", "--format", "mooncake", words=["empty.jsonl", "no request"])
    refused("convert", "cut.jsonl.gz", "-o", "x.parquet", "--format", "mooncake", words=["cut.jsonl.gz", "cut short"])
    refused("convert", mooncake, "-o", "x.csv", words=["x.csv", ".parquet"])
    refused("convert", mooncake, "-o", "x.parquet", "--format", "moncake", words=["'moncake'", "mooncake"])


def test_nothing_is_overwritten_unasked(here, refused, well, mooncake):
    for name in ("m.parquet", "m.oracleGeneral"):
        well("convert", mooncake, "-o", name)
        refused("convert", mooncake, "-o", name, words=[name, "exists"])
        well("convert", mooncake, "-o", name, "--overwrite")


def test_a_parquet_file_cut_short_is_refused(here, refused, sessions):
    content = (here / "s.parquet").read_bytes()
    (here / "s.parquet").write_bytes(content[:-100])
    refused("replay", "s.parquet", words=["s.parquet", "cut short"])


# ── replay ───────────────────────────────────────────────────────────────────────────────────────


def test_replay_of_requests_is_the_library_s(well, sessions):
    answer = well(
        "replay", "s.parquet", "--policy", "lru,prefix-lru,prefix-opt", "--capacity", "10%,200", "--warmup", 0.5, "--json"
    )
    sizes = (int(0.1 * sessions.distinct), 200)
    cases = [Case(policy, size) for size in sizes for policy in ("lru", "prefix-lru", "prefix-opt")]
    expected = replay_requests(sessions, cases, warmup=0.5)
    found = answer.document
    assert found["rows"] == json.loads(json.dumps(expected))
    assert (found["evidence"], found["trace"]["requests"]) == ("simulated", len(sessions))
    for key in ("policy", "capacity_blocks", "accesses", "block_hits", "block_hit_ratio", "prefix_hit_tokens", "input_tokens"):
        assert key in found["rows"][0]


def test_replay_prints_a_table_with_what_it_means(well, mooncake):
    out = well("replay", mooncake, "--policy", "lru,prefix-lru", "--capacity", "100%").out
    for needle in ("3 requests", "prefix-lru", "An infinite cache: 50.0 % of blocks", "by block: each access", "simulated"):
        assert needle in out


def test_sizes_in_bytes_need_a_model(well, refused, mooncake):
    refused("replay", mooncake, "--capacity", "1GiB", words=["'1GiB'", "--model"])
    found = well("replay", mooncake, "--capacity", "192MiB", "--model", "llama-3.1-8b", "--json").document
    assert found["block_bytes"] == 128 * 1024 * 512
    assert found["rows"][0]["capacity_blocks"] == 3


def test_replay_over_tiers_adds_up(well, sessions):
    found = well(
        "replay", "s.parquet", "--tiers", "hbm=5%,dram=20%,nvme", "--model", "llama-3.1-8b", "--system", "h200-host-cxl", "--json"
    ).document
    tiers, whole = found["hierarchy"]["tiers"], found["hierarchy"]
    assert sum(tier["block_hits"] for tier in tiers) == whole["block_hits"] == whole["accesses"] - whole["recomputed_blocks"]
    seconds = found["seconds"]
    assert seconds["fetched_blocks"] + seconds["declined_blocks"] + seconds["missing_blocks"] == whole["accesses"]
    assert seconds["total_s"] <= seconds["no_reuse_s"]
    assert found["wear"]["tier"] == "nvme"


def test_tiers_are_told_in_words(well, sessions):
    out = well(
        "replay",
        "s.parquet",
        "--tiers",
        "hbm=1GiB,nvme",
        "--mode",
        "exclusive",
        "--semantics",
        "block",
        "--model",
        "llama-3.1-8b",
    ).out
    for needle in ("Tiers, exclusive, block semantics", "together", "no limit", "infinite", "a block stands in one tier"):
        assert needle in out


WRONG = [
    (["--tiers", "=5%"], ["needs a name"]),
    (["--tiers", "hbm=5%,hbm=6%"], ["twice"]),
    (["--tiers", "hbm=1GiB"], ["'1GiB'", "--model"]),
    (["--tiers", "hbm=5%", "--quota", "dram/x=3%"], ["dram/x=3%", "TIER/TENANT"]),
    (["--tiers", "hbm=5%", "--quota", "hbm/x=3%"], ["'x'", "no tenant"]),
    (["--tiers", "hbm=5%", "--policy", "lru"], ["--policy", "one cache"]),
    (["--tiers", "hbm=5%", "--mode", "exclusiv"], ["'exclusiv'", "inclusive or exclusive"]),
    (["--tiers", "hbm=5%,nvme", "--system", "h200-host-cxl"], ["--model"]),
    (["--tiers", "hbm=5%,tape", "--system", "h200-host-cxl", "--model", "llama-3.1-8b"], ["tape"]),
    (["--mode", "exclusive"], ["--mode", "--tiers"]),
    (["--capacity", "1.5%x"], ["1.5%x"]),
    (["--policy", "lfru"], ["'lfru'", "lru"]),
    (["--policy", "prefix-arc"], ["'arc'", "prefix policies"]),
    (["--warmup", "1"], ["warm-up", "below 1"]),
    (["--pool", "layer"], ["request trace", "--pool"]),
    (["--model", "llama-9"], ["llama-9"]),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=lambda value: " ".join(value)[:50])
def test_wrong_asks_are_refused(refused, sessions, options, words):
    refused("replay", "s.parquet", *options, words=words)


def test_ids_that_are_not_chained_have_no_prefixes(well, refused, sessions):
    well("convert", "s.parquet", "-o", "s.oracleGeneral")
    well("replay", "s.oracleGeneral", "--format", "oracle-general")
    refused("replay", "s.oracleGeneral", "--format", "oracle-general", "--policy", "prefix-lru", words=["chain"])


def test_arrivals_without_blocks_cannot_be_replayed(here, refused):
    (here / "a.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    refused("replay", "a.csv", words=["no blocks"])


def test_options_of_requests_are_none_of_a_recording(refused, store):
    refused("replay", "t.zarr", "--tiers", "hbm=5%", words=["--tiers", "request traces"])


# ── curve ────────────────────────────────────────────────────────────────────────────────────────


def test_curve_draws_and_tells(here, well):
    write_requests(here / "d.parquet", document_requests())
    found = well(
        "curve", "d.parquet", "--policy", "ema", "--capacity", "1%,20%", "--model", "llama-3.1-8b", "-o", "d.png", "--json",
        "--tiers", "hbm=1GiB,dram=30GiB",
    ).document  # fmt: skip
    assert (here / "d.png").read_bytes().startswith(b"\x89PNG")
    assert {row["policy"] for row in found["rows"]} == {"prefix-lru", "prefix-ema", "prefix-opt"}
    assert [mark["capacity_bytes"] >> 30 for mark in found["tiers"]] == [1, 31]
    ratios = [point["prefix_token_hit_ratio"] for point in found["lru"]["points"]]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(found["ceiling"]["prefix_token_hit_ratio"])
    lru = [row for row in found["rows"] if row["policy"] == "prefix-lru"]
    by_size = {point["capacity_blocks"]: point["prefix_token_hit_ratio"] for point in found["lru"]["points"]}
    assert all(row["prefix_token_hit_ratio"] == pytest.approx(by_size[row["capacity_blocks"]]) for row in lru)


def test_a_page_opens_without_a_network_and_a_drawing_is_text(here, well, mooncake):
    out = well("curve", mooncake, "--semantics", "block", "-o", "m.html").out
    assert "An infinite cache: 50.0 % of blocks" in out
    assert "Picture: m.html" in out
    page = (here / "m.html").read_text()
    assert "<script src=" not in page
    well("curve", mooncake, "-o", "m.svg")
    assert "infinite cache" in (here / "m.svg").read_text()


def test_wrong_curves_are_refused(refused, mooncake):
    refused("curve", mooncake, "-o", "m.gif", words=["m.gif", ".png"])
    refused("curve", mooncake, "--semantics", "token", words=["'token'", "block or prefix"])
    refused("curve", mooncake, "--tiers", "hbm", words=["'hbm'", "no size"])
    refused("curve", mooncake, "--capacity", "-5", words=["-5"])


def test_a_long_trace_is_sampled_from_its_file_piece_by_piece(well, sessions, monkeypatch):
    monkeypatch.setattr("kvpager.replay.curve.SAMPLE_ABOVE", 1000)
    found = well("curve", "s.parquet", "-o", "s.svg", "--json").document
    assert "sample" in found["lru"]["method"]
    assert found["rows"] == []
    assert (found["trace"]["requests"], found["trace"]["distinct_blocks"]) == (len(sessions), sessions.distinct)
    assert all("prefix_token_hit_ratio_error" in point for point in found["lru"]["points"])
