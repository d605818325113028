"""The blocks with more than their share of the mass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.errors import BadInput
from kvpager.selectors.base import SELECTORS, Mask, View

__all__ = ["MassAboveUniform"]


@SELECTORS.register("mass_above_uniform")
@dataclass
class MassAboveUniform:
    """Read the blocks that draw more mass than uniform attention would give them.

    Source: kvpager's own, to show how far the definition of access moves a ratio.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"mass"})
    residency_free: ClassVar[bool] = True

    def describe(self) -> str:
        """Return the access definition in words."""
        return "block with more than 1/blocks of its KV head's mass; open block not counted"

    def select(self, view: View) -> Mask:
        """Compare with uniform attention over the complete blocks and the open one."""
        if view.mass is None:
            raise BadInput("mass_above_uniform needs the mass of unread blocks: use it on a recording, or choose key_bound")
        above: Mask = view.mass > 1 / (view.mass.shape[1] + 1)
        return above
