"""Each task's contexts: repeatable, as long as asked, the answer told once and asked for in the words that told it."""

import random

import pytest

from kvpager.errors import BadInput
from kvpager.evaluate.base import TASKS
from kvpager.evaluate.prose import interleave, paragraphs, passage
from kvpager.registry import configure


class Words:
    """A language whose tokens are words and line breaks."""

    def __init__(self):
        self.ids, self.words = {}, []

    def more(self, text):
        parts = text.replace("\n\n", " \n\n ").split(" ")
        for part in parts:
            if part not in self.ids:
                self.ids[part] = len(self.words)
                self.words.append(part)
        return [self.ids[part] for part in parts if part]

    opening = more

    def text(self, tokens):
        return " ".join(self.words[token] for token in tokens)


SMALL = ["needle:trials=2,needles=4,tokens=600", "multikey:trials=2,keys=3,tokens=600", "copy:trials=2,strings=3,tokens=600",
         "perplexity:trials=2,tokens=600,sequel=20"]  # fmt: skip


@pytest.mark.parametrize("text", SMALL)
def test_contexts_are_repeatable_and_as_long_as_asked(text):
    first, again = (list(configure(TASKS, text).contexts(Words())) for _ in range(2))
    assert first == again
    assert len(first) == 2
    assert first[0].text != first[1].text
    for context in first:
        assert 500 <= len(Words().opening(context.text)) <= 640
    other = list(configure(TASKS, f"{text},seed=1").contexts(Words()))
    assert other[0].text != first[0].text


@pytest.mark.parametrize("text", SMALL[:3])
def test_answers_are_told_once_in_the_words_of_the_question(text):
    for context in configure(TASKS, text).contexts(Words()):
        assert len(context.questions) == (4 if text.startswith("needle") else 3)
        for question in context.questions:
            assert context.text.count(f"{question.text.strip()} {question.answer}.") == 1
            assert context.text.count(question.answer) == 1
            assert question.text.startswith("\n\n")
        assert len({question.answer for question in context.questions}) == len(context.questions)


def test_a_sequel_goes_on_where_its_context_ends():
    for context in configure(TASKS, SMALL[3]).contexts(Words()):
        assert not context.questions
        assert len(Words().more(context.sequel)) == 20


def test_every_task_says_how_often_guessing_is_right():
    for name in TASKS:
        assert 0 <= TASKS[name].chance < 1


def test_prose_is_prose():
    found = paragraphs()
    assert len(found) > 200
    assert len(set(found)) == len(found)
    assert all(200 < len(text) < 900 and "\n" not in text for text in found)
    assert not any(word in text for text in found for word in (">>>", "48213"))


def test_more_prose_than_there_is_is_refused():
    with pytest.raises(BadInput, match="ask for"):
        passage(random.Random(0), 10**7, len)


def test_facts_are_spread_in_order_over_the_prose():
    prose, facts = [f"p{i}" for i in range(20)], ["a", "b", "c", "d"]
    for seed in range(30):
        parts = interleave(random.Random(seed), prose, facts).split("\n\n")
        assert [part for part in parts if part[0] == "p"] == prose
        places = [parts.index(fact) for fact in facts]
        assert places == sorted(places)
        assert all(5 * i <= place - i <= 5 * (i + 1) for i, place in enumerate(places))
    assert interleave(random.Random(0), [], facts).split("\n\n") == facts
