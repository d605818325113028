"""The smallest set of blocks with a given share of the attention mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvpager.errors import BadInput
from kvpager.selectors.base import SELECTORS, Mask, View

__all__ = ["TopPMass"]


@SELECTORS.register("topp_mass")
@dataclass
class TopPMass:
    """Read each KV head's smallest set of blocks that holds `p` of its mass: an oracle, not for live use.

    Source: the top-p rule of Twilight, arXiv 2502.02770. Differs in: it ranks blocks by their true
    mass. The open block takes part in the ranking and is read anyway.

    Parameters
    ----------
    p : float
        Share of the mass, in (0, 1].
    """

    p: float = 0.95
    needs: ClassVar[frozenset[str]] = frozenset({"mass"})
    residency_free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check the share."""
        if not 0 < self.p <= 1:
            raise BadInput(f"topp_mass p = {self.p}: give a share above 0 and at most 1")

    def describe(self) -> str:
        """Return the access definition in words."""
        return f"block in its KV head's top-{100 * self.p:g} % mass set; open block not counted"

    def select(self, view: View) -> Mask:
        """Take blocks in descending mass until `p` is reached."""
        if view.mass is None:
            raise BadInput("topp_mass needs the mass of unread blocks: use it on a recording, or choose key_bound")
        mass = view.mass
        rest = np.maximum(1 - mass.sum(axis=1, keepdims=True), 0)
        ranked = np.concatenate([mass, rest], axis=1)
        order = np.argsort(-ranked, axis=1, kind="stable")
        ordered = np.take_along_axis(ranked, order, axis=1)
        before = np.cumsum(ordered, axis=1) - ordered
        mask = np.empty(ranked.shape, np.bool_)
        np.put_along_axis(mask, order, before < self.p, axis=1)
        return mask[:, :-1] & (mass > 0)
