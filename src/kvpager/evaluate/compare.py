"""Paired trials: what dense attention gets right, and how much of that each other way of reading loses.

Every runner prefills the same contexts exactly. A question is read in one call, which is exact too, as a session takes a
turn of its user; or token by token, as the runner reads. Answers and sequels are read as the runner reads. A loss is counted only
among the trials that dense attention answers, since the model's own limits are not the cache's. A task at which dense
attention is no better than guessing says nothing, and is dropped by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.evaluate.base import TASKS, Context, Language, Question, Runner, Task
from kvpager.evaluate.interval import wilson
from kvpager.evaluate.outcome import Kept, Outcome
from kvpager.registry import configure
from kvpager.traces.decoder import Progress

__all__ = ["QUESTIONS", "evaluate"]

QUESTIONS = {
    "turn": "in one call, with dense attention, as a session reads what its user says; the answer token by token",
    "steps": "token by token, like the answer",
}
"""How questions may be read."""


def evaluate(
    dense: Runner, others: Mapping[str, Runner], tasks: Sequence[str], language: Language, progress: Progress | None = None,
    question: str = "turn", kept: Kept | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Judge other ways of reading against dense attention.

    Parameters
    ----------
    dense : Runner
        The reference.
    others : mapping of str to Runner
        By name, e.g. the selector's written form.
    tasks : sequence of str
        Written forms, e.g. ``"needle:trials=2"``.
    language : Language
        The model's tokenizer.
    progress : callable, optional
        Told the task and runner, and how many contexts are done.
    question : {"turn", "steps"}
        How questions are read; see `QUESTIONS`.
    kept : Kept, optional
        Takes each context's outcome when it is done, and gives those back that it has.

    Returns
    -------
    dict
        JSON-able: ``tasks`` (by task: the dense score, and for each runner right answers, losses with their 95 %
        interval, divergence, perplexity and the runner's own facts) and ``dropped`` (task and reason).

    Raises
    ------
    UnknownName, BadInput
        For an unknown task or setting, no task, or another way to read questions.
    """
    if not tasks:
        raise BadInput(f"no task was named: choose among {', '.join(TASKS)}")
    if question not in QUESTIONS:
        raise BadInput(f"questions cannot be read {question!r}: choose {' or '.join(QUESTIONS)}")
    made: dict[str, Task] = {text: configure(TASKS, text) for text in tasks}
    tell = progress or (lambda what, done, total: None)
    judged, dropped = [], []
    for text, task in made.items():
        contexts = list(task.contexts(language))
        reference = _run(dense, contexts, language, tell, f"{text}, dense", question, kept)
        if reason := _useless(reference, task.chance):
            dropped.append({"task": text, "why": reason})
            continue
        rows = {}
        for name, runner in others.items():
            rows[name] = _compared(reference, _run(runner, contexts, language, tell, f"{text}, {name}", question, kept))
        judged.append(_described(text, task, contexts, language, reference) | {"runners": rows})
    return {"tasks": judged, "dropped": dropped, "question": QUESTIONS[question]}


def _run(
    runner: Runner, contexts: list[Context], language: Language, tell: Progress, what: str, way: str, kept: Kept | None
) -> Outcome:
    outcome = Outcome()
    for done, context in enumerate(contexts):
        tell(what, done, len(contexts))
        name = what, way, _text_of(context)
        found = kept.get(*name) if kept else None
        if found is None:
            found = _tried(runner, context, language, way)
            if kept:
                kept.put(found, *name)
        outcome.add(found)
    tell(what, len(contexts), len(contexts))
    return outcome


def _tried(runner: Runner, context: Context, language: Language, way: str) -> Outcome:
    """Try what follows a context."""
    outcome = Outcome()
    runner.start(language.opening(context.text))
    for question in context.questions:
        fork = runner.fork()
        try:
            ahead, tokens = _answered(fork, question, language, way)
            outcome.facts.append(fork.facts())
        finally:
            fork.close()
        outcome.ahead.append(_log_softmax(ahead))
        said = language.text(tokens).strip()
        outcome.answers.append(said)
        outcome.right.append(re.match(rf"{re.escape(question.answer)}(?!\w)", said) is not None)
    if context.sequel:
        tokens = language.more(context.sequel)
        fork = runner.fork()
        try:
            ahead = _log_softmax(fork.feed(tokens))[:-1]
            outcome.facts.append(fork.facts())
        finally:
            fork.close()
        outcome.ahead.append(ahead)
        outcome.loss += (-ahead[np.arange(len(ahead)), tokens[1:]]).tolist()
    return outcome


