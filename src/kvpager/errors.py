"""What can go wrong, as one tree.

::

    KVPagerError
    ├── BadInput (ValueError)             the caller's fault: the CLI prints one line and exits with 2
    │   ├── UnknownName (LookupError)     a name that no registry holds; the message lists the near ones
    │   ├── ModelError                    a model or config that cannot be used, or is refused on purpose
    │   ├── CatalogueError                a hardware catalogue file with a value that cannot be trusted or understood
    │   ├── TextError                     a text that is missing, empty or too short
    │   ├── TraceError                    a trace that is missing, foreign, truncated or newer than this version
    │   ├── NoTrace                       nothing is chosen that could be shown
    │   ├── StoreError                    a store directory that cannot be used
    │   └── CapacityError                 a budget that cannot hold what must be held
    ├── StorageFull (OSError)             the disk ran full; what was written before stays readable
    ├── UnitsLost                         units that no tier can serve; the live cache says which block of whom that is
    ├── BlockLostError                    a block of a session that no tier can serve
    ├── TierBusy                          a tier's queue is full: wait, then submit again
    ├── PhysicalBoundError                a rate above what the named link or memory can do
    └── InvariantError (RuntimeError)     a law is broken: always a bug in kvpager or in a plug-in

Every message names the object, the place and the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "BadInput",
    "BlockLostError",
    "CapacityError",
    "CatalogueError",
    "InvariantError",
    "KVPagerError",
    "ModelError",
    "NoTrace",
    "PhysicalBoundError",
    "StorageFull",
    "StoreError",
    "TextError",
    "TierBusy",
    "TraceError",
    "UnitsLost",
    "UnknownName",
]


class KVPagerError(Exception):
    """Base of every error that kvpager raises on purpose."""


class BadInput(KVPagerError, ValueError):
    """The caller gave something that cannot be used; nothing was changed."""


class UnknownName(BadInput, LookupError):
    """A name that the registry does not hold."""


class ModelError(BadInput):
    """A model, its weights or its config cannot be used."""


class CatalogueError(BadInput):
    """A hardware catalogue file is missing, unreadable, or has a value without label, source, date or clear unit."""


class TextError(BadInput):
    """A text is missing, empty or shorter than asked."""


class TraceError(BadInput):
    """A trace is missing, foreign, truncated, corrupt or written by a newer version."""


class NoTrace(BadInput):
    """What is to be shown needs a recording, or a run's document, and none is chosen."""


class StoreError(BadInput):
    """A store directory cannot be used: made for another model or format, in use, read-only, or too small."""


class CapacityError(BadInput):
    """A budget is impossible, or too small for what must be held at once."""


class StorageFull(KVPagerError, OSError):
    """The disk is full; what had been completed before stays readable."""


class UnitsLost(KVPagerError):
    """Units without a good copy: missing, or with a wrong checksum. Never served (law 10).

    Parameters
    ----------
    units : int32
        Which.
    tier : int or None
        The tier that should have served them; None if they were known to be lost.
    """

    def __init__(self, units: NDArray[np.int32], tier: int | None) -> None:
        super().__init__(
            f"{len(units)} units have no good copy in {_place(tier)}, unit {int(units[0])} first: compute them again"
        )
        self.units, self.tier = units, tier


class BlockLostError(KVPagerError):
    """A block of a session that no tier can serve; the session stands at its last full step.

    Parameters
    ----------
    session : str
        Whose block.
    layer, block : int
        Which; `block` counts from the session's first real token.
    tier : int or None
        The tier that should have served it; None if it was known to be lost.
    """

    def __init__(self, session: str, layer: int, block: int, tier: int | None) -> None:
        super().__init__(
            f"block {block} of layer {layer} of session {session!r} has no good copy in {_place(tier)}: "
            f"prefill the session's tokens again from that block on, or drop the session"
        )
        self.session, self.layer, self.block, self.tier = session, layer, block, tier


def _place(tier: int | None) -> str:
    return "any tier" if tier is None else f"tier {tier}"


class TierBusy(KVPagerError):
    """A tier's queue is full; the driver waits and submits again."""


class PhysicalBoundError(KVPagerError):
    """An implied rate exceeds a specified physical bound (law 7)."""


class InvariantError(KVPagerError, RuntimeError):
    """A law of the design does not hold: a bug, never bad input."""
