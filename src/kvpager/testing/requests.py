"""Made-up request traces: chat sessions, popular documents, agent loops. For tests; they are no evidence about any traffic.

A prompt is a list of segments, each a text of so many tokens that is the same wherever it appears. Blocks are cut from it and
numbered by what they hold and all that stands before them, so that ids are prefix-chained by construction. No extra is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from kvpager.traces.requests import COLUMNS, RequestTrace

__all__ = ["GENERATORS", "agent_requests", "document_requests", "session_requests"]

Prompt = tuple[tuple[int, int], ...]
"""Segments: which text, and its tokens."""


@dataclass
class _Turn:
    """One request before blocks are cut; `parent` is the turn that it continues."""

    time_s: float
    prompt: Prompt
    output_tokens: int
    session: int
    parent: _Turn | None = None
    tenant: int = 0


def session_requests(
    sessions: int = 40, *, systems: int = 4, turns: float = 5.0, block_size: int = 16, partial: bool = True, seed: int = 0
) -> RequestTrace:
    """Make up chat sessions: each opens with one of a few system prompts, and every turn repeats all that was said.

    Parameters
    ----------
    sessions, systems : int
        Conversations, and system prompts that they share, one for each tenant; the first are the most popular.
    turns : float
        Mean turns of a session.
    block_size : int
        Tokens of a block.
    partial : bool
        Whether the partial last block of a prompt is listed.
    seed : int
        Of the random generator.

    Returns
    -------
    RequestTrace
        By arrival.

    Examples
    --------
    >>> trace = session_requests(3)
    >>> trace.chained, int(trace.session.max())
    (True, 2)
    """
    rng, texts = np.random.default_rng(seed), count(systems)
    lengths, popularity = rng.integers(2 * block_size, 12 * block_size, systems), _zipf(systems, 1.0)
    made = []
    for session in range(sessions):
        system = int(rng.choice(systems, p=popularity))
        prompt: Prompt = ((system, int(lengths[system])),)
        before, time_s = None, rng.uniform(0, 10.0 * sessions)
        for _ in range(rng.geometric(1 / turns)):
            prompt = (*prompt, (next(texts), _length(rng, 40)))
            answer = _length(rng, 60)
            before = _Turn(time_s, prompt, answer, session, before, system)
            made.append(before)
            prompt = (*prompt, (next(texts), answer))
            time_s += rng.exponential(30.0)
    return _cut(made, block_size, partial, {"made_up": "sessions", "seed": seed}, [f"tenant-{i}" for i in range(systems)])


def document_requests(
    requests: int = 300, *, documents: int = 60, exponent: float = 1.0, block_size: int = 16, partial: bool = True, seed: int = 0
) -> RequestTrace:
    """Make up questions about documents whose popularity falls by Zipf's law; the question follows the document.

    Parameters
    ----------
    requests, documents : int
        How many.
    exponent : float
        Of Zipf's law, at least 0.
    block_size : int
        Tokens of a block.
    partial : bool
        Whether the partial last block of a prompt is listed.
    seed : int
        Of the random generator.

    Returns
    -------
    RequestTrace
        By arrival.
    """
    rng, texts = np.random.default_rng(seed), count(documents)
    lengths = rng.integers(block_size, 40 * block_size, documents)
    times = np.cumsum(rng.exponential(1.0, requests))
    chosen = rng.choice(documents, requests, p=_zipf(documents, exponent))
    made = [
        _Turn(time_s, ((document, int(lengths[document])), (next(texts), _length(rng, 20))), _length(rng, 60), -1)
        for time_s, document in zip(times.tolist(), chosen.tolist(), strict=True)
    ]
    return _cut(made, block_size, partial, {"made_up": "documents", "seed": seed}, [""])


def agent_requests(
    agents: int = 8, *, steps: int = 25, context_tokens: int = 2000, block_size: int = 16, partial: bool = True, seed: int = 0
) -> RequestTrace:
    """Make up agents: one long prompt of tools, then step after step a result is appended, until the context is summed up.

    Parameters
    ----------
    agents, steps : int
        Agents that run side by side, and steps of each.
    context_tokens : int
        At this length all but the common prompt is replaced by a summary.
    block_size : int
        Tokens of a block.
    partial : bool
        Whether the partial last block of a prompt is listed.
    seed : int
        Of the random generator.

    Returns
    -------
    RequestTrace
        By arrival.
    """
    rng, texts = np.random.default_rng(seed), count(1)
    tools: Prompt = ((0, 20 * block_size + 3),)
    made = []
    for agent in range(agents):
        prompt, before = (*tools, (next(texts), _length(rng, 80))), None
        time_s = rng.uniform(0, 60.0)
        for _ in range(steps):
            answer = _length(rng, 30)
            before = _Turn(time_s, prompt, answer, agent, before)
            made.append(before)
            prompt = (*prompt, (next(texts), answer), (next(texts), _length(rng, 120)))
            if sum(tokens for _, tokens in prompt) > context_tokens:
                prompt = (*tools, (next(texts), _length(rng, 100)))
            time_s += rng.exponential(5.0)
    return _cut(made, block_size, partial, {"made_up": "agents", "seed": seed}, [""])


GENERATORS: Mapping[str, Callable[..., RequestTrace]] = {
    "sessions": session_requests,
    "documents": document_requests,
    "agents": agent_requests,
}
"""All of them; each takes `block_size`, `partial` and `seed`."""


def _cut(made: list[_Turn], block_size: int, partial: bool, source: dict[str, Any], tenants: Iterable[str]) -> RequestTrace:
    """Sort turns by time, cut their prompts into blocks, and number these by their contents and all before."""
    made.sort(key=lambda turn: turn.time_s)
    rows = {id(turn): row for row, turn in enumerate(made)}
    numbers: dict[Any, int] = {}
    blocks: list[int] = []
    starts = [0]
    for turn in made:
        before = -1
        for content in _contents(turn.prompt, block_size, partial):
            before = numbers.setdefault((before, content), len(numbers))
            blocks.append(before)
        starts.append(len(blocks))
    columns = {
        "time_s": [turn.time_s for turn in made],
        "session": [turn.session for turn in made],
        "parent": [rows[id(turn.parent)] if turn.parent else -1 for turn in made],
        "input_tokens": [sum(tokens for _, tokens in turn.prompt) for turn in made],
        "output_tokens": [turn.output_tokens for turn in made],
        "tenant": [turn.tenant for turn in made],
    }
    arrays: dict[str, Any] = {name: np.array(columns[name], dtype) for name, dtype in COLUMNS.items()}
    return RequestTrace(
        **arrays, starts=np.array(starts, np.int64), blocks=np.array(blocks, np.int32), block_size=block_size, chained=True,
        tenants=tuple(tenants), source=source,
    )  # fmt: skip


def _contents(prompt: Prompt, block_size: int, partial: bool) -> Iterator[tuple[tuple[int, int, int], ...]]:
    """Yield what each block of a prompt holds: of which texts, from which token, how many."""
    block: list[tuple[int, int, int]] = []
    room = block_size
    for text, tokens in prompt:
        at = 0
        while at < tokens:
            taken = min(room, tokens - at)
            block.append((text, at, taken))
            at, room = at + taken, room - taken
            if not room:
                yield tuple(block)
                block, room = [], block_size
    if block and partial:
        yield tuple(block)


def _zipf(ranks: int, exponent: float) -> Any:
    weights = np.arange(1, ranks + 1) ** -exponent
    return weights / weights.sum()


def _length(rng: np.random.Generator, mean: float) -> int:
    return 1 + int(rng.exponential(mean))
