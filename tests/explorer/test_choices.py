"""A permalink holds every choice, and one that is wrong is told in words."""

from dataclasses import fields
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stored import save_recording

from kvpager.errors import BadInput, KVPagerError
from kvpager.explorer.choices import Choices, from_query, slider_of, to_query
from kvpager.explorer.opening import PART, from_link, from_text, to_link, to_text
from kvpager.testing.recordings import synthetic_recording

SLID = {one.name: type(one.default) for one in fields(Choices) if "slider" in one.metadata}
NUMBERS = (1, 2, 3)


def value_of(name):
    slider = slider_of(name)
    if SLID[name] is int:
        return st.integers(int(slider.low), int(slider.high))
    return st.floats(slider.low, slider.high)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SOME = st.fixed_dictionaries({}, optional={"trace": TEXTS, "run": TEXTS, **{name: value_of(name) for name in SLID}})


@given(SOME)
def test_a_link_restores_every_choice(changes):
    chosen = Choices(**changes)
    query = to_query(chosen)
    assert from_query(dict(parse_qsl(urlencode(query), keep_blank_values=True))) == chosen
    assert set(query) == {name for name, value in changes.items() if value != getattr(Choices(), name)}
    assert from_text(to_text(chosen)) == chosen


@given(SOME, SOME, st.sampled_from(NUMBERS))
def test_an_address_restores_the_page_whatever_the_server_began_with(changes, first, part):
    """But for what `check` looks at: here nothing that would have to be there."""
    without = {"trace": "", "run": ""}
    chosen, base = Choices(**changes | without), Choices(**first)
    link = dict(parse_qsl(urlencode(to_link(chosen, base, part)), keep_blank_values=True))
    assert from_link(link, base, NUMBERS) == (chosen, part)


def test_a_link_without_choices_leaves_the_servers():
    base = Choices(users=3, trace="t.zarr")
    assert from_link({}, base, NUMBERS) == (base, 1)
    assert from_link({PART: "3"}, base, NUMBERS) == (base, 3)


def test_a_link_with_choices_keeps_the_servers_files(tmp_path):
    trace = str(save_recording(synthetic_recording(context_tokens=160, steps=16), tmp_path / "t.zarr"))
    found, _ = from_link({"users": "5"}, Choices(trace=trace, model="qwen3-8b"), NUMBERS)
    assert found == Choices(trace=trace, users=5)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"modle": "llama-3.1-8b"}, ["'modle'", "model"]),
        ({"users": "many"}, ["users='many'", "whole number"]),
        ({"users": "2.5"}, ["users='2.5'", "whole number"]),
        ({"alpha": "high"}, ["alpha='high'", "number"]),
        ({"alpha": "nan"}, ["alpha = nan", "0.01 to 1"]),
        ({"alpha": "1e9"}, ["alpha", "0.01 to 1"]),
        ({"context": "17"}, ["context = 17", "1,024 to 1,048,576"]),
        ({"model": "lama"}, ["lama", "kvpager list models"]),
        ({"system": "b200-cxl"}, ["b200-cxl", "did you mean"]),
        ({"trace": "gone.zarr"}, ["gone.zarr", "does not exist"]),
        ({"run": "gone.json"}, ["gone.json", "cannot be read"]),
        ({PART: "19"}, ["part='19'", "1 to 3"]),
        ({PART: "five"}, ["part='five'", "1 to 3"]),
    ],
    ids=lambda case: "&".join(f"{name}={value}" for name, value in case.items()) if isinstance(case, dict) else "",
)
def test_a_wrong_link_is_told(query, words):
    with pytest.raises(KVPagerError) as told:
        from_link(query, Choices(), NUMBERS)
    assert isinstance(told.value, BadInput)
    assert all(word in str(told.value) for word in words), str(told.value)


@given(st.data(), st.sampled_from([name for name in SLID if SLID[name] is float or slider_of(name).steps]))
def test_positions_of_a_slider_hold_the_chosen_value_and_both_ends(data, name):
    slider, value = slider_of(name), data.draw(value_of(name))
    found = slider.positions(value)
    assert found == sorted(set(found))
    assert value in found
    assert found[0] <= min(slider.steps or [slider.low]) <= max(slider.steps or [slider.high]) <= found[-1] + 1e-9
    assert {type(one) for one in found} == {type(value)}


def test_shares_are_told_in_per_cent():
    assert {name: slider_of(name).text(getattr(Choices(), name)) for name in ("read", "hbm", "prefetch", "alpha", "context")} == {
        "read": "5 %",
        "hbm": "6.84 %",
        "prefetch": "1 %",
        "alpha": "0.2",
        "context": "131,072",
    }
