"""Every claim that the text allows to check is computed anew, and every input counts."""

import numpy as np
import pytest

from kvpager.claims.check import explain, holds, outcome, rederive, row
from kvpager.claims.derivation import Reckoning, number, scale
from kvpager.claims.ledger import CONTRADICTED, NOT_SETTLEABLE, SUPPORTED, claim, claims
from kvpager.errors import InvariantError, UnknownName

REPRODUCED = [id for id, one in claims().items() if one.verdict.startswith("reproduced")]
INCONSISTENT = [id for id, one in claims().items() if one.verdict == "inconsistent"]
DERIVED = [id for id, one in claims().items() if one.derive]
READ = {"v40-date", "x-status"}
"""Reproduced claims about the text itself: nothing to compute. `x-status` is held against history.toml in test_ledger.py."""

RECONSTRUCTED = {
    "cxl-demand-11.4": (11.443, "GB/s"),
    "tco-rate": (0.168, "$/kWh"),
    "recompute-peak": (500.0, "TFLOP/s"),
    "meta-640mib": (640.0, "MiB"),
}
"""The four reconstructions, and what their inputs, chosen to fit, give."""

CANCELS = "it stands above and below the line"
TIMES_ZERO = "it is multiplied by zero: the position has no such part"
GEOMETRY = ("key-and-value", "layers", "kv-heads", "head-dim", "element")
UNMOVED = {
    ("cxl-demand-11.4", "users"): CANCELS,
    ("cxl-cost-vs-endpoint", "endpoints"): CANCELS,
    ("payload-4kib", "layers"): CANCELS,
    ("user-16x-vs-cost", "users"): CANCELS,
    ("recompute-attn", "block-tokens"): CANCELS,
    ("orders-range", "block-tokens"): CANCELS,
    ("nine-combos", "block-tokens"): CANCELS,
    ("optimistic-ends", "block-tokens"): CANCELS,
    ("kv-pct", "element"): CANCELS,
    ("crossover", "element"): CANCELS,
    ("long-ctx-second-consumer", "element"): CANCELS,
    **{("fetch-tier-independent", name): CANCELS for name in (*GEOMETRY, "block-tokens")},
    **{("weights-fixed", name): CANCELS for name in GEOMETRY},
    ("ema-decisions", "weights-p 0"): TIMES_ZERO,
    ("p-tier0-nonanchor", "weights-p 2"): TIMES_ZERO,
    ("p-tier1-nonanchor", "weights-p 2"): TIMES_ZERO,
    ("p-new-token", "weights-p 1"): TIMES_ZERO,
    ("p-new-token", "weights-p 2"): TIMES_ZERO,
    ("p-raw-max", "weights-p 2"): TIMES_ZERO,
    ("rope-theta0", "note-rope-base"): "anything to the power of 0 is 1",
    ("rope-theta0", "head-dim"): "0 over anything is 0",
    ("cxl-upstream", "endpoints"): "one upstream link binds, however many endpoints there are: that is the finding",
    **{
        ("locality-mass-at-5.4", f"{name} {zone}"): "what fits reaches the first zone only"
        for name in ("zones", "zone-mass")
        for zone in (1, 2)
    },
}
"""Inputs that must not move the result, each with the reason."""

STEPPED = {
    "users-fit", "users-cxl-limit", "user-16x", "missing-tp",  # whole users
    "nvme-share-contradiction",  # nothing overflows until it does
    "max-agg", "agg-units", "orders-range", "x-range-256", "fetch-tier-independent",  # extremes of several values
    "p-vs-prefetch",  # ranks
    "rope-bound-zero", "rope-distance-bars",  # a head dimension is even
}  # fmt: skip
"""Claims whose results move in steps: a hundredth more may do nothing, some larger change must."""


@pytest.mark.parametrize("id", REPRODUCED + INCONSISTENT)
def test_a_claim_comes_out_as_its_verdict_says(id):
    one, found = claim(id), rederive(id)
    if id in READ:
        assert one.reading
        assert not found.values
        assert outcome(id) == SUPPORTED
        return
    assert len(found.values) == len(one.stated) > 0
    assert all(np.isfinite(found.values))
    assert holds(one, found.values) == one.verdict.startswith("reproduced")
    assert outcome(id) == (SUPPORTED if one.verdict.startswith("reproduced") else CONTRADICTED)


def test_nothing_is_left_out():
    assert (len(REPRODUCED), len(INCONSISTENT)) == (103, 42)
    assert {id for id in REPRODUCED if not claim(id).derive} == READ
    functions = {step.function for id in DERIVED for step in rederive(id).steps}
    assert {name.partition(".")[0] for name in functions} >= {"capacity", "cost", "recompute", "rope", "steptime", "transfer"}


def values_with(id, path, change):
    """Derived values with the input at `path` changed; None if that input is refused."""
    try:
        with np.errstate(all="ignore"):
            return np.array(rederive(id, lambda at, value: change(value) if at == path else value).values)
    except ValueError:
        return None


def moved(id, path, change):
    then, now = np.array(rederive(id).values), values_with(id, path, change)
    return now is not None and (now.shape != then.shape or bool((np.abs(now - then) > 1e-9 * np.abs(then) + 1e-12).any()))


