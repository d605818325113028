"""Outcomes follow the document's numbers, in both directions, and never stand in the code."""

import pytest

from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE, SUPPORTED
from kvpager.claims.notes import CLAIMS, LADDER_RUNGS, closing_paragraph, judge

STATED = [claim for _, claim in LADDER_RUNGS.values()]


def ladder(hits, bounds=(1.0,) * 5, pool="global", size=0.0684, **more):
    names = zip(LADDER_RUNGS, hits, bounds, strict=True)
    rungs = [{"name": n, "policy": n, "pool": pool, "hbm_fraction": size, "block_hit_ratio": h, "bound": b} for n, h, b in names]
    return {"hbm_fraction": size, "pool": pool, "rungs": rungs, **more}


def outcome(doc, claim):
    return next(verdict for verdict in judge(doc) if verdict["id"] == claim)


def locality(newest, sink=0.25, heads=0.16):
    return {
        "evidence": "measured",
        "newest_10_percent": newest,
        "newest_10_percent_without_first_4": newest / (1 - sink),
        "first_4": sink,
        "q_heads_newest_10_at_least_80": heads,
        "absolute": {"edges": [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024], "mean": [0.1, 0.08, *[0.02] * 8, 0.512]},
    }


def heads(recency, anchor):
    kinds = {"recency": {"share": recency}, "anchor": {"share": anchor}, "other": {"share": 1 - recency - anchor}}
    return {"evidence": "measured", "q_heads": {"kinds": kinds, "without_sink": kinds}}


def test_facts_of_the_note():
    assert STATED == [0.72, 0.80, 0.87, 0.93, 0.97]
    assert {*CLAIMS} >= {
        "ladder-values",
        "ladder-rope-4",
        "locality-80-10",
        "head-split",
        "hot-97-plausible",
    }


def test_every_claim_is_judged_even_on_an_empty_document():
    verdicts = judge({})
    assert [v["id"] for v in verdicts] == [*CLAIMS]
    assert {v["outcome"] for v in verdicts} == {NOT_SETTLEABLE}
    assert all(v["finding"].startswith("this run has no ") for v in verdicts)


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        (0.0, SUPPORTED),
        (0.03, SUPPORTED),
        (-0.03, SUPPORTED),
        (-0.05, INCONCLUSIVE),
        (-0.061, CONTRADICTED),
        (-0.3, CONTRADICTED),
    ],
)
def test_ladder_follows_its_tolerance(off, expected):
    hits = [*STATED]
    hits[1] += off
    assert outcome({"ladder": ladder(hits)}, "ladder-values")["outcome"] == expected


def test_ladder_takes_the_pool_that_comes_nearest():
    poor = [0.0, 0.02, 0.4, 0.45, 0.45]
    doc = {"ladder": ladder(poor, others=[ladder(STATED, pool="equal")])}
    assert outcome(doc, "ladder-values")["outcome"] == SUPPORTED
    other_size = {"ladder": ladder(poor, others=[ladder(STATED, pool="equal", size=0.25)])}
    assert outcome(other_size, "ladder-values")["outcome"] == CONTRADICTED


def test_ladder_counts_claims_that_no_policy_can_reach():
    finding = outcome({"ladder": ladder([0.1] * 5, bounds=[0.75, 0.79, 0.87, 0.5, 0.5])}, "ladder-values")["finding"]
    assert "3 of the 5 stated values above" in finding
    assert "10.0 / 10.0 / 10.0 / 10.0 / 10.0 %" in finding


def test_ladder_without_all_rungs_is_not_settled():
    doc = {"ladder": ladder(STATED)}
    doc["ladder"]["rungs"].pop()
    assert outcome(doc, "ladder-values")["outcome"] == NOT_SETTLEABLE
    assert outcome(doc, "ladder-rope-4")["outcome"] == NOT_SETTLEABLE


