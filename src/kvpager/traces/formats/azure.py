"""Azure's LLM inference traces: arrivals and lengths, no blocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

import numpy as np

from kvpager.errors import TraceError
from kvpager.traces.formats.base import FORMATS, LineFormat
from kvpager.traces.pieces import PieceBuilder, Request

__all__ = ["Azure"]

_NO_BLOCKS = np.empty(0, np.uint64)


@FORMATS.register("azure")
@dataclass(frozen=True)
class Azure(LineFormat):
    """Azure LLM inference CSV: arrivals, prompt and answer lengths; without block ids, so that no reuse can be replayed.

    Times are seconds since 1970 (UTC), to the microsecond.
    Source: Azure/AzurePublicDataset, AzureLLMInferenceDataset2023; Patel et al., Splitwise, ISCA '24.
    """

    name: ClassVar[str] = "azure"
    chained: ClassVar[bool] = False
    rounding: ClassVar[str] = "none"
    header: ClassVar[bytes] = b"TIMESTAMP,ContextTokens,GeneratedTokens"

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:  # docstring inherited
        return head.startswith(Azure.header)

    def parse(self, line: bytes, before: PieceBuilder) -> Request:  # docstring inherited
        try:
            moment, context, generated = line.decode("ascii").split(",")
            when = datetime.fromisoformat(moment)
            request = Request(when.replace(tzinfo=when.tzinfo or UTC).timestamp(), int(context), int(generated), _NO_BLOCKS)
        except ValueError:
            raise TraceError("expected a date and time and two whole numbers, e.g. 2023-11-16 18:15:46.68,374,44") from None
        if not (1 <= request.input_tokens < 2**40 and 0 <= request.output_tokens < 2**40):
            raise TraceError(f"expected at least 1 context and 0 generated tokens, not {context} and {generated}")
        return before.fitting(request, 0)
