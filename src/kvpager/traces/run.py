"""A run recording in memory: every call that a live run made of its unit table and its driver, in order. No file format here.

What a run asks for does not depend on its policy or on the size of HBM, as long as its selector does not look at
residency. So the calls of one run, made again over another Pager, tell what another run would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Budget, Grant, Ids, KVGeometry, Move, Seen, Tick, UnitTable

__all__ = [
    "COLUMNS",
    "KINDS",
    "OF_TABLE",
    "RUN_FORMAT",
    "Event",
    "Packer",
    "RunHeader",
    "RunRecording",
    "Sink",
    "call_table",
    "unpack",
]

RUN_FORMAT = "kvpager-run"
"""By which a store says that it is a run recording."""

OF_TABLE = ("new_sequence", "open", "open_many", "confirm", "fork", "truncate", "free")
_OF_DRIVER = (
    "begin", "append", "seal", "admit", "ask", "stream", "observe", "adopt", "prefetch", "release", "recover",
)  # fmt: skip
KINDS = (*OF_TABLE, *_OF_DRIVER)
"""What can be called; `confirm` is the table's `seal`. A kind's position is its number on disk."""

_WHYS = ("demand", "prefetch", "keep", "demote", "drop", "backup")
_EVENT = (
    "kind", "flags", "step", "layer", "sequence", "number", "units", "seen", "seen_step", "seen_layer", "answers", "moves",
    "failed",
)  # fmt: skip
_RAISED, _SEEN, _ANSWERS = 1, 2, 4

COLUMNS: dict[str, tuple[str, int]] = {
    "events": ("int32", len(_EVENT)),
    "units": ("int32", 0),
    "asks": ("int32", 0),
    "seen_units": ("int32", 0),
    "mass": ("float16", 0),
    "answers": ("int32", 0),
    "moves": ("int32", 5),
    "move_units": ("int32", 0),
    "failed": ("int32", 2),
    "failed_at": ("int32", 0),
}
"""Arrays of a segment: element type, and values a row (0 = flat).

``events`` holds, call by call: number of the kind, flags (1 raised, 2 has a mass, 4 has answers), step, layer, sequence, number
(block, count, tokens or twin), then how many entries of the flat arrays are its own: units (and, of an ask, asks), mass with its
own step and layer, answers, moves, failed. ``moves`` holds id, source, destination, number of the reason, units; ``failed`` holds
id, positions.
"""

_NONE = np.empty(0, np.int32)


class Event(NamedTuple):
    """One call, and what came of it."""

    kind: str
    tick: Tick = Tick(0, 0)
    """0, 0 for calls of the table: they have no time of their own."""
    units: Ids = _NONE
    asks: Ids = _NONE
    """Of an ask, one a unit."""
    seen: Seen | None = None
    """The mass that the call told."""
    answers: Ids | None = None
    """Of a begin: the moves whose answers counted; None = all that was submitted before, each with success."""
    sequence: int = -1
    """The sequence that is meant, or, of new_sequence, the one that was made."""
    number: int = 0
    """Of an open the block, of open_many how many, of a truncate the tokens, of a fork the twin."""
    raised: bool = False
    """Whether the call ended in an error that a run survives."""
    moves: tuple[Move, ...] = ()
    failed: tuple[tuple[int, Ids], ...] = ()
    """Moves that were answered with failure meanwhile, and the positions of their units that were not served."""
    grant: Grant | None = None
    """What a demand was answered; never on disk, since a replay finds it again."""


Sink = Callable[[Event], None]
"""Takes each call when it is over. It may keep the arrays only as a copy."""


@dataclass(frozen=True)
class RunHeader:
    """Where a run recording comes from, what was run, and how to read it."""

    model: str
    weights_sha256: str
    geometry: KVGeometry
    layers: tuple[int, ...]
    """Model layers on the layer axis: those whose KV is tiered."""
    num_kv_heads: int
    block_size: int
    granularity: str
    unit_bytes: int
    mode: str
    """``"exact"`` or ``"selective"``."""
    selector: str
    """Written form."""
    policy: str
    """Written form."""
    budget: Budget
    pool: str = "global"
    seed: int = 0
    lanes: int = 1
    lockstep: bool = True
    prefetcher: str | None = None
    """Written form."""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    recorded: str = ""
    """Date and time, UTC, ISO 8601."""

    @property
    def hbm_units(self) -> int:
        """Units that tiers 0 and 1 held."""
        return (self.budget.payload_bytes[0] + self.budget.payload_bytes[1]) // self.unit_bytes

    @property
    def dram_units(self) -> int:
        """Units that tier 2 held."""
        return self.budget.payload_bytes[2] // self.unit_bytes

    @property
    def table_shape(self) -> tuple[int, int, int, int, str]:
        """What a `UnitTable` like the run's is made with."""
        heads = self.num_kv_heads if self.granularity == "head" else 1
        return (
            len(self.layers),
            self.num_kv_heads,
            self.block_size,
            self.unit_bytes * heads // self.num_kv_heads,
            self.granularity,
        )


@dataclass(frozen=True, eq=False)
class RunRecording:
    """A live run's calls.

    Attributes
    ----------
    header : RunHeader
        Provenance and settings.
    columns : mapping of str to array
        The calls, as `COLUMNS` says.
    counts : mapping, optional
        What the run itself had counted when it ended; None if it was interrupted.
    """

    header: RunHeader
    columns: Mapping[str, NDArray[Any]]
    counts: Mapping[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.columns["events"])

    def events(self) -> Iterator[Event]:
        """Give the calls in order; their arrays are views."""
        return unpack(self.columns)

    @property
    def disturbances(self) -> int:
        """Calls that raised and moves that failed: what came after may hang on them."""
        return int(np.count_nonzero(self.columns["events"][:, 1] & _RAISED)) + len(self.columns["failed"])

    @cached_property
    def units(self) -> int:
        """Most units alive at once, over all sequences: all KV, which a share of HBM is a share of."""
        table, most, freed = UnitTable(*self.header.table_shape), 0, 0
        for event in self.events():
            if event.kind in OF_TABLE:
                freed += len(call_table(table, event))
                most = max(most, table.size - freed)
        return most


