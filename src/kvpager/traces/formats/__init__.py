"""Foreign formats of request traces: one file each. See `base` for the contract.

A format is written as ``name``, with settings ``name:block_size=16``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvpager.errors import BadInput
from kvpager.registry import configure
from kvpager.traces.formats.base import FORMATS, Format
from kvpager.traces.lines import Lines
from kvpager.traces.requests import RequestTrace, checked, gather

__all__ = ["FORMATS", "Format", "convert", "load_requests", "recognise"]

_PARQUET = b"PAR1"


def convert(path: str | Path, form: str | Format | None = None, *, skip_bad: int = 0) -> Iterator[RequestTrace]:
    """Read a request trace of any format piece by piece, ready for `write_requests` or `gather`.

    Parameters
    ----------
    path : path
        The file, our own Parquet included.
    form : str or Format, optional
        Its format, e.g. ``"agentic:view=interleaved,start=poisson"``; by default the one that recognises it.
    skip_bad : int
        Most malformed records to skip; the last piece's ``source["skipped"]`` counts them.

    Yields
    ------
    RequestTrace
        The pieces in order, each checked.

    Raises
    ------
    TraceError
        If the file is missing, cut short or malformed, or holds no request; the message names file, line and remedy.
    BadInput
        If the format is unknown, or takes no such setting.
    """
    yield from checked(_pieces(Path(path), form, skip_bad), what=repr(str(path)))


def load_requests(path: str | Path, form: str | Format | None = None, *, skip_bad: int = 0) -> RequestTrace:
    """Read a whole request trace of any format into memory; parameters and errors are those of `convert`.

    Raises
    ------
    CapacityError
        If it would not fit into the free memory.
    """
    if form is None and _is_ours(Path(path)):
        from kvpager.traces.requeststore import read_requests  # pyarrow

        return read_requests(path)
    return gather(_pieces(Path(path), form, skip_bad), what=repr(str(path)))


def recognise(path: str | Path) -> str:
    """Return the name of the one format that recognises a file.

    Raises
    ------
    BadInput
        If none does, or several.
    """
    path = Path(path)
    head = Lines(path).head()
    found = [name for name in FORMATS if FORMATS[name].recognises(path.name, head)]  # type: ignore[attr-defined]
    if len(found) != 1:
        raise BadInput(f"{str(path)!r} looks like {' or '.join(found) or 'no format'}: name one of {', '.join(FORMATS)}")
    return found[0]


def _pieces(path: Path, form: str | Format | None, skip_bad: int) -> Iterator[RequestTrace]:
    if form is None and _is_ours(path):
        from kvpager.traces.requeststore import iter_requests  # pyarrow

        return iter_requests(path)
    chosen: Format = form if isinstance(form, Format) else configure(FORMATS, form or recognise(path))
    return chosen.pieces(path, skip_bad=skip_bad)


def _is_ours(path: Path) -> bool:
    return Lines(path).head(len(_PARQUET)) == _PARQUET
