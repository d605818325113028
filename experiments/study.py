"""What every experiment is given: where its inputs are, how far it got, and where its results go.

An experiment is a module with a docstring whose first line is its question, and::

    CLAIMS = ("locality-80-10", ...)      the ledger's claims that it settles
    def run(study: Study) -> None: ...    adds rows, findings and signs

Its results are two files: rows as Parquet, and a JSON document with findings, signs, machine, versions, seeds and command.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from experiments.recordings import Scale, recorded
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE, SUPPORTED
from kvpager.errors import InvariantError
from kvpager.evidence import Evidence, weakest
from kvpager.replay.fitting import mean_interval
from kvpager.report.file import write_file
from kvpager.traces.provenance import now, this_machine, versions_of

__all__ = ["Interval", "Study", "interval"]

OUTCOMES = (SUPPORTED, CONTRADICTED, INCONCLUSIVE, NOT_SETTLEABLE)


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float


def interval(values: Iterable[float]) -> Interval:
    """Mean of independent `values` (texts, seeds, contexts), with Student's 95 % interval; one value has no width to show.

    Parameters
    ----------
    values : iterable of float
        At least one. For steps of one text use means of blocks of 16 steps: neighbouring steps are not independent.
    """
    found = mean_interval(list(values))
    return Interval(found["value"], found.get("low", -math.inf), found.get("high", math.inf))


class Study:
    """One run of one experiment.

    Parameters
    ----------
    name : str
        E.g. ``"E1"``.
    question : str
        In one line.
    scale : Scale
        How long contexts and runs are.
    work : Path
        Folder of recordings, texts and finished parts; a broken-off run goes on from there.
    say : callable
        Told what is being done.
    """

    def __init__(
        self, name: str, question: str, scale: Scale, work: Path, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.name, self.question, self.scale, self.work, self.say = name, question, scale, work, say
        self.rows: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.constants: list[dict[str, Any]] = []
        """Constants of the notes that were fitted, by symbol of the register."""
        self.curves: list[dict[str, Any]] = []
        """Hit curves for ``kvpager plan --curve``."""
        self.signs: dict[str, int] = {}
        self.seeds: list[int] = []

    @property
    def quick(self) -> bool:
        """Whether this is the reduced form."""
        return self.scale.name == "quick"

    def recording(self, text: str, **how: Any) -> Path:
        """Return the recording of `text` at this scale; see `recorded`."""
        self.say(f"recording of {text}")
        return recorded(text, self.scale, self.work, **how)

    def once(self, key: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the rows that `make` gives, and add them to the results; kept under `key`, so that it is called once only.

        Parameters
        ----------
        key : str
            Names the part, with everything that its rows depend on: text, policies, sizes.
        make : callable
            Makes rows: flat objects of numbers and texts.
        """
        short = hashlib.sha256(key.encode()).hexdigest()[:16]
        path = self.work / "parts" / f"{self.name}-{self.scale.name}" / f"{short}.json"
        if path.is_file():
            rows = orjson.loads(path.read_bytes())
        else:
            self.say(key if len(key) < 100 else key[:97] + "...")
            rows = orjson.loads(orjson.dumps(make(), option=orjson.OPT_SERIALIZE_NUMPY))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, orjson.dumps(rows))
        self.rows += rows
        return list(rows)

    def find(
        self,
        claim: str,
        outcome: str,
        says: str,
        *,
        value: float | None = None,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
        labels: Sequence[Evidence] = (Evidence.SIMULATED, Evidence.MEASURED),
    ) -> None:
        """Say what came of a claim.

        Parameters
        ----------
        claim : str
            Its id in the ledger.
        outcome : str
            One of `OUTCOMES`.
        says : str
            What was found, in a sentence or two, with what it was found on.
        value, low, high : float, optional
            The figure that decides, and its 95 % interval.
        unit : str
            Of the figure: ``"%"``, ``"points"``, ``"x"``, ``"s"``.
        labels : sequence of Evidence
            How the figure is known, its inputs included.
        """
        if outcome not in OUTCOMES:
            raise InvariantError(f"{self.name} finds {outcome!r} of {claim}: use one of {', '.join(OUTCOMES)}")
        stated = _stated(says, value, low, high, unit, labels)
        self.findings.append({"claim": claim, "outcome": outcome} | stated | {"command": f"kvpager claims {claim} --run"})

    def result(
        self,
        name: str,
        says: str,
        *,
        value: float | None = None,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
        labels: Sequence[Evidence] = (Evidence.SIMULATED, Evidence.MEASURED),
    ) -> None:
        """State a result that belongs to no claim of the notes; as `find`, but by a name of its own."""
        self.results.append({"name": name} | _stated(says, value, low, high, unit, labels))

    def constant(
        self,
        symbol: str,
        value: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        close: Sequence[Sequence[float]] = (),
    ) -> None:
        """State what a constant of the register was fitted to.

        Parameters
        ----------
        symbol : str
            Its symbol there, e.g. ``"alpha"``.
        value, low, high : sequence of float
            The fit and its 95 % interval; as many numbers as the constant has.
        close : sequence of pairs of float
            For each number the least and the largest value that is within a point of the best.
        """
        numbers = {"value": value, "low": low, "high": high}
        short = {name: [_short(one) for one in many] for name, many in numbers.items()}
        self.constants.append({"symbol": symbol, **short, "within_1_point": [[_short(end) for end in span] for span in close]})

    def sign(self, what: str, found: Interval | float) -> None:
        """Note the sign of a difference, which the quick form must repeat: 0 where the interval holds 0."""
        value, low, high = found if isinstance(found, Interval) else (found, found, found)
        self.signs[what] = 0 if low <= 0 <= high else int(math.copysign(1, value))

    def document(self, command: str) -> dict[str, Any]:
        """Everything but the rows, ready for JSON."""
        return {
            "experiment": self.name,
            "question": self.question,
            "scale": self.scale._asdict(),
            "command": command,
            "date": now(),
            "machine": this_machine(),
            "versions": versions_of(["numpy", "torch", "transformers", "numba", "scipy", "zarr"]),
            "seeds": self.seeds,
            "rows": len(self.rows),
            "signs": self.signs,
            "findings": self.findings,
            "results": self.results,
            "constants": self.constants,
        } | ({"curves": self.curves} if self.curves else {})

    def write(self, folder: Path, command: str) -> Path:
        """Write both files into `folder`; return the JSON document's path."""
        import pyarrow as pa
        from pyarrow import parquet

        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        write_file(path, orjson.dumps(self.document(command), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
        if self.rows:
            parquet.write_table(pa.Table.from_pylist(_aligned(self.rows)), folder / f"{self.name}.parquet", compression="zstd")
        return path


def _stated(
    says: str, value: float | None, low: float | None, high: float | None, unit: str, labels: Sequence[Evidence]
) -> dict[str, Any]:
    figure = None if value is None else {"value": _short(value), "low": _short(low), "high": _short(high), "unit": unit}
    known = {"evidence": weakest(labels).label, "labels": [one.label for one in labels]}
    return {"says": says, "figure": figure, **known}


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _aligned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give all rows the same columns; numbers of one column have one type."""
    names = dict.fromkeys(name for row in rows for name in row)
    mixed = {name for name in names if {type(row.get(name)) for row in rows} >= {int, float}}
    return [
        {name: float(row[name]) if name in mixed and row.get(name) is not None else row.get(name) for name in names}
        for row in rows
    ]
