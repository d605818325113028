"""Triton code of `DeviceKernel`: what one program of each of its three launches does.

All calls run the same binary of `attend_spans`, told apart by `mode`, which the compiler does not see: it may contract and
order the operations of two kernels in two ways, those of one kernel only in one. For that reason nothing that differs
between calls is a constant, and only tensors that are always aligned to 16 bytes are specialised by their alignment.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["ATTEND", "FOLD", "KEEP", "KEYS", "attend_spans", "block_shares", "merge_spans"]

KEEP = tl.constexpr(0)
"""Attend to single blocks, and keep their partials."""
FOLD = tl.constexpr(1)
"""Fold partials that were kept."""
ATTEND = tl.constexpr(2)
KEYS = tl.constexpr(3)
"""Attend, but read no values."""


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x: tl.tensor) -> tl.tensor:
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0.0, -size, size)


@triton.jit  # type: ignore[untyped-decorator]
def _block(
    asked: tl.tensor, keys: tl.tensor, known_keys: tl.tensor, values: tl.tensor, known_values: tl.tensor, valid: tl.tensor,
    cap: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    # The partial of one block; what is valid of its tokens is [1, places], of its values [1, places, 1].
    k = tl.load(keys, mask=known_keys, other=0.0).to(tl.float32)
    v = tl.load(values, mask=known_values & valid[:, :, None], other=0.0).to(tl.float32)
    logits = tl.sum(asked * k, axis=1)
    if cap > 0.0:
        logits = cap * _tanh(logits / cap)
    logits = tl.where(valid, logits, float("-inf"))
    high = tl.max(logits, axis=1)
    weights = tl.exp(logits - high[:, None])
    return high, tl.sum(weights, axis=1), tl.sum(weights[:, :, None] * v, axis=1)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=[
        "query", "keys", "values", "tokens", "heads", "rows", "starts", "mode", "stride", "skip", "counted", "cap",
    ]
)  # fmt: skip
def attend_spans(
    query: tl.tensor, memory: tl.tensor, keys: tl.tensor, values: tl.tensor, tokens: tl.tensor, heads: tl.tensor,
    rows: tl.tensor, starts: tl.tensor, highs: tl.tensor, parts: tl.tensor, sums: tl.tensor, span_highs: tl.tensor,
    span_parts: tl.tensor, span_sums: tl.tensor, mode: tl.tensor, stride: tl.tensor, skip: tl.tensor, counted: tl.tensor,
    cap: tl.tensor, group: tl.constexpr, k_dim: tl.constexpr, v_dim: tl.constexpr, size: tl.constexpr, quantum: tl.constexpr,
    span: tl.constexpr, tiles: tl.constexpr, members: tl.constexpr, k_tile: tl.constexpr, v_tile: tl.constexpr,
    places: tl.constexpr,
) -> None:  # fmt: skip
    """Some query heads of a group on one span of their KV head, or, to keep partials, on one block."""
    pid = tl.program_id(0) // tiles
    keeps = mode == KEEP
    reads = mode != FOLD
    head = tl.where(keeps, tl.load(heads + pid, mask=keeps, other=0), tl.program_id(1))
    begin = tl.load(starts + head, mask=mode != KEEP, other=0)
    first = tl.where(keeps, pid, begin + pid * span)
    last = tl.where(keeps, pid + 1, tl.minimum(first + span, tl.load(starts + head + 1, mask=mode != KEEP, other=0)))
    member = tl.program_id(0) % tiles * members + tl.arange(0, members)
    k_channel = tl.arange(0, k_tile)[None, :, None]
    v_channel = tl.arange(0, v_tile)
    place = tl.arange(0, places)
    known = member < group
    at_sums = member[:, None] * v_dim + v_channel[None, :]
    known_sums = known[:, None] & (v_channel < v_dim)[None, :]
    at_query = (head * group + member[:, None, None]) * k_dim + k_channel
    asked = tl.load(query + at_query, mask=(member[:, None, None] < group) & (k_channel < k_dim) & reads, other=0.0)
    at_keys = k_channel * size + place[None, None, :]
    known_keys = (k_channel < k_dim) & (place < size)[None, None, :] & reads
    at_values = place[None, :, None] * v_dim + v_channel[None, None, :]
    known_values = (v_channel < v_dim)[None, None, :] & ((mode == KEEP) | (mode == ATTEND))
    top = tl.full([members], float("-inf"), tl.float32)
    total = tl.zeros([members], tl.float32)
    summed = tl.zeros([members, v_tile], tl.float32)
    for item in range(first, last):
        row = tl.where(mode <= FOLD, tl.load(rows + item, mask=mode <= FOLD, other=0), item).to(tl.int64) * group
        valid = (place < tl.load(tokens + item, mask=counted != 0, other=size))[None, :]
        key = memory + tl.load(keys + item, mask=reads, other=0).to(tl.int64) * stride * quantum
        value = memory + tl.load(values + item, mask=reads, other=0).to(tl.int64) * stride * quantum + skip * quantum
        high, part, new = _block(asked, key + at_keys, known_keys, value + at_values, known_values, valid, cap)
        if reads:
            tl.store(highs + row + member, high, mask=known)
            tl.store(parts + row + member, part, mask=known)
            if keeps:
                tl.store(sums + row * v_dim + at_sums, new, mask=known_sums)
        else:
            high = tl.load(highs + row + member, mask=known, other=0.0)
            part = tl.load(parts + row + member, mask=known, other=0.0)
            new = tl.load(sums + row * v_dim + at_sums, mask=known_sums, other=0.0)
        after = tl.maximum(top, high)
        old = tl.exp(top - after)
        fresh = tl.exp(high - after)
        total = total * old + part * fresh
        summed = summed * old[:, None] + new * fresh[:, None]
        top = after
    done = (first < last) & (mode != KEEP)
    row = (begin // span + head + pid).to(tl.int64) * group
    tl.store(span_highs + row + member, top, mask=known & done)
    tl.store(span_parts + row + member, total, mask=known & done)
    tl.store(span_sums + row * v_dim + at_sums, summed, mask=known_sums & done)


@triton.jit(do_not_specialize=["starts", "tops", "totals"])  # type: ignore[untyped-decorator]
def merge_spans(
    starts: tl.tensor, span_highs: tl.tensor, span_parts: tl.tensor, span_sums: tl.tensor, output: tl.tensor,
    tops: tl.tensor, totals: tl.tensor, group: tl.constexpr, v_dim: tl.constexpr, span: tl.constexpr, lanes: tl.constexpr,
    channels: tl.constexpr,
) -> None:  # fmt: skip
    """Some channels of one query head."""
    pid = tl.program_id(0)
    head = pid // group
    first = tl.load(starts + head)
    count = (tl.load(starts + head + 1) - first + span - 1) // span
    base = first // span + head
    lane = tl.arange(0, lanes)
    channel = tl.program_id(1) * channels + tl.arange(0, channels)
    highs = tl.full([lanes], float("-inf"), tl.float32)
    for ahead in range(0, count, lanes):
        row = (base + ahead + lane).to(tl.int64) * group + pid % group
        highs = tl.maximum(highs, tl.load(span_highs + row, mask=ahead + lane < count, other=float("-inf")))
    top = tl.where(count > 0, tl.max(highs, axis=0), 0.0)
    parts = tl.zeros([lanes], tl.float32)
    sums = tl.zeros([lanes, channels], tl.float32)
    for ahead in range(0, count, lanes):
        row = (base + ahead + lane).to(tl.int64) * group + pid % group
        known = ahead + lane < count
        weights = tl.exp(tl.load(span_highs + row, mask=known, other=float("-inf")) - top)
        parts += weights * tl.load(span_parts + row, mask=known, other=0.0)
        known_sums = known[:, None] & (channel < v_dim)[None, :]
        new = tl.load(span_sums + row[:, None] * v_dim + channel[None, :], mask=known_sums, other=0.0)
        sums += weights[:, None] * new
    total = tl.sum(parts, axis=0)
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(output + pid * v_dim + channel, tl.sum(sums, axis=0) / total, mask=channel < v_dim)
    tl.store(tops + pid, top)
    tl.store(totals + pid, total)


@triton.jit(do_not_specialize=["rows", "starts", "tops", "totals", "mass", "placed"])  # type: ignore[untyped-decorator]
def block_shares(
    rows: tl.tensor, starts: tl.tensor, highs: tl.tensor, parts: tl.tensor, tops: tl.tensor, totals: tl.tensor,
    mass: tl.tensor, placed: tl.tensor, group: tl.constexpr, items: tl.constexpr,
) -> None:  # fmt: skip
    """The shares of some blocks of one KV head."""
    head = tl.program_id(1)
    item = tl.load(starts + head) + tl.program_id(0) * items + tl.arange(0, items)
    known = item < tl.load(starts + head + 1)
    row = tl.where(placed != 0, tl.load(rows + item, mask=known & (placed != 0), other=0), item).to(tl.int64)
    share = tl.zeros([items], tl.float32)
    for member in range(group):
        high = tl.load(highs + row * group + member, mask=known, other=float("-inf"))
        part = tl.load(parts + row * group + member, mask=known, other=0.0)
        asked = head * group + member
        share += part * tl.exp(high - tl.load(tops + asked)) / tl.load(totals + asked)
    tl.store(mass + item, share / group, mask=known)
