"""Under which name a block is kept: SHA-256 of everything that makes two blocks different, and nothing that does not.

Three functions, fixed for ever by the golden vectors of the tests. ``‖`` joins; every variable part has its length before it
(``<u4``, little-endian), so that no two different inputs give the same bytes::

    fingerprint  SHA-256("kvpager namespace 1" ‖ each field of the namespace)
    digest       SHA-256("kvpager block 1" ‖ fingerprint ‖ tenant ‖ key)
    chain        SHA-256("kvpager chain 1" ‖ key of the block before ‖ tokens as <u4);
                 before the first: SHA-256("kvpager chain 1" ‖ fingerprint ‖ tenant ‖ block size ‖ extra)
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput

__all__ = ["DIGEST_BYTES", "MOST_KEY_BYTES", "Names", "Namespace", "chain", "tenant_id"]

DIGEST_BYTES = 32
MOST_KEY_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must be equal for one run to use another's blocks. A field that does not apply stays as it is.

    Parameters
    ----------
    weights : str
        Hash or revision of the model's weights.
    dtype : str
        Element type of keys and values.
    layout : str
        Order of bytes within a block.
    block_tokens : int
        Tokens of a block; 0: not stated.
    rank, ranks : int
        Which part of a tensor- or pipeline-parallel model this is, of how many.
    lora : str
        Adapter, and its revision.
    rope : str
        Rotary parameters, if they are not the weights' own.
    """

    weights: str = ""
    dtype: str = ""
    layout: str = ""
    block_tokens: int = 0
    rank: int = 0
    ranks: int = 1
    lora: str = ""
    rope: str = ""

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.rank < self.ranks or self.block_tokens < 0:
            raise BadInput(
                f"namespace: rank {self.rank} of {self.ranks}, blocks of {self.block_tokens} tokens: count ranks from 0, and "
                f"give 0 tokens or more"
            )

    @property
    def fingerprint(self) -> bytes:
        """All of it as 32 bytes."""
        return _sha("namespace", *(str(value).encode() for value in astuple(self)))


class Names:
    """Turns keys into digests, for one namespace and one tenant.

    Parameters
    ----------
    namespace : Namespace
        Of the blocks.
    tenant : bytes
        Salt: who does not know it cannot name the blocks.

    Attributes
    ----------
    namespace_id, tenant_id : bytes
        What stands on disk beside a block, 16 bytes each; they do not tell the salt.
    """

    def __init__(self, namespace: Namespace, tenant: bytes) -> None:
        self.namespace_id = namespace.fingerprint[:16]
        self.tenant_id = tenant_id(tenant)
        self._start = hashlib.sha256(b"kvpager block 1" + _framed(namespace.fingerprint) + _framed(tenant))

    def digest(self, key: Any) -> bytes:
        """Return the 32 bytes that `key` is kept under.

        Raises
        ------
        BadInput
            If it is not 0 to 10,000 bytes.
        """
        if not isinstance(key, bytes | bytearray | memoryview) or len(key) > MOST_KEY_BYTES:
            what = f"of {len(key):,} bytes" if isinstance(key, bytes | bytearray | memoryview) else f"{type(key).__name__}"
            raise BadInput(f"key {what} cannot be used: give 0 to {MOST_KEY_BYTES:,} bytes")
        hashed = self._start.copy()
        hashed.update(_framed(bytes(key)))
        return hashed.digest()


def chain(
    tokens: Sequence[int] | NDArray[np.integer[Any]], namespace: Namespace | None = None, block_size: int = 16, *,
    tenant: bytes = b"", extra: bytes = b"",
) -> list[bytes]:  # fmt: skip
    """Return a key for each full block of `tokens`; it depends on all tokens before it.

    Parameters
    ----------
    tokens : sequence of int
        Token ids, 0 to 2^32 - 1. What does not fill a block gets no key.
    namespace : Namespace, optional
        See `Namespace`.
    block_size : int
        Tokens of a block.
    tenant : bytes
        Salt.
    extra : bytes
        What else the KV depends on: images, for example.

    Raises
    ------
    BadInput
        For a block size that is not the namespace's, and for tokens that are no ids.
    """
    namespace = namespace or Namespace()
    if block_size < 1 or namespace.block_tokens not in (0, block_size):
        raise BadInput(f"blocks of {block_size} tokens in a namespace of {namespace.block_tokens}: give the namespace's number")
    wide = np.asarray(tokens)
    if wide.size and (wide.ndim != 1 or wide.dtype.kind not in "iu" or wide.min() < 0 or int(wide.max()) >= 1 << 32):
        raise BadInput("tokens are not a row of ids from 0 to 2^32 - 1: give what the tokenizer gave")
    narrow = wide.astype("<u4")
    key = _sha("chain", namespace.fingerprint, tenant, struct.pack("<I", block_size), extra)
    keys = []
    for first in range(0, len(narrow) - block_size + 1, block_size):
        key = _sha("chain", key, narrow[first : first + block_size].tobytes())
        keys.append(key)
    return keys


def tenant_id(tenant: bytes) -> bytes:
    """Return the 16 bytes by which `tenant` is known on disk."""
    return _sha("tenant", tenant)[:16]


def _framed(part: bytes) -> bytes:
    return struct.pack("<I", len(part)) + part


def _sha(kind: str, *parts: bytes) -> bytes:
    return hashlib.sha256(f"kvpager {kind} 1".encode() + b"".join(map(_framed, parts))).digest()
