"""What the recorder asks of a model: no torch, no file format. `kvpager.live.transformers` fulfils it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvpager.core import KVGeometry

__all__ = ["Decoder", "Observation", "Progress"]

Progress = Callable[[str, int, int], None]
"""Called with what is being done (``"prefill"``, ``"decode"``, ...), how much of it is done, and how much there is."""


class Observation(NamedTuple):
    """What one decode step read. Block axes end with the open block; all float16."""

    mass: NDArray[np.float16]
    """``[layer, kv_head, block]``, as in `Recording`."""
    bound: NDArray[np.float16]
    """``[layer, kv_head, block]``."""
    query_cosine: NDArray[np.float16]
    """``[layer, q_head]``."""
    locality: NDArray[np.float16]
    """``[layer, q_head, range]``, the ranges of `kvpager.traces.locality`."""


class Decoder(Protocol):
    """A model that decodes one sequence and shows what each step attended to.

    Attributes
    ----------
    model, weights_sha256 : str
        Name and hash of the weights.
    geometry : KVGeometry
        Its full-attention layers are the layers observed.
    block_size : int
        Tokens of a block.
    versions : mapping of str to str
        Libraries that computed it.
    """

    model: str
    weights_sha256: str
    geometry: KVGeometry
    block_size: int
    versions: Mapping[str, str]

    def prefill(self, tokens: Sequence[int], progress: Progress) -> tuple[NDArray[np.float16], int]:
        """Start afresh with `tokens`; return the last queries' mass ``[query, layer, kv_head, block]`` and the next token."""
        ...

    def step(self, token: int) -> tuple[Observation, int]:
        """Append `token`, attend to all tokens so far, and return what was read and the next token."""
        ...
