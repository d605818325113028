"""Vectors of eight in LLVM's intermediate representation: loads, exact fused sums, exp, tanh, reductions.

What numba makes of indexed arrays it does not vectorise well, because an index may be negative. Here addresses are plain
integers and every operation on floats stands where it stands: nothing is reassociated or contracted, so the same
inputs give the same bits wherever the code is inlined. Nothing in it belongs to one processor.

Everything is generated inside a numba intrinsic: `Emit` wraps that intrinsic's builder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

__all__ = ["BF16", "F32", "LANES", "LOWEST", "Emit", "Value"]

Value = Any
"""A value of the representation; llvmlite ships no types."""

LANES: Final = 8
LOWEST: Final = -3.0e38
"""Below any logit, and finite, so that differences of two of them are no NaN."""
F32: Final = "float32"
BF16: Final = "bfloat16"

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()
VECTOR = ir.VectorType(FLOAT, LANES)
INTEGERS = ir.VectorType(I32, LANES)


def _tail(degree: int = 4, half: float = 0.34658) -> list[float]:
    """Coefficients of (exp(r) - 1 - r) / r², lowest first: interpolated at Chebyshev's nodes, error about 2e-9."""
    nodes = half * np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    values = sum(nodes**power / math.factorial(power + 2) for power in range(16))
    return [float(value) for value in np.linalg.solve(np.vander(nodes, increasing=True), values)]


_TAIL: Final = _tail()
_TANH: Final = (-1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075)


