"""Sizes are read exactly or refused, and printed so that they can be read back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.errors import BadInput, CapacityError
from kvpager.units import (
    format_bytes,
    format_count,
    format_duration,
    format_quantity,
    format_share,
    in_base_unit,
    parse_bytes,
    parse_quantity,
    parse_share,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0B", 0),
        ("8MiB", 8 * 1024**2),
        ("8 MiB", 8 * 1024**2),
        ("47GB", 47 * 10**9),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5TiB", 3 * 1024**4 // 2),
        ("1,024,000B", 1_024_000),
        ("1_000B", 1000),
        ("2e3B", 2000),
    ],
)
def test_bytes_are_read_to_the_byte(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GB", "47", "47G", "47K", "47gb", "5%", "1,5GB", "1,0000B", "nanB", "infGB", "1e400GB", "--1B"]
)
def test_an_ambiguous_size_is_refused_with_a_remedy(text):
    with pytest.raises(BadInput, match=r"8MiB \(1024-based\) or 47GB \(1000-based\)"):
        parse_bytes(text)


def test_a_negative_size_is_a_capacity_error():
    with pytest.raises(CapacityError, match="negative"):
        parse_bytes("-1GB")


@pytest.mark.parametrize(
    ("text", "expected"), [("5%", 0.05), ("0.0684", 0.0684), (0.1, 0.1), ("100%", 1.0), ("1", 1.0), ("8 %", 0.08)]
)
def test_shares(text, expected):
    assert parse_share(text) == pytest.approx(expected)


def test_a_share_may_be_given_in_bytes_of_a_known_whole():
    assert parse_share("512B", whole_bytes=1024) == 0.5
    with pytest.raises(BadInput, match="in bytes, but here a share"):
        parse_share("512B")
    with pytest.raises(CapacityError, match="2 of all KV"):
        parse_share("2KiB", whole_bytes=1024)


@pytest.mark.parametrize("text", ["0", "0%", "-5%", "101%", "1.01", "0B"])
def test_a_share_outside_zero_to_one_is_refused(text):
    with pytest.raises(CapacityError, match="above 0 and at most 100%"):
        parse_share(text, whole_bytes=1024)


@pytest.mark.parametrize(
    ("text", "expected"), [("4096", 4096), ("128K", 131072), ("1.5K", 1536), ("1M", 1024**2), ("2,048", 2048)]
)
def test_token_counts(text, expected):
    assert parse_tokens(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "1.3", "4KiB", "many", "5%"])
def test_a_token_count_that_is_no_positive_whole_number_is_refused(text):
    with pytest.raises(BadInput, match="4096 or 128K"):
        parse_tokens(text)


@given(st.integers(0, 10**17), st.booleans())
def test_printed_bytes_read_back_within_four_digits(count, binary):
    text = format_bytes(count, binary=binary)
    assert abs(parse_bytes(text) - count) <= 0.0005 * count + 0.5  # and a whole byte is read back
    assert "e" not in text


@given(st.floats(1e-9, 59.9))
def test_a_printed_duration_never_reaches_the_next_unit(seconds):
    number, unit = format_duration(seconds).split()
    assert float(number) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds, rel=0.006)
    assert "e" not in number
    assert float(number) < 1000


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0 ns"), (1.5e-3, "1.5 ms"), (12, "12 s"), (59.97, "1 min 0 s"), (200, "3 min 20 s"), (119.9, "2 min 0 s")],
)
def test_durations(seconds, expected):
    assert format_duration(seconds) == expected


def test_shares_and_counts():
    assert format_share(0.0684) == "6.84 %"
    assert format_share(1) == "100 %"
    assert format_count(45720) == "45,720"
    assert format_count(0.25) == "0.2"
    assert format_count(math.pi * 1000) == "3,141.6"


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (8e12, "bytes/s", "8 TB/s"),
        (140e9, "bytes", "140 GB"),
        (0.0175, "s", "17.5 ms"),
        (0, "s", "0 s"),
        (177218.6, "USD", "$177,219"),
        (0.168, "USD", "$0.168"),
        (2.25e15, "FLOP/s", "2.25 PFLOP/s"),
        (3900, "W", "3.9 kW"),
        (700, "W", "700 W"),
        (427246.1, "tokens", "427,246 tokens"),
        (54.6875, "1", "54.69"),
        (math.inf, "1", "unbounded"),
        (math.inf, "s", "never"),
    ],
)
def test_a_quantity_is_printed_in_its_unit(value, unit, expected):
    assert format_quantity(value, unit) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("64GB/s", (64e9, "B/s")),
        ("4.35 GiB/s", (4.35 * 1024**3, "B/s")),
        ("2,250 TFLOP/s", (2.25e15, "FLOP/s")),
        ("200ns", (200e-9, "s")),
        ("13 us", (13e-6, "s")),
        ("3.9kW", (3900.0, "W")),
        ("0.168 USD/kWh", (0.168, "USD/kWh")),
        ("5 USD/GB", (5e-9, "USD/B")),
        ("86%", (0.86, "1")),
        ("8MiB", (8 * 1024.0**2, "B")),
    ],
)
def test_quantities_come_in_their_base_unit(text, expected):
    assert parse_quantity(text) == expected


@pytest.mark.parametrize("text", ["1T", "64G", "64", "64Gb/s", "64GBps", "200", "5USD/G", "3KW", "fast", "", "64 /s"])
def test_a_quantity_of_an_ambiguous_unit_is_refused(text):
    with pytest.raises(BadInput, match="write"):
        parse_quantity(text)


def test_near_units_are_named():
    with pytest.raises(BadInput, match=r"unit 'GBps' is ambiguous or unknown.*GB"):
        in_base_unit(1, "GBps")


def test_a_price_per_byte_is_printed_per_gigabyte():
    assert format_quantity(in_base_unit(10.9, "USD/GB")[0], "USD/B") == "$10.9/GB"
