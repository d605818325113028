"""The harness on runners that are made to know and to forget: what is counted, what is dropped, and what is closed."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from kvpager.errors import BadInput, UnknownName
from kvpager.evaluate import TASKS, evaluate
from kvpager.evaluate.base import Context, Question
from kvpager.evaluate.outcome import Kept

LETTERS = "abcdefghijklmnopqrstuvwxyz .|"


class Letters:
    """A language of letters; an opening begins with '|'."""

    def opening(self, text):
        return self.more(f"|{text}")

    def more(self, text):
        return [LETTERS.index(letter) for letter in text]

    def text(self, tokens):
        return "".join(LETTERS[token] for token in tokens)


class Fake:
    """Answers what stands behind the question's last appearance in the context, but for questions that it forgets.

    The logits of a forgotten question are flat by `blur`, so that divergence can be computed by hand.
    """

    open = 0

    def __init__(self, forgets=(), blur=0.0, right_next=0.9):
        self.forgets, self.blur, self.right_next = set(forgets), blur, right_next
        self.context = self.added = ""
        self.started = []

    def start(self, tokens):
        assert tokens[0] == LETTERS.index("|")
        self.context, self.added = Letters().text(tokens), ""
        self.started.append(self.context)

    def fork(self):
        twin = Fake(self.forgets, self.blur, self.right_next)
        twin.context = self.context
        Fake.open += 1
        return twin

    def _next(self):
        forgot = self.added.strip() in self.forgets
        at = self.context.rfind(self.added) if self.added else len(self.context)
        known = at >= 0 and at + len(self.added) < len(self.context)
        return LETTERS.index("z") if forgot or not known else LETTERS.index(self.context[at + len(self.added)])

    def turn(self, tokens):
        return self.feed(tokens)[-1]

    def feed(self, tokens):
        rows = []
        for token in tokens:
            self.added += LETTERS[token]
            share = np.full(len(LETTERS), (1 - self.right_next) / (len(LETTERS) - 1))
            share[self._next()] = self.right_next
            flat = np.full(len(LETTERS), 1 / len(LETTERS))
            rows.append(np.log((1 - self.blur) * share + self.blur * flat) + 3.0)
        return np.array(rows, np.float32)

    def generate(self, count):
        out = []
        for _ in range(count):
            out.append(LETTERS.index("z") if self.added.strip() in self.forgets else self._next())
            self.added += LETTERS[out[-1]] if self.added.strip() not in self.forgets else ""
        return out

    def facts(self):
        return {"read_mass": 1 - self.blur}

    def close(self):
        Fake.open -= 1


@dataclass
class Fixed:
    """Two contexts, five questions and a sequel."""

    guess: float = 0.0
    chance: ClassVar[float] = 0.0

    def contexts(self, language):
        yield Context("the cat is red. the dog is blue. ", (Question("the cat is", "red"), Question("the dog is", "blue")))
        yield Context(
            "a hat is tall. a cup is low. a pen is thin. ",
            (Question("a hat is", "tall"), Question("a cup is", "low"), Question("a pen is", "thin")),
            sequel="a cup is low",
        )


@pytest.fixture
def fixed(monkeypatch):
    monkeypatch.setitem(TASKS._found, "fixed", Fixed)
    monkeypatch.setattr(Fixed, "chance", 0.0)
    list(TASKS)
    Fake.open = 0
    yield Fixed
    assert Fake.open == 0, "a fork was not closed"


def test_losses_are_counted_among_what_dense_answers(fixed):
    dense, poor = Fake(forgets={"the dog is"}), Fake(forgets={"the cat is", "a pen is"})
    document = evaluate(dense, {"poor": poor, "same": Fake(forgets={"the dog is"})}, ["fixed"], Letters())
    json.dumps(document)
    (task,) = document["tasks"]
    assert (task["trials"], task["dense"]["right"], task["contexts"]) == (5, 4, 2)
    row = task["runners"]["poor"]
    assert (row["right"], row["lost"], row["gained"], row["of"]) == (3, 2, 1, 4)
    assert row["lost_low"] < 0.5 < row["lost_high"]
    assert row["same_answer"] == pytest.approx(2 / 5)
    same = task["runners"]["same"]
    assert (same["lost"], same["gained"], same["same_answer"], same["kl_mean"]) == (0, 0, 1, 0)
    assert same["perplexity_change"] == 0
    assert dense.started == poor.started
    assert task["context_tokens"] == pytest.approx(np.mean([len(text) for text in dense.started]))


def test_divergence_and_perplexity_are_what_the_probabilities_say(fixed):
    blur, n = 0.4, len(LETTERS)
    document = evaluate(Fake(), {"blurred": Fake(blur=blur)}, ["fixed"], Letters())
    (task,) = document["tasks"]
    row = task["runners"]["blurred"]
    sharp, rest = 0.9, 0.1 / (n - 1)
    dull, dim = 0.6 * sharp + 0.4 / n, 0.6 * rest + 0.4 / n
    divergence = sharp * np.log(sharp / dull) + (n - 1) * rest * np.log(rest / dim)
    assert row["kl_mean"] == pytest.approx(divergence, rel=1e-4)
    assert row["same_next_token"] == 1
    assert row["read_mass"] == pytest.approx(0.6)
    assert task["foretold_tokens"] == len("a cup is low") - 1
    assert row["perplexity"] > task["dense"]["perplexity"]
    assert row["perplexity_change"] == pytest.approx(row["perplexity"] / task["dense"]["perplexity"] - 1)


@pytest.mark.parametrize(("way", "turns"), [("turn", 5), ("steps", 0)])
def test_a_question_is_read_at_once_or_token_by_token(fixed, monkeypatch, way, turns):
    taken = []
    monkeypatch.setattr(Fake, "turn", lambda self, tokens: taken.append(tokens) or self.feed(tokens)[-1])
    document = evaluate(Fake(), {}, ["fixed"], Letters(), question=way)
    assert len(taken) == turns
    assert document["tasks"][0]["dense"]["right"] == 5
    assert "token by token" in document["question"]


def test_a_task_at_chance_is_dropped_by_name_and_costs_the_others_nothing(fixed, monkeypatch):
    monkeypatch.setattr(fixed, "chance", 0.3)
    other = Fake()
    document = evaluate(Fake(forgets={"the dog is", "the cat is", "a pen is"}), {"other": other}, ["fixed"], Letters())
    assert document["tasks"] == []
    (dropped,) = document["dropped"]
    assert dropped["task"] == "fixed"
    assert "2 of 5" in dropped["why"]
    assert other.started == []


def test_an_answer_must_end_where_it_ends(fixed):
    class Longer(Fixed):
        def contexts(self, language):
            yield Context("x is redder. y is red. ", (Question("x is", "red"), Question("y is", "red")))

    TASKS._found["fixed"] = Longer
    (task,) = evaluate(Fake(), {}, ["fixed"], Letters())["tasks"]
    assert task["dense"]["right"] == 1


def test_forks_are_closed_when_a_runner_fails(fixed):
    class Failing(Fake):
        def fork(self):
            super().fork()
            failing = Failing()
            failing.generate = lambda count: (_ for _ in ()).throw(RuntimeError("lost"))
            return failing

    with pytest.raises(RuntimeError, match="lost"):
        evaluate(Failing(), {}, ["fixed"], Letters())


def test_an_interrupted_evaluation_goes_on_from_the_context_it_was_at(fixed, tmp_path):
    class Interrupted(Fake):
        def start(self, tokens):
            if self.started:
                raise KeyboardInterrupt
            super().start(tokens)

    def judged(dense, other, about="one"):
        return evaluate(dense, {"other": other}, ["fixed"], Letters(), kept=Kept(tmp_path / "kept", about))

    other = {"forgets": {"the cat is"}, "blur": 0.2}
    whole = evaluate(Fake(), {"other": Fake(**other)}, ["fixed"], Letters())
    with pytest.raises(KeyboardInterrupt):
        judged(Fake(), Interrupted(**other))
    again = Fake(), Fake(**other)
    assert judged(*again) == whole
    assert [len(runner.started) for runner in again] == [0, 1]
    for file in (tmp_path / "kept").iterdir():
        file.write_bytes(file.read_bytes()[:-100])
    damaged, others = Fake(), Fake()
    assert judged(damaged, Fake(**other)) == whole
    assert len(damaged.started) == 2
    judged(others, Fake(**other), "other weights")
    assert len(others.started) == 2


def test_a_folder_for_trials_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="choose a folder"):
        Kept(tmp_path / "file" / "kept", "")


def test_progress_is_told(fixed):
    told = []
    evaluate(Fake(), {"other": Fake()}, ["fixed"], Letters(), lambda *what: told.append(what))
    assert told[0] == ("fixed, dense", 0, 2)
    assert told[-1] == ("fixed, other", 2, 2)


def test_bad_tasks_are_refused():
    with pytest.raises(UnknownName, match="needle"):
        evaluate(Fake(), {}, ["needles"], Letters())
    with pytest.raises(BadInput, match="does not take"):
        evaluate(Fake(), {}, ["needle:depth=2"], Letters())
    with pytest.raises(BadInput, match="choose turn or steps"):
        evaluate(Fake(), {}, ["needle"], Letters(), question="whole")
    with pytest.raises(BadInput, match="no task"):
        evaluate(Fake(), {}, [], Letters())