def moves(id, path):
    if moved(id, path, lambda value: value * 1.01 if value else 0.01):
        return True
    return id in STEPPED and any(moved(id, path, lambda value, by=by: value * by if value else by) for by in (0.5, 2, 100, 1000))


@pytest.mark.parametrize("id", DERIVED)
def test_every_input_moves_the_result(id):
    for path in rederive(id).inputs:
        name = " ".join(str(part) for part in path)
        expected = (id, name) not in UNMOVED
        assert moves(id, path) == expected, f"{name}: {'moves nothing' if expected else 'moves the result; not an exception'}"


def test_the_exceptions_are_inputs():
    inputs = {(id, " ".join(str(part) for part in path)) for id in DERIVED for path in rederive(id).inputs}
    assert set(UNMOVED) <= inputs
    assert set(DERIVED) >= STEPPED


def test_a_wrong_stated_value_would_be_noticed():
    one = claim("kv-128k")
    assert holds(one, rederive("kv-128k").values)
    assert not holds(one, [44.0])
    assert not holds(claim("prefill-decode-bound"), [0.9, 466.0])


@pytest.mark.parametrize("id", RECONSTRUCTED)
def test_a_reconstruction_is_shown_as_one(id):
    value, unit = RECONSTRUCTED[id]
    found = row(id)
    derived = np.atleast_1d(found["derived"]["value"])
    assert found["derived"]["unit"] == unit
    assert derived == pytest.approx(value, rel=0.02)
    assert "reconstruction, not a derivation" in found["finding"]
    assert found["outcome"] == NOT_SETTLEABLE
    assert found["verdict"] == "not-derivable-from-the-text"


def test_only_the_four_are_reconstructed_and_what_rests_on_them_says_so():
    assert {id for id, one in claims().items() if one.reconstructed} == set(RECONSTRUCTED)
    for id in ("tco-base", "recompute-50", "meta-16-users", "orders-range"):
        assert "rests on a reconstructed input" in row(id)["finding"]
    assert "reconstructed" not in row("kv-per-token")["finding"]


@pytest.mark.parametrize("id", claims())
def test_a_row_has_every_key(id):
    found = row(id)
    assert [*found] == [
        "id", "note", "claim", "stated", "derived", "figure", "verdict", "status", "outcome", "evidence", "finding", "run",
    ]  # fmt: skip
    assert found["finding"].endswith(".")
    if found["derived"] and found["run"] is None:
        assert found["evidence"] == found["derived"]["evidence"]


def test_labels_do_not_improve():
    assert row("softmax-example")["evidence"] == "illustrative", "its scores are"
    assert row("fetch-64")["evidence"] == "assumption", "its link is"
    assert row("cxl3-121")["evidence"] == "external-literature"


def test_explanation_has_the_numbers():
    text = "\n".join(explain("softmax-example"))
    for needle in ("6 / 52 / 14 / 28 %", "1.1275", "6.34132", "17.78 / 37.64 / 19.85 / 24.73 %", "contradicted", "11.78"):
        assert needle in text
    assert "withdrawn" in "\n".join(explain("hot-97-plausible"))
    with pytest.raises(UnknownName, match="near: crossover"):
        explain("cross-over")


def test_numbers_and_units():
    assert number("140 GB") == 140e9
    assert number("2 KiB") == 2048
    assert number("64 GT/s") == 64e9
    assert number("0.168 $/kWh") == 0.168
    assert scale("%") == 0.01
    with pytest.raises(InvariantError, match="unit 'G' is not known"):
        scale("G")


def test_a_recipe_that_cannot_be_followed_is_refused():
    def derive(recipe):
        return Reckoning({"x": [recipe]}, {}, {"x": ""}).derive("x")

    with pytest.raises(InvariantError, match=r"no amounts\.guess"):
        derive({"by": "amounts.guess", "with": {"of": 1}})
    with pytest.raises(InvariantError, match="@nothing is neither"):
        derive({"value": "@nothing"})
    with pytest.raises(InvariantError, match="circle"):
        derive({"value": "@x"})


def test_values_of_several_units_each_say_theirs():
    assert row("tail-cheapest")["derived"]["unit"] == "ms / ms / µs / µs"
    assert "8.96 ms / 17.92 ms / 43.33 µs / 163.8 µs, stated 9 ms / 18 ms / 43 µs / 164 µs" in row("tail-cheapest")["finding"]
    assert row("hot-positions")["derived"]["unit"] == "positions / %"
    assert row("softmax-example")["derived"]["unit"] == "%"
    for id in claims():
        assert len(claim(id).units) in (1, len(rederive(id).values), len(claim(id).stated))


@pytest.mark.parametrize("id", claims())
def test_everything_can_be_explained(id):
    lines = explain(id)
    assert lines[0].startswith(id)
    assert f"  verdict  {claim(id).verdict}" in lines
    assert any(line.startswith("  history  ") for line in lines)
    assert sum(line.startswith("  step     ") for line in lines) == len(rederive(id).steps)
