"""Input of KVCache.AI's hit simulator: one JSON object a line, which names its block size."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import TraceError
from kvpager.traces.formats.base import FORMATS, LineFormat
from kvpager.traces.lines import json_object, number, whole_number
from kvpager.traces.pieces import PieceBuilder, Request

__all__ = ["KVCacheSimulator"]


@FORMATS.register("kvcache-simulator")
@dataclass(frozen=True)
class KVCacheSimulator(LineFormat):
    """kvcache-simulator JSONL: `hash_ids`, `input_length`, `block_size`; `timestamp` and `output_length` if they are known.

    Requests keep the order of the file. Ids are whole numbers or texts and name contents alone, not what stands before.
    Source: "Input Trace Format" in the description of kvcache-simulator 0.1.3.
    Differs in: `block_tokens` must say what lengths and block size say; a malformed line is an error, not left out;
    ids that are no number below 2^64 are told apart by 64 bits of their hash.

    Parameters
    ----------
    block_size : int
        Of lines that name none; 0 to refuse them.
    timestamp_s : float
        Seconds of one unit of `timestamp`, which the format leaves open; a line without one comes when the last one came.
    """

    block_size: int = 0
    timestamp_s: float = 0.001
    name: ClassVar[str] = "kvcache-simulator"
    chained: ClassVar[bool] = False
    rounding: ClassVar[str] = "either"

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:  # docstring inherited
        return b'"hash_ids"' in head and b'"block_size"' in head

    def parse(self, line: bytes, before: PieceBuilder) -> Request:  # docstring inherited
        record = json_object(line)
        if record.get("block_size") is None and not self.block_size:
            raise TraceError("expected 'block_size', the tokens of a block, or the setting block_size=…")
        size = self.block_size if record.get("block_size") is None else whole_number(record, "block_size", 1)
        tokens = whole_number(record, "input_length", 1)
        request = Request(
            number(record, "timestamp") * self.timestamp_s if record.get("timestamp") is not None else max(0.0, before.time_s),
            tokens,
            whole_number(record, "output_length", 0) if record.get("output_length") is not None else 0,
            _ids(record),
        )
        weights = record.get("block_tokens")
        if weights is not None and weights != [min(size, tokens - at) for at in range(0, size * len(request.ids), size)]:
            raise TraceError(f"expected 'block_tokens' of {size} each, the last one with what is left of {tokens}")
        return before.fitting(request, size)


def _ids(record: Mapping[str, Any]) -> NDArray[np.uint64]:
    values = record.get("hash_ids")
    if not isinstance(values, list) or not set(map(type, values)) <= {int, str}:
        raise TraceError("expected 'hash_ids', a list of whole numbers or texts")
    return np.array([_id(value) for value in values], np.uint64)


def _id(value: int | str) -> int:
    if isinstance(value, int) and value >= 0:
        return value
    text = str(value)
    if text.isascii() and text.isdecimal() and str(int(text[:20])) == text and int(text) < 2**64:
        return int(text)  # "12" and 12 are one block
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
