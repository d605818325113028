"""What a prefetcher is: it names units worth having before they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Seen, Tick, UnitTable
from kvpager.registry import Registry

__all__ = ["PREFETCHERS", "Prefetcher"]

PREFETCHERS: Registry[Callable[..., Prefetcher]] = Registry("prefetchers", "kvpager.prefetch")


class Prefetcher:
    """Base of prefetchers: observes like a policy, proposes nothing.

    A subclass must not look at demand later than the tick it proposes in (law 11).

    Attributes
    ----------
    needs : frozenset of str
        What it must be given beyond accesses, out of ``"mass"`` (of read units) and ``"bound"`` (key bounds of all
        complete units); only a replay of a recording of attention has the latter.
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

    def on_bound(self, tick: Tick, units: Ids, bound: NDArray[np.float32]) -> None:
        """Key bounds under this tick's query, after its demand; called only if `needs` holds ``"bound"``.

        Parameters
        ----------
        tick : Tick
            Now; one layer.
        units : int32 [kv_heads or 1, blocks]
            The layer's complete units, by head.
        bound : float32 [kv_heads or 1, blocks]
            Upper bounds on the scaled product of query and keys.
        """

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
