"""Products of a KV head's queries with rows of a key summary, and the softmax over them, as vector code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from llvmlite import ir  # type: ignore[import-untyped]

from kvpager.live.kernels.ir import I32, I64, INTEGERS, LANES, LOWEST, VECTOR, Emit, Value

__all__ = ["ScoreCode", "ScoreShape"]

_BYTES: Final = {"float32": 4, "bfloat16": 2, "uint8": 1, "nibbles": 1}
_AHEAD: Final = 8
"""Rows between the one that is read and the one that is asked for; callers name so many more."""
_SUMS: Final = 8
"""Sums under way at a time: as many as a fused operation takes cycles, twice."""


@dataclass(frozen=True)
class ScoreShape:
    """What a scoring loop is compiled for.

    Parameters
    ----------
    kind : {"float32", "bfloat16", "uint8", "nibbles"}
        Elements of a row; nibbles hold two vectors.
    parts : int
        Vectors of a row, 1 or 2, each with queries of its own.
    joined : bool
        The parts' products are added up.
    group : int
        Queries of each part.
    dim : int
        Elements of a vector, a multiple of 8.
    weights : tuple of float
        Of each part, or of their sum, in the softmax; empty for no softmax, then `group` is 1.
    """

    kind: str
    parts: int
    joined: bool
    group: int
    dim: int
    weights: tuple[float, ...]

    @property
    def outputs(self) -> int:
        """Products kept of each row, part by part."""
        return self.group * (1 if self.joined else self.parts)

    @property
    def heads(self) -> int:
        """Queries taken at a time."""
        return min(self.group, _SUMS * self.group // self.outputs)

    @property
    def rows(self) -> int:
        """Rows taken at a time."""
        return max(1, _SUMS // self.outputs)


class ScoreCode(Emit):
    """Writes the code of one shape.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Of the intrinsic that is generated.
    shape : ScoreShape
        What to generate for.
    """

    def __init__(self, builder: Value, shape: ScoreShape) -> None:
        super().__init__(builder)
        self.shape = shape

    def products(self, *arguments: Value) -> None:
        """Write `outputs` products, `stride` bytes apart, of as many rows as are taken at a time."""
        query, zero, first, second, order, logits, stride = arguments
        shape = self.shape
        places: list[list[Value]] = []
        for row in range(shape.rows):
            number = self.builder.sext(self.load(self.at(order, 4 * row), I32), I64)
            offset = self.times(number, shape.dim * _BYTES[shape.kind])
            places.append([self.at(base, offset) for base in (first, second)])
            self._ask(self.load(self.at(order, 4 * (row + _AHEAD)), I32), [first, second])
        for start in range(0, shape.group, shape.heads):
            heads = range(start, min(start + shape.heads, shape.group))
            self._tile(list(heads), query, zero, places, logits, stride)

    def _ask(self, number: Value, bases: list[Value]) -> None:
        """Ask for a row that is read soon."""
        size = self.shape.dim * _BYTES[self.shape.kind]
        offset = self.times(self.builder.sext(number, I64), size)
        for base in bases[: 1 if self.shape.kind == "nibbles" else self.shape.parts]:
            for line in range(0, size, 64):
                self.prefetch(self.at(self.at(base, offset), line))

    def _tile(self, heads: list[int], query: Value, zero: Value, places: list[list[Value]], logits: Value, stride: Value) -> None:
        """Products of some queries."""
        shape = self.shape
        kept = 1 if shape.joined else shape.parts
        sums = {(row, part, head): self.variable(VECTOR) for row in range(shape.rows) for part in range(kept) for head in heads}

        def body(channel: Value) -> None:
            bytes_ = self.times(channel, _BYTES[shape.kind])
            rows = [self._row([self.at(place, bytes_) for place in pair]) for pair in places]
            for part in range(shape.parts):
                for head in heads:
                    place = self.at(self.times(channel, 4), 4 * (part * shape.group + head) * shape.dim)
                    asked = self.load(self.at(query, place), VECTOR)
                    for row in range(shape.rows):
                        self.add(sums[row, 0 if shape.joined else part, head], asked, rows[row][part])

        self.loop(shape.dim, body, LANES)
        entries = list(sums.items())
        for begin in range(0, len(entries), 4):
            some = entries[begin : begin + 4]
            reduced = self.reduce([self.builder.load(variable) for _, variable in some], self.builder.fadd)
            for lane, ((row, part, head), _) in enumerate(some):
                output = part * shape.group + head
                value = self.builder.extract_element(reduced, ir.Constant(I32, lane))
                value = self.builder.fadd(value, self.load(self.at(zero, 4 * output)))
                self.store(value, self.at(self.at(logits, self.times(stride, output)), 4 * row))

    def _row(self, pair: list[Value]) -> list[Value]:
        """Eight channels of each vector of a row, as floats."""
        kind, b = self.shape.kind, self.builder
        if kind == "float32":
            return [self.load(place, VECTOR) for place in pair]
        if kind == "bfloat16":
            wide = [b.zext(self.load(place, ir.VectorType(ir.IntType(16), LANES), 2), INTEGERS) for place in pair]
            return [b.bitcast(b.shl(bits, self.integers(16)), VECTOR) for bits in wide]
        codes = [b.zext(self.load(place, ir.VectorType(ir.IntType(8), LANES), 1), INTEGERS) for place in pair]
        if kind == "nibbles":
            codes = [b.and_(codes[0], self.integers(15)), b.lshr(codes[0], self.integers(4))]
        return [b.sitofp(code, VECTOR) for code in codes]

    def finish(self, logits: Value, stride: Value, count: Value, result: Value) -> None:
        """Turn `count` products of each query, in eights, into scores: as they are, or softmax and mean over the group."""
        shape = self.shape
        if not shape.weights:
            self.loop(count, lambda i: self.store(self._at(logits, i), self.at(result, self.times(i, 4))), LANES)
            return
        rows = [
            [self.at(logits, self.times(stride, part * shape.group + head)) for part in range(len(shape.weights))]
            for head in range(shape.group)
        ]
        shares = [self._exponentials(parts, count) for parts in rows]

        def mean(i: Value) -> None:
            total = self.vector(0.0)
            for parts, share in zip(rows, shares, strict=True):
                total = self.fma(self._at(parts[0], i), share, total)
            self.store(total, self.at(result, self.times(i, 4)))

        self.loop(count, mean, LANES)

    def _exponentials(self, parts: list[Value], count: Value) -> Value:
        """Replace a query's first products by weighed sums of exponentials; return 1 / (their sum * group) in all lanes."""
        top, total = self.variable(VECTOR, self.vector(LOWEST)), self.variable(VECTOR)

        def highest(i: Value) -> None:
            for part in parts:
                self.builder.store(self.greater(self._at(part, i), self.builder.load(top)), top)

        self.loop(count, highest, LANES)
        most = self._all(self.builder.load(top), self.greater)

        def weigh(i: Value) -> None:
            value: Any = None
            for part, weight in zip(parts, self.shape.weights, strict=True):
                exp = self.exp(self.builder.fsub(self._at(part, i), most))
                value = exp if value is None else self.fma(exp, self.vector(weight), value)
            self.store(value, self.at(parts[0], self.times(i, 4)))
            self.builder.store(self.builder.fadd(self.builder.load(total), value), total)

        self.loop(count, weigh, LANES)
        whole = self.builder.fmul(self._all(self.builder.load(total), self.builder.fadd), self.vector(self.shape.group))
        return self.builder.fdiv(self.vector(1.0), whole)

    def _all(self, vector: Value, combine: Any) -> Value:
        """Reduce a vector; the result in all lanes."""
        return self.shuffle(self.reduce([vector], combine), self.vector(0.0, 4), [0] * LANES)

    def _at(self, base: Value, index: Value) -> Value:
        return self.load(self.at(base, self.times(index, 4)), VECTOR)
