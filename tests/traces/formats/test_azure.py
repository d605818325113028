"""Azure CSV: arrivals and lengths."""

import pytest

from kvpager.errors import TraceError
from kvpager.traces.formats import load_requests

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def load(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    return load_requests(path, "azure")


def test_arrivals_and_lengths_without_blocks(tmp_path):
    trace = load(tmp_path, HEADER + "2023-11-16 18:15:46.6805900,374,44\n2024-05-10 00:00:00.009930+00:00,2162,5\n")
    assert trace.time_s.tolist() == [1700158546.68059, 1715299200.00993]
    assert trace.input_tokens.tolist() == [374, 2162]
    assert trace.output_tokens.tolist() == [44, 5]
    assert (trace.block_size, len(trace.blocks), trace.distinct) == (0, 0, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2023-11-16 18:15:46,374", "expected a date and time and two whole numbers"),
        ("yesterday,1,1", "expected a date and time"),
        ("2023-11-16 18:15:46,1.5,1", "expected a date and time"),
        ("2023-11-16 18:15:46,0,1", "expected at least 1 context and 0 generated tokens, not 0 and 1"),
        ("2023-11-16 18:15:44,1,1", "expected a time that does not go backwards"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, expected):
    with pytest.raises(TraceError) as caught:
        load(tmp_path, f"{HEADER}2023-11-16 18:15:45,1,1\n{line}\n")
    assert f"a.csv', line 3: {expected}" in str(caught.value)


def test_another_header_is_another_format(tmp_path):
    with pytest.raises(TraceError, match=r"line 1: expected the header 'TIMESTAMP,ContextTokens,GeneratedTokens'; name its true"):
        load(tmp_path, "a,b,c\n1,2,3\n")
