"""What the choices imply: facts of the model, the system, the recording, the run's document; each read once."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from kvpager.errors import BadInput, NoTrace
from kvpager.explorer.choices import Choices

if TYPE_CHECKING:
    from kvpager.hardware import Catalogue, System
    from kvpager.models import ModelFacts
    from kvpager.report.document import Document
    from kvpager.traces.recording import Recording

__all__ = [
    "DEMO",
    "HOW_TO_RECORD",
    "Stamp",
    "catalogue",
    "chosen_by_default",
    "document",
    "facts",
    "head_types",
    "last_of",
    "locality",
    "plan",
    "recording",
    "refuse_beyond",
    "stamp",
    "system",
    "trace",
]

Stamp = frozenset[tuple[int, int]]
"""Number and time of change of each file that a choice names."""

DEMO = Path("kvpager-demo")
"""Where ``kvpager demo`` leaves its recording and its document."""

HOW_TO_RECORD = (
    "This part is drawn from a recording of real attention, and none is chosen. 'kvpager demo' makes one in minutes, "
    "'kvpager record --text FILE -o trace.zarr' one of your own text; then 'kvpager explore --trace trace.zarr'."
)


def chosen_by_default(choices: Choices, folder: Path = DEMO) -> Choices:
    """Return the choices with the demo's recording and document where none are named and the demo has run here."""
    found: dict[str, str] = {}
    if not choices.trace and (folder / "attention.zarr").is_dir():
        found["trace"] = str(folder / "attention.zarr")
    if not choices.run and (folder / "report.json").is_file():
        found["run"] = str(folder / "report.json")
    return choices.but(**found)


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue of hardware."""
    from kvpager.hardware import load

    return load()


@lru_cache(maxsize=16)
def facts(model: str) -> ModelFacts:
    """Facts of a model."""
    from kvpager.models import resolve

    return resolve(model)


def system(name: str) -> System:
    """A system of the catalogue."""
    return catalogue().systems[name]


def plan(choices: Choices) -> dict[str, Any]:
    """The planner's answer, as ``kvpager plan`` gives it."""
    return _plan(choices.model, choices.system, choices.context, choices.users, choices.read, choices.slo_ms / 1000)


@lru_cache(maxsize=64)
def _plan(model: str, name: str, context: int, users: int, read: float, slo_s: float) -> dict[str, Any]:
    from kvpager.plan.single import plan as run

    return run(facts(model), system(name), context, users, read_fraction=read, slo_s=slo_s)


def recording(choices: Choices) -> Recording:
    """The chosen recording of attention.

    Raises
    ------
    NoTrace
        If none is chosen.
    TraceError
        If it is missing, damaged, of another kind, or too new.
    """
    return _recording(*trace(choices))


def trace(choices: Choices) -> tuple[Path, Stamp]:
    """Path of the chosen recording, and its stamp; raises `NoTrace` if none is chosen."""
    path = choices.source("trace")
    if path is None:
        raise NoTrace(HOW_TO_RECORD)
    return path, stamp(path)


@lru_cache(maxsize=2)
def _recording(path: Path, changed: Stamp) -> Recording:
    from kvpager.traces.attention import read_recording

    return read_recording(path)


def last_of(choices: Choices) -> dict[str, int]:
    """Number of the last layer, KV head and block before the first step, as the chosen recording counts its own."""
    header = recording(choices).header
    return {
        "layer": len(header.layers) - 1,
        "head": header.num_kv_heads - 1,
        "block": header.context_tokens // header.block_size - 1,
    }


def refuse_beyond(choices: Choices, *names: str) -> None:
    """Raise `BadInput` if the chosen recording does not have a choice of `names`: ``layer``, ``head`` or ``block``."""
    last = last_of(choices)
    for name in names:
        if getattr(choices, name) > last[name]:
            raise BadInput(
                f"{name} {getattr(choices, name)} is not in trace {choices.trace!r}: it has 0 to {last[name]}; choose one of them"
            )


def locality(choices: Choices) -> dict[str, Any]:
    """Where the recording's mass lies, as a run's document has it."""
    return _locality(*trace(choices))


@lru_cache(maxsize=2)
def _locality(path: Path, changed: Stamp) -> dict[str, Any]:
    from kvpager.analysis.locality import profile

    return profile(_recording(path, changed))


def head_types(choices: Choices) -> dict[str, Any]:
    """Which kind each of the recording's heads is, as a run's document has it."""
    return _head_types(*trace(choices))


@lru_cache(maxsize=2)
def _head_types(path: Path, changed: Stamp) -> dict[str, Any]:
    from kvpager.analysis.heads import classify

    return classify(_recording(path, changed))


def document(choices: Choices) -> Document:
    """The chosen run's document, checked.

    Raises
    ------
    NoTrace
        If none is chosen.
    BadInput
        If it is missing, no JSON, or no document of a run.
    """
    path = choices.source("run")
    if path is None:
        raise NoTrace(
            "This part shows what a run found, and none is chosen: 'kvpager demo' makes one; then --run kvpager-demo/report.json."
        )
    return _document(path, stamp(path))


@lru_cache(maxsize=2)
def _document(path: Path, changed: Stamp) -> Document:
    from kvpager.report.document import check_document

    try:
        return check_document(orjson.loads(path.read_bytes()))
    except OSError as error:
        raise BadInput(f"run {str(path)!r} cannot be read: {error.strerror}; name a document of 'kvpager demo'") from error
    except orjson.JSONDecodeError as error:
        raise BadInput(f"run {str(path)!r} is no JSON document: {error}; name one of 'kvpager demo --json'") from error


def stamp(path: Path) -> Stamp:
    """What differs once a file or what lies in a folder was written anew, so that the same place is read again."""
    try:
        return frozenset(
            (one.st_ino, one.st_mtime_ns) for one in map(os.stat, [path, *(path.iterdir() if path.is_dir() else ())])
        )
    except OSError:
        return frozenset()  # the reader will say what is wrong
