"""Mooncake's traces: one JSON object a line, ids of 512-token blocks that hash all blocks before them too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvpager.traces.formats.base import FORMATS, LineFormat
from kvpager.traces.lines import json_object, number, whole_number, whole_numbers
from kvpager.traces.pieces import PieceBuilder, Request

__all__ = ["Mooncake"]


@FORMATS.register("mooncake")
@dataclass(frozen=True)
class Mooncake(LineFormat):
    """Mooncake JSONL: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of every block, the partial last one too.

    Source: kvcache-ai/Mooncake, FAST25-release; Qin et al., Mooncake, FAST '25.

    Parameters
    ----------
    block_size : int
        Tokens of a block, which the file does not say.
    """

    block_size: int = 512
    name: ClassVar[str] = "mooncake"
    chained: ClassVar[bool] = True
    rounding: ClassVar[str] = "ceil"

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:  # docstring inherited
        return b'"hash_ids"' in head and b'"block_size"' not in head

    def parse(self, line: bytes, before: PieceBuilder) -> Request:  # docstring inherited
        record = json_object(line)
        request = Request(
            number(record, "timestamp") / 1000,
            whole_number(record, "input_length", 1),
            whole_number(record, "output_length", 0),
            whole_numbers(record, "hash_ids"),
        )
        return before.fitting(request, self.block_size)
