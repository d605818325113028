"""How long something takes, learned from how long it took: a sum of non-negative rates times what was to be done.

Two things are told apart. The *shape* (what a byte costs beside a call, a pair of tokens beside a token) changes slowly and
is fitted to a few observations of every size, small and large. The *pace* is how much longer than by the shape the last few
took: a median, so that a single outlier moves nothing and a disk that slows down is known after three.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import chain, combinations
from statistics import median

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput

__all__ = ["Speed"]

Rows = NDArray[np.float64]
_RECENT, _A_SIZE, _OFTEN, _DOUBT = 5, 8, 4, 2.0
_NOISE, _DEARER, _ROUNDS, _LEAST = 0.02, 1.2, 4, 1e-9


class Speed:
    """What is known of how long something takes.

    Parameters
    ----------
    columns : int
        Numbers that say what is to be done; the first of them, above 0, is its size.
    told : sequence of float, optional
        Seconds for one of each column, if the shape is known: then only the pace is learned.

    Attributes
    ----------
    largest : float
        Size of the largest that was observed.
    observed : int
        How many were.
    doubt : float
        How many times as long as is expected even now the last one took, if more than twice: an outlier, or the first of
        many. Else 1.
    """

    def __init__(self, columns: int, told: Sequence[float] | None = None) -> None:
        if told is not None and (len(told) != columns or not all(0 <= rate < math.inf for rate in told) or not told[0]):
            raise BadInput(f"speed told as {told}: give {columns} numbers of seconds, the first above 0, the others 0 or more")
        self._columns, self._told = columns, told is not None
        self._rates: Rows | None = None if told is None else np.array(told, np.float64)
        self._recent: deque[tuple[Rows, float]] = deque(maxlen=_RECENT)
        self._sizes: dict[int, deque[tuple[Rows, float]]] = {}
        self._pace = 1.0
        self.largest, self.observed = 0.0, 0
        self.doubt = 1.0

    @property
    def rates(self) -> list[float]:
        """Seconds for one of each column, at the present pace; empty if nothing is known."""
        return [] if self._rates is None else (self._rates * self._pace).tolist()

    def seconds(self, rows: Rows) -> Rows:
        """Return how long float64 [cases, columns] are expected to take, float64 [cases]; 0 if nothing is known."""
        if self._rates is None:
            return np.zeros(len(rows))
        expected: Rows = rows @ self._rates * self._pace
        return expected

    def observe(self, row: Sequence[float], seconds: float) -> None:
        """Take in how long something took.

        Raises
        ------
        BadInput
            For what is no size or no time.
        """
        if not all(0 <= number < math.inf for number in (*row, seconds)) or not row[0]:
            raise BadInput(f"{list(row)} in {seconds} seconds is no observation: give finite numbers from 0 on, a size above 0")
        what, seconds = np.array(row, np.float64), max(seconds, 1e-9)
        self.observed += 1
        self.largest = max(self.largest, row[0])
        self._recent.append((what, seconds))
        self._settle()
        if not self._told:
            self._sizes.setdefault(math.frexp(row[0])[1], deque(maxlen=_A_SIZE)).append((what, seconds / self._pace))
            if self.observed <= _OFTEN or self.observed % _OFTEN == 0:
                self._fit()
                self._settle()

    def forget_pace(self) -> None:
        """Believe the next observation alone: what was observed before is out of date."""
        self._recent.clear()

    def _settle(self) -> None:
        """Say at what pace the last ones went."""
        if self._rates is not None:
            paces = [took / float(what @ self._rates) for what, took in self._recent]
            self._pace = median(paces)
            self.doubt = paces[-1] / self._pace if paces[-1] > _DOUBT * self._pace else 1.0

    def _fit(self) -> None:
        """Find the rates of least relative error, with no more columns than pay for themselves."""
        seen = [*chain.from_iterable(self._sizes.values())]
        rows = np.array([what for what, _ in seen]) / np.array([took for _, took in seen])[:, None]
        scale = np.maximum(rows.max(axis=0), 1e-300)
        best, least = np.zeros(self._columns), math.inf
        for more in range(self._columns):
            for others in combinations(range(1, self._columns), more):
                some = [0, *others]
                rates = np.maximum(_least_deviation(rows[:, some] / scale[some]), [_LEAST] + [0.0] * more)
                error = float(np.abs(1 - rows[:, some] / scale[some] @ rates).mean())
                if (penalised := (error + _NOISE) * _DEARER**more) < least:
                    best, least = np.zeros(self._columns), penalised
                    best[some] = rates / scale[some]
        self._rates = best


def _least_deviation(rows: Rows) -> Rows:
    """Rates for which ``rows @ rates`` are nearest to 1 by absolute error, about: outliers weigh little."""
    weights: Rows = np.ones(len(rows))
    rates: Rows = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        rates = np.asarray(np.linalg.lstsq(rows * weights[:, None], weights, rcond=None)[0], np.float64)
        weights = 1 / np.sqrt(np.maximum(np.abs(1 - rows @ rates), 0.01))
    return rates
