"""Many cases over one recording, in parallel processes, each result as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvpager.registry import configure
from kvpager.replay.row import Case, run_case
from kvpager.replay.stream import Setting, Stream, make_stream
from kvpager.selectors import SELECTORS
from kvpager.traces.recording import Recording

__all__ = ["Source", "load_stream", "sweep"]


@dataclass(frozen=True)
class Source:
    """Which recording is read, and how.

    Parameters
    ----------
    path : Path
        The recording.
    selector : str
        Written form, e.g. ``"topp_mass:p=0.95"``.
    clock, observe : str
        See `Setting`.
    """

    path: Path
    selector: str = "topp_mass"
    clock: str = "layer"
    observe: str = "read"


def load_stream(source: Source, granularity: str = "head", fold: str = "mean") -> Stream:
    """Read the recording and make its demand; remembered within a process until the recording changes."""
    setting = Setting(granularity, source.clock, source.observe, fold)
    return _stream(source.path, _state(source.path), source.selector, setting)


def _state(path: Path) -> frozenset[tuple[int, int]]:
    """What differs once a recording does: each flush replaces a file in its folder."""
    try:
        return frozenset((file.stat().st_ino, file.stat().st_mtime_ns) for file in path.iterdir())
    except OSError:
        return frozenset()  # the reader will say what is wrong


@lru_cache(maxsize=4)
def _stream(path: Path, state: frozenset[tuple[int, int]], selector: str, setting: Setting) -> Stream:
    return make_stream(_recording(path, state), configure(SELECTORS, selector), setting)


@lru_cache(maxsize=1)
def _recording(path: Path, state: frozenset[tuple[int, int]]) -> Recording:
    from kvpager.traces.attention import read_recording

    return read_recording(path)


def _one(source: Source, case: Case) -> dict[str, Any]:
    return run_case(load_stream(source, case.granularity, case.fold), case) | {"selector": source.selector}


def sweep(
    source: Source, cases: Sequence[Case], *, jobs: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[dict[str, Any]]:
    """Run all `cases`; rows come back in their order.

    Cases of one stream go to the same process where possible, so that each makes few streams.

    Parameters
    ----------
    source : Source
        The recording.
    cases : sequence of Case
        What to replay.
    jobs : int
        Processes; 0 = one a core.
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    list of dict
        One row a case.
    """
    ordered = sorted(set(cases), key=lambda case: (case.granularity, case.fold, cases.index(case)))
    rows: dict[Case, dict[str, Any]] = {}
    results: Iterable[tuple[Case, dict[str, Any]]]
    if jobs == 1 or len(ordered) < 4:
        results = ((case, _one(source, case)) for case in ordered)
    else:
        from joblib import Parallel, delayed

        there = replace(source, path=source.path.absolute())  # a worker may have been started in another folder
        parallel = Parallel(n_jobs=jobs or -1, return_as="generator_unordered", batch_size=1)
        results = parallel(delayed(_labelled)(there, case) for case in ordered)
    for case, row in results:
        rows[case] = row
        if progress is not None:
            progress(len(rows), len(ordered))
    return [rows[case] for case in cases]


def _labelled(source: Source, case: Case) -> tuple[Case, dict[str, Any]]:
    return case, _one(source, case)