class Emit:
    """Writes vector code at a builder's place.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Of the intrinsic that is generated.
    """

    def __init__(self, builder: Value) -> None:
        self.builder = builder

    # -- addresses and memory

    def at(self, base: Value, offset_bytes: int | Value) -> Value:
        """Address `offset_bytes` behind `base`."""
        if isinstance(offset_bytes, int):
            if offset_bytes == 0:
                return base
            offset_bytes = ir.Constant(I64, offset_bytes)
        return self.builder.add(base, offset_bytes)

    def times(self, value: Value, factor: int) -> Value:
        """Multiple of an integer."""
        return self.builder.mul(value, ir.Constant(I64, factor))

    def load(self, address: Value, kind: Value = FLOAT, align: int = 4) -> Value:
        """What stands at an address."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=align)

    def store(self, value: Value, address: Value) -> None:
        """Put a value at an address."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=4)

    def prefetch(self, address: Value) -> None:
        """Ask for a cache line that is read soon."""
        pointer = self.builder.inttoptr(address, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
        self.call("llvm.prefetch.p0", kind, [pointer, ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)])

    def row(self, address: Value, element: str) -> tuple[Value, Value]:
        """Load sixteen neighbours as two vectors: first and last eight of float32, even and odd ones of bfloat16."""
        if element == F32:
            return self.load(address, VECTOR, 1), self.load(self.at(address, 4 * LANES), VECTOR, 1)
        pairs = self.load(address, INTEGERS, 1)
        even = self.builder.shl(pairs, self.integers(16))
        odd = self.builder.and_(pairs, self.integers(0xFFFF0000))
        return self.builder.bitcast(even, VECTOR), self.builder.bitcast(odd, VECTOR)

    # -- constants

    def vector(self, number: float, lanes: int = LANES) -> Value:
        """The same number in every lane."""
        number = float(np.float32(number))
        return ir.Constant(ir.VectorType(FLOAT, lanes), [ir.Constant(FLOAT, number)] * lanes)

    def integers(self, number: int | Sequence[int]) -> Value:
        """One integer in every lane, or one a lane."""
        numbers = [number] * LANES if isinstance(number, int) else list(number)
        return ir.Constant(INTEGERS, [ir.Constant(I32, value) for value in numbers])

    def splat(self, scalar: Value, lanes: int = LANES) -> Value:
        """A scalar in every lane."""
        kind = ir.VectorType(scalar.type, lanes)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.shuffle(first, first, [0] * lanes)

    # -- arithmetic

    def shuffle(self, a: Value, b: Value, order: Sequence[int]) -> Value:
        """Lanes of two vectors in a new order."""
        mask = ir.Constant(ir.VectorType(I32, len(order)), [ir.Constant(I32, lane) for lane in order])
        return self.builder.shuffle_vector(a, b, mask)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Return ``a * b + c``, rounded once."""
        kind = a.type
        bits = "f32" if getattr(kind, "element", kind) == FLOAT else "f64"
        name = f"llvm.fma.v{kind.count}{bits}" if isinstance(kind, ir.VectorType) else f"llvm.fma.{bits}"
        return self.call(name, ir.FunctionType(kind, [kind] * 3), [a, b, c])

    def greater(self, a: Value, b: Value) -> Value:
        """Lane-wise maximum."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def exp(self, x: Value) -> Value:
        """Exponential of numbers ≤ 0, relative error below 2e-7; 0 below -87."""
        b, kind, lanes = self.builder, x.type, x.type.count
        whole = ir.VectorType(I32, lanes)
        magic = self.vector(12582912.0, lanes)  # 1.5 * 2**23: the sum's low bits are the nearest integer
        shifted = self.fma(x, self.vector(1.4426950408889634, lanes), magic)
        count = b.fsub(shifted, magic)
        rest = self.fma(count, self.vector(-0.693359375, lanes), x)
        rest = self.fma(count, self.vector(2.12194440e-4, lanes), rest)
        sum_ = self.vector(_TAIL[-1], lanes)
        for factor in (*reversed(_TAIL[:-1]), 1.0, 1.0):
            sum_ = self.fma(sum_, rest, self.vector(factor, lanes))
        exponent = b.shl(b.bitcast(shifted, whole), ir.Constant(whole, [ir.Constant(I32, 23)] * lanes))
        result = b.bitcast(b.add(b.bitcast(sum_, whole), exponent), kind)
        return b.select(b.fcmp_ordered("<", x, self.vector(-87.0, lanes)), self.vector(0.0, lanes), result)

    def tanh(self, x: Value) -> Value:
        """Hyperbolic tangent: by its series near 0, elsewhere by exp."""
        b = self.builder
        whole, kind = ir.VectorType(I32, x.type.count), x.type
        bits = b.bitcast(x, whole)
        sign = b.and_(bits, ir.Constant(whole, [ir.Constant(I32, 0x80000000)] * kind.count))
        size = b.bitcast(b.xor(bits, sign), kind)
        exp = self.exp(b.fmul(size, self.vector(-2.0, kind.count)))
        one = self.vector(1.0, kind.count)
        large = b.fdiv(b.fsub(one, exp), b.fadd(one, exp))
        square = b.fmul(size, size)
        small = self.vector(_TANH[-1], kind.count)
        for factor in reversed(_TANH[:-1]):
            small = self.fma(small, square, self.vector(factor, kind.count))
        small = self.fma(b.fmul(small, square), size, size)
        result = b.select(b.fcmp_ordered("<", size, self.vector(0.3, kind.count)), small, large)
        return b.bitcast(b.or_(b.bitcast(result, whole), sign), kind)

    def reduce(self, vectors: Sequence[Value], combine: Callable[[Value, Value], Value]) -> Value:
        """Reduce up to four vectors of eight lanes, each to one lane of a vector of four, always in the same order."""
        a, b, c, d = [*vectors, *[vectors[-1]] * (4 - len(vectors))]

        def halves(x: Value, y: Value, low: Sequence[int], high: Sequence[int]) -> Value:
            return combine(self.shuffle(x, y, low), self.shuffle(x, y, high))

        interleave = [0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15]
        ab, cd = halves(a, b, *interleave), halves(c, d, *interleave)  # per 128 bits: a b a b
        four = halves(ab, cd, [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])  # a b c d | a b c d
        return halves(four, four, [0, 1, 2, 3], [4, 5, 6, 7])

    # -- variables and control

    def variable(self, kind: Value, start: Value | None = None) -> Value:
        """A place for a vector that changes, 0 at first; LLVM makes a register of it."""
        with self.builder.goto_entry_block():
            place = self.builder.alloca(kind)
        self.builder.store(ir.Constant(kind, [ir.Constant(FLOAT, 0.0)] * kind.count) if start is None else start, place)
        return place

    def add(self, variable: Value, factor: Value, other: Value) -> None:
        """Add a product to a variable, rounded once."""
        self.builder.store(self.fma(factor, other, self.builder.load(variable)), variable)

    def call(self, name: str, kind: Value, arguments: Sequence[Value]) -> Value:
        """Call one of LLVM's own functions."""
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)  # type: ignore[no-untyped-call]

    def loop(self, stop: Value | int, body: Callable[[Value], None], step: int = 1) -> None:
        """Count from 0 to `stop`."""
        if isinstance(stop, int):
            stop = ir.Constant(I64, stop)
        with cgutils.for_range_slice(self.builder, ir.Constant(I64, 0), stop, ir.Constant(I64, step)) as (index, _):
            body(index)
