"""Which of the blocks that the store has are offered to an engine: the gate, as a tier asks it.

An engine asks what is there, and then fetches what it was told of. So the gate is heard before the answer: what it declines
is said to be missing, and the engine computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvpager.errors import BadInput
from kvpager.store.gate import Decision, Gate

__all__ = ["Offers"]

_MANY_TOKENS = 1 << 40


class Offers:
    """Decides how much of a prefix is fetched, and learns from what was.

    Parameters
    ----------
    block_tokens, block_bytes : int
        Of a block.
    prefill_tokens_per_s : float
        How fast the engine computes a prompt. It is believed: no tier sees how long that took.
    deadline_s : float
        No fetch is begun that is expected to take longer.

    Attributes
    ----------
    gate : Gate
        Which decides.

    Raises
    ------
    BadInput
        For a speed that is none.
    """

    def __init__(self, block_tokens: int, block_bytes: int, prefill_tokens_per_s: float, deadline_s: float = math.inf) -> None:
        if not 0 < prefill_tokens_per_s < math.inf:
            raise BadInput(
                f"prefill_tokens_per_s = {prefill_tokens_per_s}: give the tokens of a prompt computed a second, above 0"
            )
        self.gate = Gate(block_tokens, (1 / prefill_tokens_per_s, 0.0), deadline_s=deadline_s)
        self.gate.prefilled(_MANY_TOKENS, 0, _MANY_TOKENS / prefill_tokens_per_s)  # so that it declines nothing to learn this
        self._block_bytes = block_bytes
        self._decisions: dict[str, Decision] = {}
        self._told: dict[str, float] = {}

    def offer(self, request: str, there: Sequence[bool]) -> list[bool]:
        """Return which blocks of a request to tell of.

        Parameters
        ----------
        request : str
            Its id.
        there : sequence of bool
            Of the blocks that were asked about, first to last, whether the store has them. Behind one that it has not, none
            is of use.
        """
        held = next((number for number, one in enumerate(there) if not one), len(there))
        if not held:
            return [False] * len(there)
        decision = self._decisions[request] = self.gate.decide(
            held, self._block_bytes, 0
        )  # at one rate for all tokens, where they stand is all one
        return [number < decision.fetch for number in range(len(there))]

    def fetched(self, request: str, blocks: int, seconds: float, *, ok: bool) -> None:
        """Learn how long a fetch for a request took, and whether all blocks came."""
        decision = self._decisions.pop(request, None)
        followed = decision if decision is not None and decision.fetch == blocks else None
        self.gate.fetched(blocks * self._block_bytes, seconds, followed, ok=ok)

    def forget(self, request: str) -> None:
        """Forget a request that has ended."""
        self._decisions.pop(request, None)

    def news(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return by how much counters rose since the last call, and what gauges stand at; empty if nothing happened."""
        counters, gauges = _numbers(self.gate.stats())
        rose = {name: value - self._told.get(name, 0) for name, value in counters.items() if value > self._told.get(name, 0)}
        changed = {name: value for name, value in gauges.items() if value != self._told.get(name, 0)}
        self._told = counters | gauges
        return rose, changed


def _numbers(said: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Counters and gauges of `kvpager.connect.counts`, out of `Gate.stats`."""
    decided = {f"gate_decided_{choice}": count for choice, count in said["decisions"].items() if choice != "nothing"}
    blocks = {f"gate_blocks_{chosen}": count for chosen, count in said["blocks"].items()}
    seconds = {"gate_explored_seconds": said["explored_s"], "gate_regret_seconds": said["regret_s"]}
    saved = said["saved_s"]
    gauges = {"gate_saved_estimate_seconds": saved["estimate"], "gate_saved_measured_seconds": saved["measurement"]}
    return decided | blocks | seconds, gauges
