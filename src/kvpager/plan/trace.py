"""A hit curve from an attention trace: what a policy would have hit at several HBM sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvpager.errors import CapacityError
from kvpager.plan.curve import HitCurve

__all__ = ["SHARES", "hit_curve_of"]

SHARES = (0.02, 0.05, 0.1, 0.2, 0.4)


def hit_curve_of(
    trace: Path,
    read_fraction: float,
    policy: str = "blend",
    *,
    shares: Sequence[float] = SHARES,
    progress: Callable[[int, int], None] | None = None,
) -> HitCurve:
    """Replay a recording at several HBM sizes, reading a fixed share of the blocks by mass.

    Parameters
    ----------
    trace : Path
        A recording, from ``kvpager record``.
    read_fraction : float
        Share of its complete blocks that a KV head reads in a step.
    policy : str
        Who decides what HBM keeps.
    shares : sequence of float
        HBM sizes, as shares of all KV, ascending. Those too small for the blocks being written are left out of the curve;
        its source lists those that are in it.
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    HitCurve
        Byte hit ratios. They hold for the recording's model, text and context; using them for another model or a longer
        context is an assumption, which the plan says.

    Raises
    ------
    TraceError, UnknownName, CapacityError
        As replay raises them.
    """
    from kvpager.replay.row import Case
    from kvpager.replay.sweep import Source, load_stream, sweep

    source = Source(trace, f"topk_mass:read_fraction={read_fraction:g}")
    found: dict[float, float] = {}
    refused: CapacityError | None = None
    for done, share in enumerate(shares, 1):
        try:
            found[share] = sweep(source, [Case(policy, share, bound=False)], jobs=1)[0]["byte_hit_ratio"]
        except CapacityError as error:  # too small for the recording's open blocks
            refused = error
        if progress is not None:
            progress(done, len(shares))
    if not found:
        raise refused or CapacityError("hit curve: no HBM sizes given: give shares of the KV, for example 0.1")
    header = load_stream(source).recording.header
    chosen = f"oracle selection of {read_fraction:.3g} by mass, HBM at {', '.join(f'{share:g}' for share in found)} of the KV"
    where = f"{header.model}, {header.context_tokens:,} tokens, {policy}, global pool, {chosen}"
    return HitCurve(tuple(found), tuple(found.values()), read_fraction, f"replay of {where}")
