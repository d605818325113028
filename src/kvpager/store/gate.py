"""Fetch the blocks of a prefix, or compute them again: whichever is expected to be sooner, block by block from the front.

A prefix of n blocks can be split: fetch the first i, compute the others. By the planner's law (`kvpager.analysis`) computing
the tokens from `position` on costs a rate times tokens, and another times (query, key) pairs, so late tokens are dearer; a
fetch costs a call and its bytes. What a pass costs as such is left out, since one runs anyway for the tokens that no store
has. The gate is told how long fetches and prefills took and has no clock: the same calls give the same decisions.

Of blocks of one size, fetched at one rate, all or none is best: what computing a block would cost grows from block to block,
what fetching it costs does not. A split pays where a deadline bounds the fetch or blocks differ in size, and to explore.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.analysis.recompute import cheaper_to_fetch
from kvpager.analysis.steptime import attention_flops, causal_pairs, linear_flops
from kvpager.errors import BadInput
from kvpager.store.speed import Speed

__all__ = ["CHOICES", "Decision", "Gate", "prefill_rates"]

CHOICES = ("fetch", "split", "decline", "explore", "unknown", "nothing")
"""All blocks; the first ones; none; against the estimate, to learn; too little is known; none were offered."""
_OUTCOMES, _SPACING, _PIECE = 8, 4, 8

Costs = NDArray[np.float64]


class Decision(NamedTuple):
    """What to do with the blocks of a prefix that a store holds."""

    fetch: int
    """How many to fetch, from the front; the others are to be computed."""
    why: str
    """One of `CHOICES`."""
    blocks: int
    """How many were offered."""
    fetch_bytes: int
    """Of those to fetch."""
    fetch_s: float
    """How long that fetch is expected to take."""
    rest_s: float
    """And then computing the others."""
    fetch_all_s: float
    """How long it is expected to take if all are fetched."""
    compute_all_s: float
    """The same if all are computed."""

    @property
    def chosen_s(self) -> float:
        """How long what was chosen is expected to take."""
        return self.fetch_s + self.rest_s


def prefill_rates(
    flops_per_s: float, active_params: float, layers: float, q_heads: float, head_dim: float
) -> tuple[float, float]:
    """Return what the planner's law says of a prefill: seconds a token, and seconds a (query, key) pair.

    Parameters
    ----------
    flops_per_s : float
        What the accelerator reaches: peak times MFU. The gate corrects it by what it measures.
    active_params, layers, q_heads, head_dim : float
        Of the model, as in `kvpager.analysis.recompute.pass_flops`.
    """
    token, pair = linear_flops(active_params, 1.0), attention_flops(1.0, layers, q_heads, head_dim)
    return float(token) / flops_per_s, float(pair) / flops_per_s


class Gate:
    """Decides, learns and counts. May be used from several threads.

    It knows nothing of keys, texts or tenants: decisions depend on counts, sizes, positions and times only.

    Parameters
    ----------
    block_tokens : int
        Tokens of a block.
    prefill : (float, float), optional
        Seconds a token and a pair: see `prefill_rates`. Without, both are learned from `prefilled`.
    deadline_s : float
        No fetch is begun that is expected to take longer.
    explore_share : float
        What exploring may cost: this share of the seconds that decisions are expected to take.

    Raises
    ------
    BadInput
        For settings that cannot be used.
    """

    def __init__(
        self, block_tokens: int, prefill: tuple[float, float] | None = None, *, deadline_s: float = math.inf,
        explore_share: float = 0.02,
    ) -> None:  # fmt: skip
        if block_tokens < 1 or not deadline_s > 0 or not 0 <= explore_share < 1:
            raise BadInput(
                f"gate of blocks of {block_tokens} tokens, deadline {deadline_s} s, exploring {explore_share}: give 1 token or "
                f"more, seconds above 0, a share from 0 to below 1"
            )
        self._block_tokens, self._deadline_s, self._share = block_tokens, deadline_s, explore_share
        self._fetches, self._prefills = Speed(2), Speed(3, None if prefill is None else (*prefill, 0.0))
        self._outcomes: deque[bool] = deque(maxlen=_OUTCOMES)
        self._lock = threading.Lock()
        self._budget_s, self._unmeasured, self._spaced = 0.0, 0, _SPACING
        self._decisions: Counter[str] = Counter(dict.fromkeys(CHOICES, 0))
        self._blocks = {"fetched": 0, "declined": 0}
        self._bytes = {"fetched": 0, "declined": 0}
        self._saved_s = {"estimate": 0.0, "measurement": 0.0}
        self._regret_s = self._explored_s = 0.0

    def decide(self, blocks: int, block_bytes: int | Sequence[int], position: int) -> Decision:
        """Decide how many leading blocks to fetch.

        Parameters
        ----------
        blocks : int
            That the store holds, one after another from `position` on.
        block_bytes : int or sequence of int
            Of each of them, or [blocks].
        position : int
            Tokens before the first of them, whose KV is at hand.

        Raises
        ------
        BadInput
            For numbers below 0, or sizes that are not one a block.
        """
        sizes = [block_bytes] * blocks if isinstance(block_bytes, int) else list(block_bytes)
        if blocks < 0 or position < 0 or len(sizes) != blocks or min(sizes, default=0) < 0:
            raise BadInput(f"{blocks} blocks of {block_bytes} bytes at {position}: give numbers from 0 on, a size for each block")
        ends = np.cumsum([0, *sizes])
        with self._lock:
            fetch, costs = self._costs(ends, position)
            chosen, why = self._choose(fetch, costs, blocks)
            rest_s = float(costs[chosen] - fetch[chosen])
            decision = Decision(
                chosen, why, blocks, int(ends[chosen]), float(fetch[chosen]), rest_s, float(costs[-1]), float(costs[0])
            )  # fmt: skip
            self._count(decision, int(ends[-1]))
        return decision

    def fetched(self, size_bytes: int, seconds: float, decision: Decision | None = None, *, ok: bool = True) -> None:
        """Say how long a fetch took, successful or not; with the decision it followed, also what that saved."""
        with self._lock:
            if self._unmeasured >= _SPACING:  # all that is known is from before
                self._fetches.forget_pace()
                self._outcomes.clear()
            self._unmeasured = 0
            self._outcomes.append(ok)
            row = float(size_bytes), 1.0
            if size_bytes and (ok or seconds > self._fetches.seconds(np.array([row]))[0]):  # what fails at once is not fast
                self._fetches.observe(row, seconds)
            if decision is not None:
                self._resolve(decision, seconds + (decision.rest_s if ok else decision.compute_all_s), decision.compute_all_s)

    def prefilled(self, tokens: int, position: int, seconds: float, decision: Decision | None = None) -> None:
        """Say how long it took to compute `tokens` behind `position` others; see `fetched`."""
        pairs = float(causal_pairs(float(tokens), float(position)))
        with self._lock:
            if decision is not None and not decision.fetch and decision.blocks:
                whole_s = float(self._prefills.seconds(np.array([[tokens, pairs, 1.0]]))[0])
                share = min(decision.compute_all_s / whole_s, 1.0) if whole_s else 1.0
                self._resolve(decision, seconds * share, decision.fetch_all_s)
            self._prefills.observe((float(tokens), pairs, 1.0), seconds)

    def stats(self) -> dict[str, Any]:
        """Return what was decided, and what that saved against the other choice: by estimate, and where it was measured.

        ``regret_s`` sums the seconds by which a choice, as measured, took longer than the other one was expected to;
        ``explored_s`` what was expected to be lost in order to learn. ``fetch_rates`` are seconds a byte and a fetch,
        ``prefill_rates`` seconds a token, a pair and a pass; empty where nothing is known.
        """
        with self._lock:
            return {
                "decisions": dict(self._decisions), "blocks": dict(self._blocks), "bytes": dict(self._bytes),
                "saved_s": dict(self._saved_s), "regret_s": self._regret_s, "explored_s": self._explored_s,
                "failed_share": self._failing(), "fetch_rates": self._fetches.rates, "prefill_rates": self._prefills.rates,
            }  # fmt: skip

    def _costs(self, ends: NDArray[np.int64], position: int) -> tuple[Costs, Costs]:
        """Seconds to fetch the first 0, 1, … blocks; and the same with computing the others."""
        done: Costs = np.arange(len(ends), dtype=np.float64) * self._block_tokens
        rest: Costs = done[-1] - done
        pairs = np.asarray(causal_pairs(rest, position + done), np.float64)
        compute = self._prefills.seconds(np.stack([rest, pairs, np.zeros(len(ends))], axis=1))
        fetch = self._fetches.seconds(np.stack([ends.astype(np.float64), np.ones(len(ends))], axis=1))
        fetch[0] = 0.0
        return fetch, fetch + compute + self._failing() * (compute[0] - compute)  # what fails is computed after all

    def _choose(self, fetch: Costs, costs: Costs, blocks: int) -> tuple[int, str]:
        if not blocks:
            return 0, "nothing"
        if not self._prefills.observed and not self._prefills.rates:
            return blocks, "unknown"
        if not self._fetches.observed:
            return -(-blocks // _PIECE), "unknown"
        possible = np.where(fetch <= self._deadline_s, costs, math.inf)
        best = int(np.flatnonzero(cheaper_to_fetch(possible, possible.min()))[-1])  # the most of equals
        self._budget_s += self._share * float(costs[best])
        self._spaced += 1
        self._unmeasured += not best
        would_lose = float(costs[best] + (self._fetches.doubt - 1) * fetch[best]) > costs[0]  # if the last time was no outlier
        explored = self._farthest(possible - costs[best], best, would_lose)
        if explored is None:
            return best, "fetch" if best == blocks else "split" if best else "decline"
        lost_s = max(float(costs[explored] - costs[best]), 0.0)
        self._budget_s -= min(lost_s, self._budget_s)
        self._explored_s += lost_s
        self._spaced = 0
        return explored, "explore"

    def _farthest(self, lost_s: Costs, best: int, would_lose: bool) -> int | None:
        """The number of blocks from which most is learned of what can be afforded; None if there is nothing to learn."""
        blocks = len(lost_s) - 1
        piece = -(-blocks // _PIECE)
        if would_lose and best > piece:
            return piece
        if not self._share or self._spaced <= _SPACING:
            return None
        affordable = np.flatnonzero(lost_s <= self._budget_s)
        if not best and self._unmeasured > _SPACING:
            return int(affordable[-1]) or None
        if best == blocks and 2 * self._prefills.largest < blocks * self._block_tokens and affordable[0] < blocks:
            return int(affordable[0])
        return None

    def _count(self, decision: Decision, all_bytes: int) -> None:
        self._decisions[decision.why] += 1
        self._blocks["fetched"] += decision.fetch
        self._blocks["declined"] += decision.blocks - decision.fetch
        self._bytes["fetched"] += decision.fetch_bytes
        self._bytes["declined"] += all_bytes - decision.fetch_bytes
        if decision.why in ("fetch", "split", "decline"):
            self._saved_s["estimate"] += (decision.compute_all_s if decision.fetch else decision.fetch_all_s) - decision.chosen_s

    def _resolve(self, decision: Decision, took_s: float, other_s: float) -> None:
        if decision.why not in ("unknown", "nothing"):
            self._saved_s["measurement"] += float(other_s - took_s)
            self._regret_s += max(float(took_s - other_s), 0.0)

    def _failing(self) -> float:
        return self._outcomes.count(False) / len(self._outcomes) if self._outcomes else 0.0
