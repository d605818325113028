"""Attention of a few query heads to one block, and how a block is folded into what came before, as vector code.

Work area of a KV head's query heads, float32, its parts in this order (`Shape.layout`): probabilities of a block
``[group4, 16]``, running maxima ``[group4]``, running sums, float64
``[group4]``, running output ``[group, v_dim]``. ``group4`` is the group in tiles of up to four heads, padded to four.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from llvmlite import ir  # type: ignore[import-untyped]

from kvpager.live.kernels.ir import BF16, DOUBLE, FLOAT, I32, I64, LANES, LOWEST, VECTOR, Emit, Value

__all__ = ["TILE", "TOKENS", "BlockCode", "Shape"]

TOKENS: Final = 16
TILE: Final = 4
_CHAINS: Final = {1: 4, 2: 2, 3: 1, 4: 1}
"""By heads of a tile: independent sums, so that eight fused operations are under way."""


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for.

    Parameters
    ----------
    group : int
        Query heads a KV head.
    k_dim, v_dim : int
        Elements of a key and of a value, multiples of 16.
    element : str
        ``"float32"`` or ``"bfloat16"``.
    """

    group: int
    k_dim: int
    v_dim: int
    element: str

    @property
    def element_bytes(self) -> int:
        """Bytes of an element."""
        return 2 if self.element == BF16 else 4

    @property
    def tiles(self) -> list[tuple[int, int]]:
        """First head and number of heads of each tile, the sizes as even as can be."""
        count = -(-self.group // TILE)
        edges = [index * self.group // count for index in range(count + 1)]
        return [(first, last - first) for first, last in itertools.pairwise(edges)]

    @property
    def layout(self) -> dict[str, int]:
        """Byte offset of each part of the work area, and ``"end"``."""
        slots = TILE * len(self.tiles)
        sizes = {"p": 64 * slots, "m": 4 * slots, "l": 8 * slots, "acc": 4 * self.group * self.v_dim}
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = end
            end += -(-size // 64) * 64
        return offsets | {"end": end}

    def places(self) -> list[int]:
        """Where each of sixteen neighbours stands after `Emit.row`."""
        return [(i >> 1) + LANES * (i & 1) for i in range(16)] if self.element == BF16 else list(range(16))


class BlockCode(Emit):
    """Writes the code of one shape.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Of the intrinsic that is generated.
    shape : Shape
        What to generate for.
    """

    def __init__(self, builder: Value, shape: Shape) -> None:
        super().__init__(builder)
        self.shape = shape
        self.layout = shape.layout

    def probabilities(self, block: Value, ahead: Value, query: Value, tokens: Value, softcap: Value, work: Value) -> list[Value]:
        """Write a block's unnormalised probabilities to the work area; return maxima and sums of each tile."""
        found = []
        for index, (first, heads) in enumerate(self.shape.tiles):
            logits = self._logits(block, ahead if index == 0 else None, self.at(query, 4 * first * self.shape.k_dim), heads)
            logits = self._capped(logits, softcap)
            logits = self._valid(logits, tokens)
            high = self.reduce([self.greater(low, up) for low, up in logits], self.greater)
            sums = []
            for head, halves in enumerate(logits):
                top = self.shuffle(high, high, [head] * LANES)
                low, up = (self.exp(self.builder.fsub(half, top)) for half in halves)
                place = self.layout["p"] + 64 * (TILE * index + head)
                self.store(low, self.at(work, place))
                self.store(up, self.at(work, place + 4 * LANES))
                sums.append(self.builder.fadd(low, up))
            found.append((high, self.reduce(sums, self.builder.fadd)))
        return found

    def keep(self, found: list[tuple[Value, Value]], highs: Value, totals: Value) -> None:
        """Store a block's maxima [group] and sums [group]."""
        for (first, heads), pair in zip(self.shape.tiles, found, strict=True):
            for head in range(heads):
                for values, place in zip(pair, (highs, totals), strict=True):
                    self.store(self.builder.extract_element(values, ir.Constant(I32, head)), self.at(place, 4 * (first + head)))

    def _logits(self, block: Value, ahead: Value | None, query: Value, heads: int) -> list[tuple[Value, Value]]:
        """Scalar products of a tile's queries with sixteen keys; asks for the next block's keys on the way."""
        shape, row = self.shape, 16 * self.shape.element_bytes
        chains = _CHAINS[heads]
        sums = [[[self.variable(VECTOR) for _ in range(2)] for _ in range(heads)] for _ in range(chains)]
        step = 8

        def body(channel: Value) -> None:
            here = self.builder.mul(channel, ir.Constant(I64, row))
            keys, soon = self.at(block, here), None if ahead is None else self.at(ahead, here)
            asked = self.at(query, self.builder.mul(channel, ir.Constant(I64, 4)))
            for unrolled in range(step):
                if soon is not None and unrolled * row % 64 == 0:
                    self.prefetch(self.at(soon, unrolled * row))
                halves = self.row(self.at(keys, unrolled * row), shape.element)
                for head in range(heads):
                    factor = self.splat(self.load(self.at(asked, 4 * (head * shape.k_dim + unrolled))))
                    for variable, half in zip(sums[unrolled % chains][head], halves, strict=True):
                        self.add(variable, factor, half)

        self.loop(shape.k_dim, body, step)
        totals = [[[self.builder.load(half) for half in head] for head in chain] for chain in sums]
        while len(totals) > 1:
            totals = [
                [[self.builder.fadd(x, y) for x, y in zip(a, b, strict=True)] for a, b in zip(one, two, strict=True)]
                for one, two in zip(totals[::2], totals[1::2], strict=True)
            ]
        return [(low, up) for low, up in totals[0]]

    def _capped(self, logits: list[tuple[Value, Value]], softcap: Value) -> list[tuple[Value, Value]]:
        """Cap logits softly, by a float32 that comes as its bits; 0 = not."""
        softcap = self.builder.bitcast(self.builder.trunc(softcap, I32), FLOAT)
        places = [[self.variable(VECTOR, half) for half in halves] for halves in logits]
        with self.builder.if_then(self.builder.fcmp_ordered("!=", softcap, ir.Constant(FLOAT, 0.0)), likely=False):
            cap = self.splat(softcap)
            for halves, variables in zip(logits, places, strict=True):
                for half, variable in zip(halves, variables, strict=True):
                    self.builder.store(self.builder.fmul(cap, self.tanh(self.builder.fdiv(half, cap))), variable)
        return [(self.builder.load(low), self.builder.load(up)) for low, up in places]

    def _valid(self, logits: list[tuple[Value, Value]], tokens: Value) -> list[tuple[Value, Value]]:
        """Minus infinity where the block has no token yet."""
        count = self.splat(self.builder.trunc(tokens, I32))
        order = self.shape.places()
        token = [order.index(place) for place in range(16)]
        masks = [self.builder.icmp_signed("<", self.integers(token[half : half + LANES]), count) for half in (0, LANES)]
        nothing = self.vector(float("-inf"))
        return [(self.builder.select(masks[0], low, nothing), self.builder.select(masks[1], up, nothing)) for low, up in logits]

    def values(self, block: Value, ahead: Value, tokens: Value, work: Value, acc: Value) -> None:
        """Weigh a block's values, to `acc` [group, v_dim]; asks for the next block's values on the way."""
        for index in range(len(self.shape.tiles)):
            self._tile(index, block, ahead if index == 0 else None, tokens, work, acc)

    def _tile(self, index: int, block: Value, ahead: Value | None, tokens: Value, work: Value, acc: Value) -> None:
        """One tile of `values`, some sixteens of channels at a time."""
        shape, (first, heads) = self.shape, self.shape.tiles[index]
        size, key_bytes = shape.element_bytes, 16 * shape.k_dim * shape.element_bytes
        wide = _CHAINS[heads]
        while shape.v_dim // 16 % wide:
            wide //= 2
        weights = self.at(work, self.layout["p"] + 64 * TILE * index)

        def body(channel: Value) -> None:
            sums = [[[self.variable(VECTOR) for _ in range(2)] for _ in range(wide)] for _ in range(heads)]
            rows = self.at(self.at(block, key_bytes), self.times(channel, size))
            soon = None if ahead is None else self.at(self.at(ahead, key_bytes), self.times(channel, TOKENS * size))

            def token(t: Value) -> None:
                row, weight = self.at(rows, self.times(t, shape.v_dim * size)), self.at(weights, self._place(t))
                for line in range(0, 16 * size * wide, 64) if soon is not None else ():
                    self.prefetch(self.at(self.at(soon, self.times(t, 16 * size * wide)), line))
                factors = [self.splat(self.load(self.at(weight, 64 * head))) for head in range(heads)]
                for part in range(wide):
                    halves = self.row(self.at(row, 16 * size * part), shape.element)
                    for head in range(heads):
                        for variable, half in zip(sums[head][part], halves, strict=True):
                            self.add(variable, factors[head], half)

            self.loop(tokens, token)
            for head in range(heads):
                for part in range(wide):
                    halves = [self.builder.load(variable) for variable in sums[head][part]]
                    column = self.at(self.times(channel, 4), 4 * ((first + head) * shape.v_dim + 16 * part))
                    self._store_row(halves, self.at(acc, column))

        self.loop(shape.v_dim, body, 16 * wide)

    def _store_row(self, halves: list[Value], place: Value) -> None:
        """Store sixteen floats in natural order."""
        if self.shape.element == BF16:
            low = self.shuffle(halves[0], halves[1], [0, 8, 1, 9, 2, 10, 3, 11])
            halves = [low, self.shuffle(halves[0], halves[1], [4, 12, 5, 13, 6, 14, 7, 15])]
        for number, half in enumerate(halves):
            self.store(half, self.at(place, 4 * LANES * number))

    def fold(self, *arguments: Value) -> None:
        """Fold a partial into the running state; keep its maxima and sums, `stride` bytes apart from head to head."""
        high, total, acc, work, highs, totals, stride = arguments
        shape = self.shape
        for index, (first, heads) in enumerate(shape.tiles):
            kept = []
            for source, copy, nothing in ((high, highs, LOWEST), (total, totals, 0.0)):
                four = self.vector(nothing, TILE)
                for head in range(heads):
                    value = self.load(self.at(source, 4 * (first + head)))
                    self.store(value, self.at(copy, self.times(stride, first + head)))
                    four = self.builder.insert_element(four, value, ir.Constant(I32, head))
                kept.append(four)
            weights = self._weigh(index, kept[0], kept[1], work)
            for head in range(heads):
                shares = [self.shuffle(weights, weights, [at + head] * LANES) for at in (0, TILE)]

                def body(channel: Value, row: int = 4 * (first + head) * shape.v_dim, shares: list[Value] = shares) -> None:
                    place = self.at(self.times(channel, 4), row)
                    new, running = self.load(self.at(acc, place), VECTOR), self.at(work, self.at(place, self.layout["acc"]))
                    self.store(self.fma(new, shares[1], self.builder.fmul(self.load(running, VECTOR), shares[0])), running)

                self.loop(shape.v_dim, body, LANES)

    def _weigh(self, index: int, high: Value, total: Value, work: Value) -> Value:
        """Move a tile's running maxima and sums on by a block; return the weights of old and of new, four each."""
        wide = ir.VectorType(DOUBLE, TILE)
        at_m, at_l = (self.at(work, self.layout[name] + size * TILE * index) for name, size in (("m", 4), ("l", 8)))
        before = self.load(at_m, ir.VectorType(FLOAT, TILE))
        after = self.greater(high, before)
        gap = self.builder.fsub(self.shuffle(before, high, range(8)), self.shuffle(after, after, [0, 1, 2, 3] * 2))
        weights = self.exp(gap)
        old, fresh = (self.builder.fpext(self.shuffle(weights, weights, range(at, at + TILE)), wide) for at in (0, TILE))
        sums = self.builder.fmul(self.load(at_l, wide), old)
        self.store(self.fma(self.builder.fpext(total, wide), fresh, sums), at_l)
        self.store(after, at_m)
        return weights

    def clear(self, work: Value) -> None:
        """Begin anew: nothing seen yet."""
        for index in range(len(self.shape.tiles)):
            self.store(self.vector(LOWEST, 4), self.at(work, self.layout["m"] + 16 * index))
            for half in range(2):
                self.store(self.vector(0.0, 4), self.at(work, self.layout["l"] + 32 * index + 16 * half))
        self.loop(
            self.shape.group * self.shape.v_dim,
            lambda lane: self.store(self.vector(0.0), self.at(work, self.at(self.times(lane, 4), self.layout["acc"]))),
            LANES,
        )

    def finish(self, work: Value, output: Value, tops: Value, scales: Value) -> None:
        """Write the output [group, v_dim], the maxima [group] and 1 / (sum * group) [group]; 0 where nothing was seen."""
        shape, one = self.shape, ir.Constant(DOUBLE, 1.0)
        for index, (first, heads) in enumerate(shape.tiles):
            for head in range(heads):
                place = TILE * index + head
                total = self.load(self.at(work, self.layout["l"] + 8 * place), DOUBLE)
                nothing = self.builder.fcmp_ordered("==", total, ir.Constant(DOUBLE, 0.0))
                inverse = self.builder.select(nothing, ir.Constant(DOUBLE, 0.0), self.builder.fdiv(one, total))
                share = self.builder.fdiv(inverse, ir.Constant(DOUBLE, float(shape.group)))
                self.store(self.builder.fptrunc(share, FLOAT), self.at(scales, 4 * (first + head)))
                self.store(self.load(self.at(work, self.layout["m"] + 4 * place)), self.at(tops, 4 * (first + head)))
                factor = self.splat(self.builder.fptrunc(inverse, FLOAT))

                def body(channel: Value, row: int = 4 * (first + head) * shape.v_dim, factor: Value = factor) -> None:
                    at = self.at(self.times(channel, 4), row)
                    acc = self.at(work, self.at(at, self.layout["acc"]))
                    self.store(self.builder.fmul(self.load(acc, VECTOR), factor), self.at(output, at))

                self.loop(shape.v_dim, body, LANES)

    def shares(self, highs: Value, totals: Value, stride: Value, tops: Value, scales: Value, mass: Value) -> None:
        """Mass of eight blocks, mean over the group; maxima and sums stand `stride` bytes apart from head to head."""
        result = self.vector(0.0)
        for head in range(self.shape.group):
            row = self.times(stride, head)
            gap = self.builder.fsub(self.load(self.at(highs, row), VECTOR), self.splat(self.load(self.at(tops, 4 * head))))
            sums = self.builder.fmul(self.load(self.at(totals, row), VECTOR), self.splat(self.load(self.at(scales, 4 * head))))
            result = self.fma(sums, self.exp(gap), result)
        self.store(result, mass)

    def _place(self, token: Value) -> Value:
        """Byte offset of a token's probability."""
        if self.shape.element != BF16:
            return self.times(token, 4)
        half = self.builder.lshr(token, ir.Constant(I64, 1))
        return self.builder.add(self.times(half, 4), self.times(self.builder.and_(token, ir.Constant(I64, 1)), 4 * LANES))
