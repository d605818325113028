"""Fetch a block or compute it again: the notes' grid, this accelerator's, and where one overtakes the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvpager.analysis import capacity, recompute, steptime, transfer
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity
from kvpager.hardware import Accelerator
from kvpager.models.facts import ModelFacts
from kvpager.plan.assumptions import DEFAULT
from kvpager.plan.evaluate import Explained, asked
from kvpager.plan.load import Load, load_of

__all__ = ["MFUS", "NVME", "RATES", "breakeven"]

_of = Explained()


def _given(name: str, value: float, unit: str, source: str, low: float | None = None, high: float | None = None) -> Quantity:
    return Quantity(value, unit, frozenset({Evidence.ASSUMPTION}), "", source, name, low, high)


RATES = (
    _given("121 GB/s", 121e9, "B/s", "CXL 3.0 x16, one direction, theoretical: note 004 table 1"),
    _given("64 GB/s", 64e9, "B/s", "note 004 table 1, mid-range, unmeasured"),
    _given("32 GB/s", 32e9, "B/s", "note 004 table 1, pessimistic, unmeasured"),
)
MFUS = tuple(_given(f"MFU {share:.0%}", share, "1", "note 004 table 2, unmeasured") for share in (0.5, 0.4, 0.25))
NVME = _given("7 GB/s", 7e9, "B/s", "one Gen4 drive; no note names a rate", 7e9, 14.5e9)
NVME_T0 = _given("nvme_t0_s", 75e-6, "s", "flash at queue depth 1, from memory; note 000 has 25 us", 25e-6, 90e-6)
NOTE_PEAK = _given("peak_flops_per_s", 500e12, "FLOP/s", "not stated in note 004: the only round peak that gives its three rows")
NOTE_PARAMS = _given("params", 70e9, "parameters", "note 004 table 2")
NOTE_RATE = _given("hbm_bytes_per_s", 8e12, "B/s", "note 000 part 9")


def breakeven(
    facts: ModelFacts,
    accelerator: Accelerator,
    tokens: int = 16,
    position: int = 50_000,
    *,
    rates: Sequence[Quantity] = RATES,
    mfus: Sequence[Quantity] = MFUS,
) -> dict[str, Any]:
    """Compare fetching a block with computing it again, on the note's terms and on this accelerator's.

    Parameters
    ----------
    facts : ModelFacts
        The model.
    accelerator : Accelerator
        From the catalogue.
    tokens : int
        Tokens of the block.
    position : int
        Tokens before it.
    rates, mfus : sequence of Quantity
        Axes of the grids; default: note 004's three by three.

    Returns
    -------
    dict
        ``note`` (2 P T over the note's implied peak), ``here`` (the same formula at this accelerator's peak; then with
        attention and memory floor, alone and piggybacked), each with a grid, its extremes and their orders of
        magnitude; ``nvme``; ``attention_share``; ``modes``; ``breakeven``; ``decision``.

    Raises
    ------
    BadInput
        For a block or position out of range.
    """
    if tokens < 1 or position < 0:
        raise BadInput(
            f"breakeven: {tokens} tokens at position {position}: a block has at least 1 token, a position is at least 0"
        )
    load = load_of(facts)
    if not load.full_layers:
        raise BadInput(f"breakeven: model {facts.name!r} has no layer with full attention, so no block that grows a tier")
    block = _block(load, tokens)
    here = _Device(load, accelerator)
    place = asked("position", position, "tokens")
    alone = [here.recompute(place, tokens, mfu) for mfu in mfus]
    joined = [here.recompute(place, tokens, mfu, piggybacked=True) for mfu in mfus]
    note = [_note_recompute(tokens, mfu, NOTE_PARAMS, NOTE_PEAK) for mfu in mfus]
    linear = [_note_recompute(tokens, mfu, load.active_params, accelerator.bf16_flops_per_s) for mfu in mfus]
    default = here.recompute(place, tokens, DEFAULT.mfu)
    return {
        "model": facts.name,
        "accelerator": accelerator.name,
        "asked": {"tokens": asked("tokens", tokens, "tokens"), "position": place},
        "block_bytes": block,
        "note": _grid(block, rates, note)
        | {"floor_s": _floor(_weights(NOTE_PARAMS), NOTE_RATE, _given("hbm_efficiency", 1.0, "1", "note 000 takes none off"))},
        "here": {
            "note_formula": _grid(block, rates, linear),
            "alone": _grid(block, rates, alone),
            "piggybacked": _grid(block, rates, joined),
            "floor_s": here.floor_s,
        },
        "nvme": {"note": _grid(block, [NVME], note, NVME_T0), "here": _grid(block, [NVME], alone, NVME_T0)},
        "attention_share": {f"{at:,}": here.attention_share(asked("position", at, "tokens"), tokens) for at in (50_000, 131_072)},
        "modes": here.modes(place, tokens),
        "breakeven": here.breakeven(block, default, rates),
        "decision": _decision(block, rates, alone, joined),
    }


def _block(load: Load, tokens: int) -> Quantity:
    size = load.full_bytes_per_token
    return _of.step(
        "block_bytes",
        "B",
        f"{size:,.0f} B a token x tokens",
        lambda count: capacity.block_bytes(size, count),
        asked("tokens", tokens, "tokens"),
        source="note 004 paragraph 2",
    )


def _note_recompute(tokens: int, mfu: Quantity, params: Quantity, peak: Quantity) -> Quantity:
    return _of.step(
        "recompute_s",
        "s",
        f"2 x params x {tokens} / (peak x mfu)",
        lambda params, peak, share: steptime.compute_s(steptime.linear_flops(params, tokens), peak, share),
        params,
        peak,
        mfu,
        source="note 004 table 2: no attention, no memory floor",
    )


def _weights(params: Quantity) -> Quantity:
    return _of.step("weights_bytes", "B", "2 B x params", lambda count: 2.0 * count, params, source="bf16")


def _floor(weights: Quantity, rate: Quantity, efficiency: Quantity) -> Quantity:
    return _of.step(
        "floor_s",
        "s",
        "weights_bytes / (hbm rate x efficiency)",
        lambda size, peak, share: steptime.memory_s(size, 0.0, peak * share, 1.0),
        weights,
        rate,
        efficiency,
        source="mission row 47: a pass of its own reads all weights once",
    )


def _grid(block: Quantity, rates: Sequence[Quantity], times: Sequence[Quantity], t0: Quantity | None = None) -> dict[str, Any]:
    """Ratios recompute / fetch for every pair, their extremes and orders; each ratio names its two inputs."""
    start = t0 or asked("t0_s", 0.0, "s")
    fetches = [
        _of.step(
            f"fetch_s at {rate.name}",
            "s",
            "t0 + block_bytes / rate",
            lambda size, speed, fixed: transfer.fetch_s(size, speed, 1.0, fixed),
            block,
            rate,
            start,
            source="note 004 table 1" if t0 is None else "mission row 46",
        )
        for rate in rates
    ]
    ratios = [
        [
            _of.step(
                f"ratio at {rate.name}, {again.inputs[-1].name}",
                "1",
                "recompute_s / fetch_s",
                recompute.ratio_to_fetch,
                again,
                fetch,
            )
            for again in times
        ]
        for rate, fetch in zip(rates, fetches, strict=True)
    ]
    cells = [cell for row in ratios for cell in row]
    lowest, highest = min(cells, key=lambda cell: cell.ends[0]), max(cells, key=lambda cell: cell.ends[1])
    return {
        "fetch_s": fetches,
        "recompute_s": list(times),
        "ratios": ratios,
        "lowest": lowest,
        "highest": highest,
        "orders_of_magnitude": {"low": float(np.log10(lowest.ends[0])), "high": float(np.log10(highest.ends[1]))},
    }


def _decision(block: Quantity, rates: Sequence[Quantity], alone: Sequence[Quantity], joined: Sequence[Quantity]) -> str:
    """What the rule says: fetch if it is faster at every corner, recompute if it is slower at every one."""
    slowest = max(block.value / rate.ends[0] for rate in rates)
    fastest = min(block.value / rate.ends[1] for rate in rates)
    least, most = min(time.ends[0] for time in joined), max(time.ends[1] for time in alone)
    if slowest <= least:
        return "fetch: faster at every rate and MFU of the grid, alone or piggybacked"
    if fastest > most:
        return "recompute: faster at every rate and MFU of the grid"
    return "depends: see the grids; fetching wins above the break-even bandwidth"


class _Device:
    """An accelerator with a model on it: what recomputing costs there."""

    def __init__(self, load: Load, accelerator: Accelerator) -> None:
        self.load, self.peak, self.rate = load, accelerator.bf16_flops_per_s, accelerator.hbm_bytes_per_s
        self.efficiency = accelerator.hbm_efficiency
        self.weights = _weights(load.params)
        self.floor_s = _floor(self.weights, self.rate, self.efficiency)
        self.full = [group for group in load.groups if np.isinf(group.window_tokens)]

    def pass_s(self, name: str, tokens: Quantity, prefix: Quantity, mfu: Quantity, *, piggybacked: bool = False) -> Quantity:
        """Time of a pass over `tokens` behind a cached `prefix`."""
        flops = _of.step(
            "pass_flops",
            "FLOP",
            "2 active_params n + 4 x query heads x dim x layers x (query, key) pairs",
            lambda count, before, active: self.load.pass_flops(active, count, before),
            tokens,
            prefix,
            self.load.active_params,
            source="mission row 47",
        )
        per_token = self.load.full_bytes_per_token
        what = "KV" if piggybacked else "weights + KV"
        return _of.step(
            name,
            "s",
            f"max(pass_flops / (peak x mfu), {what} read / hbm rates)",
            lambda work, peak, weights, before, rate, good, kv_good, share: recompute.recompute_s(
                work, peak, share, weights, before * per_token, rate * good, rate * kv_good, piggybacked
            ),
            flops,
            self.peak,
            self.weights,
            prefix,
            self.rate,
            self.efficiency,
            DEFAULT.kv_efficiency,
            mfu,
            source="mission row 47; piggybacked = marginal, inside a batch that reads the weights anyway"
            if piggybacked
            else "mission row 47",
        )

    def recompute(self, position: Quantity, tokens: int, mfu: Quantity, *, piggybacked: bool = False) -> Quantity:
        """Time of the tail block at `position`."""
        name = "recompute_piggybacked_s" if piggybacked else "recompute_s"
        return self.pass_s(name, asked("tokens", tokens, "tokens"), position, mfu, piggybacked=piggybacked)

    def attention_share(self, position: Quantity, tokens: int) -> Quantity:
        """Attention's operations over all others', which note 004 leaves out."""
        return _of.step(
            f"attention_share at {position.value:,.0f}",
            "1",
            "attention FLOPs / linear FLOPs of the block",
            lambda at, active: self.load.pass_flops(active, tokens, at) / steptime.linear_flops(active, tokens) - 1.0,
            position,
            self.load.active_params,
            source="mission row 47",
        )

    def modes(self, position: Quantity, tokens: int) -> dict[str, Quantity]:
        """The four readings of recomputing the block at `position` of a context twice as long."""
        mfu, nothing = DEFAULT.mfu, asked("cached_tokens", 0, "tokens")
        block = asked("tokens", tokens, "tokens")
        rest = asked("tokens", position.value + tokens, "tokens")
        return {
            "tail": self.pass_s("tail_s", block, position, mfu),
            "missing_only": self.pass_s("missing_only_s", block, position, mfu),
            "suffix": self.pass_s("suffix_s", rest, position, mfu),
            "full_prefix": self.pass_s("full_prefix_s", rest, nothing, mfu),
        }

    def breakeven(self, block: Quantity, again: Quantity, rates: Sequence[Quantity]) -> dict[str, Any]:
        """Rate above which fetching the block wins, and by rate the position from which on fetching a token wins."""
        wide = self.full[0].attended_dim
        layers, size, heads = self.load.full_layers, self.load.full_bytes_per_token, self.load.q_heads
        positions = {
            rate.name: _of.step(
                f"breakeven_position_tokens at {rate.name}",
                "tokens",
                "x with (2 P + 4 H d L x) / (peak x mfu) = bytes a token / rate; 0 = fetching always wins",
                lambda speed, peak, share, active: recompute.breakeven_tokens(
                    size, speed, peak * share, active, layers, heads, wide
                ),
                rate,
                self.peak,
                DEFAULT.mfu,
                self.load.active_params,
                source="mission row 50: tokens of a long pass, where weights are read once for many",
            )
            for rate in (*rates, NVME)
        }
        bandwidth = _of.step(
            "breakeven_bandwidth_bytes_per_s",
            "B/s",
            "block_bytes / recompute_s",
            recompute.breakeven_bandwidth_bytes_per_s,
            block,
            again,
            source="mission row 50",
        )
        return {"bandwidth_bytes_per_s": bandwidth, "position_tokens": positions}
