"""Parts that are arithmetic: the softmax example and RoPE, against the slowest way to compute them."""

import cmath
import math

import pytest
from tests.explorer.parts.test_planned import rows

from kvpager.explorer.choices import Choices
from kvpager.explorer.part import PARTS


def test_softmax_of_the_note_s_scores():
    shown = PARTS["softmax"]().screen(Choices())
    scores = (0.12, 0.87, 0.23, 0.45)
    total = sum(map(math.exp, scores))
    assert [figure.quantity.value for figure in shown.figures[:4]] == pytest.approx([100 * math.exp(s) / total for s in scores])
    assert [figure.quantity.value for figure in shown.figures[4:]] == [6, 52, 14, 28]
    series = {}
    for row in rows(shown.panels[1]):
        series.setdefault(row["series"], []).append(row["share"])
    assert set(series) >= {"softmax", "as the note prints it", "score ÷ sum of scores", "softmax of score ÷ √128"}
    assert all(sum(shares) == pytest.approx(1, abs=2e-3) for shares in series.values())
    assert "37.6 %" in shown.words


def slow_envelope(distance, base, width):
    """Mean over j of |sum of the first j turned pairs|, one at a time."""
    sums = [abs(sum(cmath.exp(1j * distance * base ** (-2 * i / width)) for i in range(j))) for j in range(1, width // 2 + 1)]
    return sum(sums) / len(sums)


@pytest.mark.parametrize(
    ("model", "base", "width"), [("llama-3.1-70b", 5e5, 128), ("deepseek-v3", 1e4, 64), ("gpt-oss-20b", 1.5e5, 64)]
)
@pytest.mark.parametrize("distance", [1, 64, 131_072])
def test_the_envelope_and_the_pairs_that_turned(model, base, width, distance):
    shown = PARTS["rope"]().screen(Choices(model=model, distance=distance))
    point = next(row for row in rows(shown.panels[1]) if set(row) == {"low", "bound"})
    slow = slow_envelope(distance, base, width) / slow_envelope(0, base, width)
    assert point == {"low": distance, "bound": pytest.approx(slow, rel=1e-3)}
    turned = sum(2 * math.pi * base ** (2 * i / width) <= distance for i in range(width // 2))
    assert f"{turned} of them have turned at least once within {distance:,} tokens" in shown.words


def test_a_model_whose_facts_do_not_state_a_base_is_drawn_with_the_note_s_and_says_so():
    shown = PARTS["rope"]().screen(Choices(model="gemma-3-27b"))
    assert {row["series"] for row in rows(shown.panels[0]) if "series" in row} == {"base 10,000, the note's"}
    assert "do not state its base, so the note's is drawn" in shown.words
