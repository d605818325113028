"""What a prefetcher is: it names units worth having before they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.registry import Registry

__all__ = ["PREFETCHERS", "Prefetcher"]

PREFETCHERS: Registry[Callable[..., Prefetcher]] = Registry("prefetchers", "kvpager.prefetch")


class Prefetcher:
    """Base of prefetchers: observes like a policy, proposes nothing.

    A subclass must not look at demand later than the tick it proposes in (law 11).

    Attributes
    ----------
    when : {"layer", "step"}
        ``"layer"``: after each tick, for the next layer. ``"step"``: after a step's last tick, for all layers.
    """

    needs: ClassVar[frozenset[str]] = frozenset()
    when: str = "layer"

    def reset(self, table: UnitTable, seed: int) -> None:
        """Forget everything and serve `table` from now on."""

    def on_new(self, tick: Tick, units: Ids) -> None:
        """Units were created."""

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        """Units were asked for."""

    def on_mass(self, seen: Seen) -> None:
        """Attention mass of the units read in this tick."""

    def propose(self, tick: Tick, candidates: Ids, max_units: int) -> Ids:
        """Return up to `max_units` of `candidates`, best first.

        Parameters
        ----------
        tick : Tick
            Now: everything up to and including this tick has been observed.
        candidates : Ids
            Existing units of the layer(s) ahead that are neither in HBM nor on their way.
        max_units : int
            At least 1.
        """
        return np.empty(0, np.int32)
