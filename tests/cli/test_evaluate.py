"""`kvpager evaluate` on a tiny random model: its document, exact mode against dense, what is dropped and what is refused."""

import pytest

SEQUEL = "perplexity:trials=1,tokens=90,sequel=12"
RUN = {"read", "model", "mode", "access", "hbm", "dram", "policy", "block_size", "weights_sha256", "evidence", "machine",
       "versions", "command", "date", "tasks", "dropped", "question"}  # fmt: skip


def test_selectors_stand_beside_each_other_and_chance_is_dropped(well, here, tiny):
    selectors = ("--selector", "outlier_mean", "--selector", "recent_only:read_fraction=0.5")
    tasks = f"needle:trials=1,needles=2,tokens=300,{SEQUEL}"
    document = well("evaluate", "--model", tiny, "--tasks", tasks, *selectors, "--hbm", "60%", "--read", "20%", "--json").document
    assert set(document) == RUN
    assert [one["task"] for one in document["dropped"]] == ["needle:trials=1,needles=2,tokens=300"]
    (task,) = document["tasks"]
    assert task["task"] == SEQUEL
    assert task["foretold_tokens"] > 8
    assert list(task["runners"]) == ["outlier_mean:read_fraction=0.2", "recent_only:read_fraction=0.5"]
    assert all(row["kl_mean"] > 1e-6 and 0 < row["read_mass"] < 1 for row in task["runners"].values())
    assert "20 %" in document["access"]["outlier_mean:read_fraction=0.2"]
    assert not list(here.iterdir()), "the temporary stores are gone"


def test_exact_mode_loses_nothing(well, here, tiny):
    asked = ("--mode", "exact", "--tasks", SEQUEL, "--hbm", "60%", "--keep", "trials", "--json")
    document = well("evaluate", "--model", tiny, *asked).document
    assert len(list((here / "trials").iterdir())) == 2, "dense attention's and exact mode's"
    (row,) = document["tasks"][0]["runners"].values()
    assert abs(row["kl_mean"]) < 1e-6
    assert row["same_next_token"] == 1
    assert abs(row["perplexity_change"]) < 1e-4
    assert document["read"] is None


def test_people_get_a_table(well, here, tiny):
    out = well("evaluate", "--model", tiny, "--tasks", SEQUEL, "--selector", "key_bound", "--hbm", "60%").out
    for part in ("perplexity", "dense", "key_bound", "of largest key", "evidence: measured"):
        assert part in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mode", "dense"], ["'dense'", "exact or selective"]),
        (["--mode", "exact", "--selector", "key_bound"], ["--selector", "exact"]),
        (["--tasks", "needles"], ["'needles'", "needle"]),
        (["--tasks", "needle:depth=1"], ["depth=1", "does not take"]),
        (["--selector", "topk_mass"], ["topk_mass", "mass of unread blocks"]),
        (["--read", "0"], ["'0'", "above 0"]),
    ],
)
def test_bad_input_is_refused(refused, options, words):
    refused("evaluate", *options, words=words)
