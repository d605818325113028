"""The ledger is whole, its data is sound, and its history is only ever appended to."""

import hashlib
import re
from collections import Counter

import pytest

from kvpager.claims import ledger
from kvpager.claims.ledger import Claim, claim, claims, givens, history, status
from kvpager.errors import InvariantError, UnknownName
from kvpager.evidence import Evidence

VERDICTS = {
    "reproduced": 60,
    "reproduced-with-stated-rounding": 43,
    "inconsistent": 42,
    "not-derivable-from-the-text": 24,
    "assumption": 33,
    "empirical-claim-to-test": 22,
}
LABELS = {label.label for label in Evidence}
WITHDRAWN = {
    "hot-97-plausible", "ladder-values", "ladder-steps", "ladder-sum", "ladder-25", "ladder-rope-4", "tier-split",
    "user-16x", "user-16x-vs-cost", "ratio-65", "ratio-11.5", "capex-36",
}  # fmt: skip
HISTORY_THEN = (14, "8b7b1b8ccfafb607")
"""Entries of history.toml when this test was last extended, and the digest of their text."""


def test_every_claim_of_the_audit_is_there():
    assert len(claims()) == sum(VERDICTS.values()) == 224
    assert Counter(one.verdict for one in claims().values()) == VERDICTS


@pytest.mark.parametrize("id", claims())
def test_an_entry_says_what_it_must(id):
    one = claim(id)
    assert re.match(r"(000|004)", one.note), "which note, and where"
    assert len(one.says) > 10
    assert one.label in LABELS
    assert len(one.tolerance) == len(one.stated)
    assert one.relation in ("equal", "at least", "at most", "more than")
    assert not (one.reading and one.derive)
    if one.verdict in ("reproduced", "reproduced-with-stated-rounding", "inconsistent"):
        assert one.derive or one.reading
        assert one.stated or one.reading


def test_no_hit_ratio_is_bare_and_no_input_is_unused():
    assert not [id for id, one in claims().items() if re.search(r"\bhit rate", one.says + one.remark)]
    named = set(re.findall(r"'@([\w.-]+)'", str([one.derive for one in claims().values()])))
    constants = {entry["default"] for entry in ledger.read("uncalibrated")["constant"]}
    assert set(givens()) - named - constants == set()
    assert named <= set(givens()) | set(claims())
    assert not set(givens()) & set(claims()), "a reference would be ambiguous"


def test_an_input_says_how_it_is_known():
    for given in givens().values():
        assert given.label in LABELS
        assert given.source
        assert given.says
    assert {name for name, given in givens().items() if given.reconstructed} == {
        "peak", "electricity", "entry", "steps-per-s", "miss-share", "hit-share",
    }  # fmt: skip


def test_the_withdrawn_claims_say_so_with_what_replaces_them():
    assert {id for id in claims() if status(id) == "withdrawn"} == WITHDRAWN
    assert status("cxl-latency-200") == "demoted"
    assert status("kv-per-token") == "audited"
    for id in WITHDRAWN:
        assert [entry.status for entry in history(id)] == ["audited", "withdrawn"]
        assert history(id)[-1].replacement
    assert not [id for id in WITHDRAWN if claim(id).note.startswith("004")], "x-status: nothing of note 004 is withdrawn"


def test_history_is_appended_to_and_never_rewritten():
    entries = ledger.read("history")["status"]
    count, digest = HISTORY_THEN
    then = hashlib.sha256(repr([sorted(entry.items()) for entry in entries[:count]]).encode()).hexdigest()[:16]
    assert then == digest, "an old entry of history.toml changed: restore it, and append a correction"
    assert [entry["date"] for entry in entries] == sorted(entry["date"] for entry in entries)
    assert all(entry["claim"] in {"*", *claims()} for entry in entries)
    assert all(entry["status"] in ("audited", "withdrawn", "demoted") and entry["evidence"] in LABELS for entry in entries)


def test_an_unknown_id_names_near_ones():
    with pytest.raises(UnknownName, match=r"softmax-exmple.*near: softmax-example"):
        claim("softmax-exmple")
    with pytest.raises(UnknownName, match="kvpager claims"):
        claim("zzzzzzzz")


def test_an_entry_with_an_unknown_verdict_is_refused():
    with pytest.raises(InvariantError, match="verdict 'true'"):
        Claim("x", "000", "some claim", "true", "analytical")
