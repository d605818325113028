"""A moving average of uses."""

from __future__ import annotations

import math
from typing import Any

from kvpager.errors import BadInput
from kvpager.store.eviction.base import EVICTIONS, Ranked

__all__ = ["Ema"]


@EVICTIONS.register("ema")
class Ema(Ranked):
    """Keep what was used most often lately: each use of the store is a step, and older ones weigh less.

    Source: note 000, part 11, applied to uses instead of attention; one number a block is enough, as in LRFU, Lee et al.,
    IEEE Trans. Computers 50(12), 2001. Differs in: ``log(sum of exp(rate * time of use))`` orders blocks as the decayed
    score does, and need not be touched as time goes by.

    Parameters
    ----------
    half_life : float
        Uses after which a use weighs half.
    """

    def __init__(self, half_life: float = 10_000.0) -> None:
        super().__init__()
        if not 0 < half_life < math.inf:
            raise BadInput(f"ema: half_life = {half_life}: give a number of uses above 0")
        self._rate, self._now = math.log(2.0) / half_life, 0

    def rank(self, before: Any) -> Any:
        """Logarithm of the score, time added; of equal ones the last used stays."""
        self._now += 1
        now = self._rate * self._now
        return (now if before is None else now + math.log1p(math.exp(before[0] - now)), self._now)
