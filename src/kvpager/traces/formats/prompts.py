"""Plain prompts: tokenised, cut into blocks, and each block replaced by a keyed hash of itself and all before it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput, TraceError
from kvpager.traces.formats.base import FORMATS, LineFormat
from kvpager.traces.lines import json_object, number, whole_number
from kvpager.traces.pieces import PieceBuilder, Request
from kvpager.traces.requests import RequestTrace

__all__ = ["Prompts"]


@FORMATS.register("prompts")
@dataclass(frozen=True)
class Prompts(LineFormat):
    """JSONL with a `prompt` a line, and if known `time_s`, `output_tokens`, `session`, `tenant`; full blocks only are listed.

    No text can be recovered: a block becomes 64 bits of a keyed hash (BLAKE2b, chained), and the trace holds only the order
    in which these first appeared. Names of sessions become numbers, too; names of tenants are kept.
    Source: automatic prefix caching in vLLM hashes full blocks with their prefix in this way. Differs in: the key.

    Parameters
    ----------
    block_size : int
        Tokens of a block.
    tokenize : callable
        Text to token ids.
    key : bytes
        Up to 64 bytes, to be kept secret; by default random and forgotten.
    """

    block_size: int = 16
    tokenize: Callable[[str], Sequence[int]] | None = field(default=None, repr=False)
    key: bytes = field(default=b"", repr=False)
    name: ClassVar[str] = "prompts"
    chained: ClassVar[bool] = True
    rounding: ClassVar[str] = "floor"

    @staticmethod
    def recognises(name: str, head: bytes) -> bool:  # docstring inherited
        return b'"prompt"' in head and b'"hash_ids"' not in head

    def pieces(self, path: Path, *, skip_bad: int = 0) -> Iterator[RequestTrace]:  # docstring inherited
        if self.tokenize is None:
            raise BadInput(f"{str(path)!r} holds plain prompts: give the tokenizer of the model that is to answer them")
        if self.block_size < 1 or len(self.key) > 64:
            raise BadInput(
                f"prompts: block_size {self.block_size}, key of {len(self.key)} bytes: give at least 1, and at most 64"
            )
        keyed = replace(self, key=self.key or secrets.token_bytes(32))
        yield from super(Prompts, keyed).pieces(path, skip_bad=skip_bad)

    def parse(self, line: bytes, before: PieceBuilder) -> Request:  # docstring inherited
        record = json_object(line)
        prompt, session, tenant = (record.get(name) for name in ("prompt", "session", "tenant"))
        if not isinstance(prompt, str) or self.tokenize is None:
            raise TraceError("expected 'prompt', a text")
        if not isinstance(session, str | int | None) or not isinstance(tenant, str | None):
            raise TraceError("expected 'session', a text or whole number, and 'tenant', a text, or neither")
        tokens = np.asarray(self.tokenize(prompt), "<u4")
        if not len(tokens):
            raise TraceError("expected 'prompt', a text of at least one token")
        request = Request(
            number(record, "time_s") if "time_s" in record else max(0.0, before.time_s),
            len(tokens),
            whole_number(record, "output_tokens", 0) if "output_tokens" in record else 0,
            self._hashes(tokens),
            tenant=tenant or "",
        )
        request = before.fitting(request, self.block_size)
        if session is None:
            return request
        order, parent = before.turn(str(session))
        return request._replace(session=order, parent=parent)

    def _hashes(self, tokens: NDArray[Any]) -> NDArray[np.uint64]:
        state, hashes = b"", []
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            block = tokens[end - self.block_size : end].tobytes()
            state = hashlib.blake2b(state + block, key=self.key, digest_size=32).digest()
            hashes.append(state[:8])
        return np.frombuffer(b"".join(hashes), np.uint64)
