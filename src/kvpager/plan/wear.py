"""What a replay over tiers writes to its last tier, and how long drives last at that."""

from __future__ import annotations

from typing import Any

from kvpager.analysis import transfer
from kvpager.errors import BadInput
from kvpager.evidence import Evidence, Quantity
from kvpager.hardware import Medium
from kvpager.plan.evaluate import Explained, as_json
from kvpager.replay.hierarchy import HierarchyReplay
from kvpager.replay.hierarchyloop import DEMOTED, NEW, PROMOTED

__all__ = ["wear"]

_DAY_S, _YEAR_S = 86_400.0, 31_557_600.0
_of = Explained()


def wear(found: HierarchyReplay, medium: Medium, *, count: int = 1, write_amplification: float = 1.0) -> dict[str, Any]:
    """Return the wear of the last tier, if it is made of `count` drives and every day is like the replayed time.

    Parameters
    ----------
    found : HierarchyReplay
        With a block's bytes; requests after the warm-up count.
    medium : Medium
        One drive, from the catalogue.
    count : int
        Drives that share the writes evenly.
    write_amplification : float
        Bytes that flash writes for a byte that is written to the drive, at least 1.

    Returns
    -------
    dict
        Ready for JSON: ``written_bytes``, ``trace_s``, and as quantities ``written_bytes_per_day``, ``drive_writes_per_day``,
        ``write_utilisation`` and, if the medium's endurance is known, ``years_to_endurance``: ``"never"`` without writes.

    Raises
    ------
    BadInput
        Without a block's bytes or a time that passes, and if the drives cannot hold what the tier does.
    """
    trace, name = found.trace, found.hierarchy.tiers[-1].name
    if found.block_bytes is None:
        raise BadInput(f"wear of tier {name!r}: a block has no size in bytes: replay with block_bytes")
    if count < 1 or not write_amplification >= 1:
        raise BadInput(
            f"wear of tier {name!r}: {count} drives with a write amplification of {write_amplification} are impossible: "
            "give at least 1 of each"
        )
    seconds = float(trace.time_s[-1] - trace.time_s[found.first])
    if not seconds > 0:
        raise BadInput(f"wear of tier {name!r}: {trace.name} has no times, all its requests arrive at once: give one with times")
    held = int(found.held[-1]) * found.block_bytes
    if held > count * medium.capacity_bytes.ends[1]:
        raise BadInput(
            f"wear of tier {name!r}: {held:,} B do not fit {count} x {medium.title}: give more drives, or bound the tier"
        )
    written = int(found.counts[-1, [NEW, DEMOTED, PROMOTED]].sum()) * found.block_bytes
    document: dict[str, Any] = as_json(_document(name, medium, count, written, seconds, write_amplification))
    return document | {"written_bytes": written}


def _document(name: str, medium: Medium, count: int, written: int, seconds: float, amplified: float) -> dict[str, Any]:
    rate = Quantity(
        written / seconds,
        "B/s",
        frozenset({Evidence.SIMULATED}),
        "written bytes / time of the trace",
        "replay",
        "write_bytes_per_s",
    )
    factor = Quantity(amplified, "1", frozenset({Evidence.ASSUMPTION}), "", "as given", "write_amplification")
    per_day = _of.step("written_bytes_per_day", "B", "write_bytes_per_s x 86,400 s", lambda speed: speed * _DAY_S, rate)
    writes = _of.step(
        "drive_writes_per_day",
        "1",
        f"write_bytes_per_s x 86,400 s / ({count} x capacity)",
        lambda speed, size: transfer.drive_writes_per_day(speed, count * size),
        rate,
        medium.capacity_bytes,
        source="JEDEC JESD218",
    )
    busy = _of.step(
        "write_utilisation",
        "1",
        f"write_bytes_per_s / ({count} x write rate); above 1 the drives cannot keep up",
        lambda speed, drive: transfer.utilisation(speed, count * drive),
        rate,
        medium.write_bytes_per_s,
        source="mission row 42",
    )
    found: dict[str, Any] = {
        "tier": name,
        "medium": medium.name,
        "drives": count,
        "trace_s": seconds,
        "written_bytes_per_day": per_day,
        "drive_writes_per_day": writes,
        "write_utilisation": busy,
        "assumed": [
            "every day is like the replayed time",
            "drives share the writes evenly, and the tier is written only by this",
        ],
        "evidence": min(writes.evidence, busy.evidence).label,
    }
    if medium.endurance_bytes is not None:
        life = _of.step(
            "years_to_endurance",
            "years",
            f"{count} x endurance / (write_bytes_per_s x write_amplification)",
            lambda speed, endurance, factor: transfer.drive_life_s(count * endurance, speed, factor) / _YEAR_S,
            rate,
            medium.endurance_bytes,
            factor,
            source="mission row 7",
        )
        found |= {"years_to_endurance": life, "evidence": min(life.evidence, writes.evidence, busy.evidence).label}
    return found