@pytest.mark.parametrize(
    ("gain", "expected"), [(0.04, SUPPORTED), (0.032, SUPPORTED), (0.022, INCONCLUSIVE), (-0.002, CONTRADICTED)]
)
def test_prefetch_gain(gain, expected):
    verdict = outcome({"ladder": ladder([0.1, 0.1, 0.1, 0.5, 0.5 + gain])}, "ladder-rope-4")
    assert verdict["outcome"] == expected
    assert f"{100 * abs(gain):.1f} points" in verdict["finding"]


@pytest.mark.parametrize(
    ("best", "bound", "expected"),
    [(0.97, 1.0, SUPPORTED), (0.45, 0.55, CONTRADICTED), (0.45, 0.99, INCONCLUSIVE), (0.96, 0.965, INCONCLUSIVE)],
)
def test_hot_set_needs_policy_or_bound(best, bound, expected):
    doc = {"ladder": ladder([0.1, 0.1, 0.1, best, 0.1], bounds=(bound,) * 5)}
    assert outcome(doc, "hot-97-plausible")["outcome"] == expected


def test_hot_set_ignores_larger_caches_and_clairvoyants():
    large = {"policy": "ema", "pool": "global", "hbm_fraction": 0.25, "block_hit_ratio": 0.98}
    belady = {"policy": "belady", "pool": "global", "hbm_fraction": 0.0684, "block_hit_ratio": 0.98}
    doc = {"ladder": ladder([0.1] * 5, bounds=(0.5,) * 5), "curves": [large]}
    assert outcome(doc, "hot-97-plausible")["outcome"] == CONTRADICTED
    doc["curves"] = [belady]
    assert outcome(doc, "hot-97-plausible")["outcome"] == INCONCLUSIVE
    assert outcome({"curves": [large]}, "hot-97-plausible")["outcome"] == NOT_SETTLEABLE


@pytest.mark.parametrize(
    ("newest", "expected"), [(0.8, SUPPORTED), (0.72, INCONCLUSIVE), (0.54, CONTRADICTED), (0.95, CONTRADICTED)]
)
def test_locality(newest, expected):
    verdict = outcome({"locality": locality(newest)}, "locality-80-10")
    assert verdict["outcome"] == expected
    assert verdict["evidence"] == "measured"
    assert verdict["stated_evidence"] == "external-literature"
    assert f"{100 * newest:.1f} % of the mass" in verdict["finding"]


@pytest.mark.parametrize(
    ("recency", "anchor", "expected"), [(0.4, 0.15, INCONCLUSIVE), (0.16, 0.22, CONTRADICTED), (0.4, 0.4, CONTRADICTED)]
)
def test_head_split_is_never_fully_supported(recency, anchor, expected):
    assert outcome({"head_types": heads(recency, anchor)}, "head-split")["outcome"] == expected


def test_distance_alone_settles_nothing():
    verdict = outcome({"locality": locality(0.5)}, "rope-locality-geometric")
    assert verdict["outcome"] == NOT_SETTLEABLE
    assert "1/80 of the mass" in verdict["finding"]


def test_dense():
    assert outcome({"bounds": {"dense": 0.0684}}, "dense-hit-rate")["outcome"] == CONTRADICTED
    assert outcome({"bounds": {"dense": 0.97}}, "dense-hit-rate")["outcome"] == SUPPORTED
    assert outcome({"bounds": {"belady": 0.5}}, "dense-hit-rate")["outcome"] == NOT_SETTLEABLE


def test_paragraph_carries_the_figures_and_the_limits():
    doc = {
        "ladder": ladder([0.0, 0.018, 0.411, 0.453, 0.451], bounds=(0.55,) * 5),
        "locality": locality(0.539),
        "trace": {"model": "some-model", "text": "some-text", "context_tokens": 1536, "steps": 32},
    }
    text = closing_paragraph(doc)
    assert "\n" not in text
    for needle in (
        "some-model", "some-text", "0.0 / 1.8 / 41.1 / 45.3 / 45.1 %", "−0.2 points", "53.9 %", "modelled", "withdrawn",
        "3 not settleable here", "short run",
    ):  # fmt: skip
        assert needle in text
    doc["trace"] |= {"context_tokens": 7936, "steps": 128}
    assert "short run" not in closing_paragraph(doc)