class Packer:
    """Turns calls into arrays that can be stored; copies what it is given."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.size = 0
        """Numbers that are held."""

    def add(self, event: Event) -> None:
        """Take one call."""
        seen, answers = event.seen, event.answers
        flags = _RAISED * event.raised + _SEEN * (seen is not None) + _ANSWERS * (answers is not None)
        seen_units, mass = (_NONE, _NONE) if seen is None else (seen.units, seen.mass)
        seen_tick = event.tick if seen is None else seen.tick
        counts = (len(event.units), len(seen_units), *seen_tick, len(() if answers is None else answers))
        row = (KINDS.index(event.kind), flags, *event.tick, event.sequence, event.number, *counts)
        self._put("events", [(*row, len(event.moves), len(event.failed))])
        for name, values in (("units", event.units), ("seen_units", seen_units), ("mass", mass)):
            self._put(name, values)
        if event.kind == "ask":
            self._put("asks", event.asks)
        if answers is not None:
            self._put("answers", answers)
        for move in event.moves:
            self._put("moves", [(move.id, move.src, move.dst, _WHYS.index(move.why), len(move.units))])
            self._put("move_units", move.units)
        for move_id, where in event.failed:
            self._put("failed", [(move_id, len(where))])
            self._put("failed_at", where)

    def take(self) -> dict[str, NDArray[Any]]:
        """Give what was taken in so far as `COLUMNS`, and start anew."""
        parts, self._parts, self.size = self._parts, {name: [] for name in COLUMNS}, 0
        empty = {name: np.empty((0, width) if width else 0, kind) for name, (kind, width) in COLUMNS.items()}
        return {name: np.concatenate([empty[name], *found]) for name, found in parts.items()}

    def _put(self, name: str, values: Any) -> None:
        if len(values):
            self._parts[name].append(np.array(values, COLUMNS[name][0]))
            self.size += self._parts[name][-1].size


def unpack(columns: Mapping[str, NDArray[Any]]) -> Iterator[Event]:
    """Give the calls that `columns` hold, in order.

    Raises
    ------
    ValueError
        If the columns contradict each other.
    """
    _check(columns)
    at = dict.fromkeys(COLUMNS, 0)

    def take(name: str, count: int) -> NDArray[Any]:
        at[name] += count
        return columns[name][at[name] - count : at[name]]

    for row in columns["events"].tolist():
        kind, flags, step, layer, sequence, number, units, seen, seen_step, seen_layer, answers, moves, failed = row
        name = KINDS[kind]
        yield Event(
            name,
            Tick(step, layer),
            take("units", units),
            take("asks", units) if name == "ask" else _NONE,
            Seen(Tick(seen_step, seen_layer), take("seen_units", seen), take("mass", seen)) if flags & _SEEN else None,
            take("answers", answers) if flags & _ANSWERS else None,
            sequence,
            number,
            bool(flags & _RAISED),
            tuple(
                Move(move, take("move_units", count), src, dst, _WHYS[why])
                for move, src, dst, why, count in take("moves", moves).tolist()
            ),
            tuple((move, take("failed_at", count)) for move, count in take("failed", failed).tolist()),
        )


def call_table(table: UnitTable, event: Event) -> Ids:
    """Make a call of the table again; return the units that it freed."""
    if event.kind == "new_sequence":
        table.new_sequence()
    elif event.kind == "open":
        table.open(event.sequence, event.number)
    elif event.kind == "open_many":
        table.open_many(event.sequence, event.number)
    elif event.kind == "confirm":
        table.seal(event.units)
    elif event.kind == "fork":
        table.fork(event.sequence)
    elif event.kind == "truncate":
        return table.truncate(event.sequence, event.number)
    else:
        return table.free(event.sequence)
    return _NONE


def _check(columns: Mapping[str, NDArray[Any]]) -> None:
    """Raise `ValueError` unless the columns belong together."""
    events, moves = columns["events"], columns["moves"]
    of = {name: events[:, at].astype(np.int64) for at, name in enumerate(_EVENT)}
    counted = {name: of[name] for name in ("units", "seen", "answers", "moves", "failed")}
    wanted = {
        "units": counted["units"].sum(),
        "asks": counted["units"][of["kind"] == KINDS.index("ask")].sum(),
        "seen_units": counted["seen"].sum(),
        "mass": counted["seen"].sum(),
        "answers": counted["answers"].sum(),
        "moves": counted["moves"].sum(),
        "move_units": moves[:, 4].sum(dtype=np.int64),
        "failed": counted["failed"].sum(),
        "failed_at": columns["failed"][:, 1].sum(dtype=np.int64),
    }
    wrong = [name for name, count in wanted.items() if len(columns[name]) != count]
    negative = any(count.min(initial=0) < 0 for count in (*counted.values(), moves[:, 4], columns["failed"][:, 1]))
    numbers = ((of["kind"], len(KINDS)), (moves[:, 3], len(_WHYS)))
    if wrong or negative or any(found.min(initial=0) < 0 or found.max(initial=0) >= end for found, end in numbers):
        raise ValueError(f"its calls and its {', '.join(wrong) or 'numbers'} contradict each other")