def _text_of(context: Context) -> str:
    """All of a context that decides its outcome."""
    return "\0".join([context.text, *(f"{q.text}={q.answer}" for q in context.questions), context.sequel])


def _answered(runner: Runner, question: Question, language: Language, way: str) -> tuple[NDArray[np.float32], list[int]]:
    """Return the logits after the first token that is not read exactly, [1, vocabulary], and the tokens of the answer."""
    asked, count = language.more(question.text), len(language.more(f" {question.answer}")) + 1
    if way == "steps":
        return runner.feed(asked)[-1:], runner.generate(count)
    first = int(runner.turn(asked).argmax())
    return runner.feed([first]), [first, *runner.generate(count - 1)]


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide.astype(np.float32)


def _useless(reference: Outcome, chance: float) -> str | None:
    """Say why a task tells nothing, or None."""
    trials, right = len(reference.right), sum(reference.right)
    if trials and wilson(right, trials)[0] <= chance:
        return f"dense attention answers {right} of {trials}, which guessing ({chance:g}) may do as well"
    return None if trials or reference.loss else "it has no trial"


def _described(text: str, task: Task, contexts: list[Context], language: Language, reference: Outcome) -> dict[str, Any]:
    """Task, contexts and the dense score."""
    read = "\0".join(map(_text_of, contexts))
    row: dict[str, Any] = {
        "task": text,
        "contexts": len(contexts),
        "context_tokens": float(np.mean([len(language.opening(context.text)) for context in contexts])),
        "text_sha256": hashlib.sha256(read.encode()).hexdigest(),
        "dense": {},
    }
    if reference.right:
        right, of = sum(reference.right), len(reference.right)
        low, high = wilson(right, of)
        row |= {"trials": of, "chance": task.chance}
        row["dense"] |= {"right": right, "share": right / of, "low": low, "high": high}
    if reference.loss:
        row |= {"foretold_tokens": len(reference.loss)}
        row["dense"] |= {"perplexity": float(np.exp(np.mean(reference.loss)))}
    return row


def _compared(reference: Outcome, outcome: Outcome) -> dict[str, Any]:
    """One runner's row: its own score, and what it loses of the reference's."""
    row: dict[str, Any] = {}
    if reference.right:
        pairs = list(zip(reference.right, outcome.right, strict=True))
        of, lost = sum(reference.right), sum(before and not after for before, after in pairs)
        low, high = wilson(lost, of)
        row |= {
            "right": sum(outcome.right), "gained": sum(after and not before for before, after in pairs),
            "lost": lost, "of": of, "lost_share": lost / of, "lost_low": low, "lost_high": high,
            "same_answer": sum(a == b for a, b in zip(reference.answers, outcome.answers, strict=True)) / len(pairs),
        }  # fmt: skip
    ahead = list(zip(reference.ahead, outcome.ahead, strict=True))
    divergence = np.concatenate([(np.exp(p.astype(np.float64)) * (p.astype(np.float64) - q)).sum(axis=1) for p, q in ahead])
    same = np.concatenate([p.argmax(axis=1) == q.argmax(axis=1) for p, q in ahead])
    row |= {"kl_mean": float(divergence.mean()), "kl_median": float(np.median(divergence)), "same_next_token": float(same.mean())}
    if reference.loss:
        perplexity = float(np.exp(np.mean(outcome.loss)))
        row |= {"perplexity": perplexity, "perplexity_change": perplexity / float(np.exp(np.mean(reference.loss))) - 1}
    names = sorted({name for facts in outcome.facts for name in facts})
    return row | {name: float(np.mean([facts[name] for facts in outcome.facts if name in facts])) for name in names}
