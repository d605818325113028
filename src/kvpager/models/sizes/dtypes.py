"""How a KV element is stored: bits of the number, bytes of the scales beside it.

A scale that serves a whole tensor is loaded with the weights and costs a sequence nothing; scales of a token's head
or of a group of elements are cached with them and do.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kvpager.errors import UnknownName

__all__ = ["KV_DTYPES", "KVDtype", "kv_dtype"]


@dataclass(frozen=True, slots=True)
class KVDtype:
    """A storage format of KV elements.

    Parameters
    ----------
    name : str
        What the user writes.
    bits : int
        Bits of an element.
    scale_bytes : int
        Bytes of scale (and zero point) for each group.
    group_elements : int, optional
        Elements behind one scale; None: a whole head vector, if there are `scale_bytes` at all.
    source : str
        Who stores it so.
    """

    name: str
    bits: int
    scale_bytes: int = 0
    group_elements: int | None = None
    source: str = ""

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one head's vector of `elements`, scales included; vectors begin at whole bytes."""
        if not elements:
            return 0
        groups = -(-elements // (self.group_elements or elements))
        return -(-elements * self.bits // 8) + groups * self.scale_bytes


_VLLM = "vLLM 0.32.0, kv_cache_interface.py"
_MEMORY = "from memory, unverified"

KV_DTYPES = {
    dtype.name: dtype
    for dtype in (
        KVDtype("fp32", 32, source="IEEE 754"),
        KVDtype("bf16", 16, source="IEEE 754 binary32, cut to 16 bits"),
        KVDtype("fp16", 16, source="IEEE 754"),
        KVDtype("fp8", 8, source=f"e4m3, one scale for a layer's K and one for its V, kept with the weights ({_VLLM})"),
        KVDtype("fp8-token-head", 8, 4, source=f"e4m3, a float32 scale for each token and head ({_VLLM})"),
        KVDtype("int8", 8, 4, source=f"a float32 scale for each token and head ({_VLLM})"),
        KVDtype("int8-g32", 8, 2, 32, source=f"llama.cpp q8_0: a 16-bit scale for 32 elements ({_MEMORY})"),
        KVDtype("fp8-g128", 8, 4, 128, source="DSA's index keys: e4m3, a float32 scale for 128 elements (vLLM 0.32.0)"),
        KVDtype(
            "int4", 4, 4, 64, source=f"transformers' quantised cache: 16-bit scale and zero point for 64 elements ({_MEMORY})"
        ),
        KVDtype("int4-g32", 4, 2, 32, source=f"llama.cpp q4_0: a 16-bit scale for 32 elements ({_MEMORY})"),
        KVDtype("int4-g128", 4, 4, 128, source=f"KIVI and AWQ: 16-bit scale and zero point for 128 elements ({_MEMORY})"),
        KVDtype("nvfp4", 4, 1, 16, source=f"e2m1, an e4m3 scale for 16 elements ({_VLLM})"),
    )
}
"""By name. A plain name stands for what engines mean by it; the suffix -gN sets elements per scale."""


def kv_dtype(name: str) -> KVDtype:
    """Look a dtype up; raise `UnknownName` with the nearest names."""
    if name not in KV_DTYPES:
        near = difflib.get_close_matches(name, KV_DTYPES, n=3, cutoff=0.4) or sorted(KV_DTYPES)
        raise UnknownName(f"unknown KV dtype {name!r}: did you mean {', '.join(near)}? Known: {', '.join(KV_DTYPES)}")
    return KV_DTYPES[name]
