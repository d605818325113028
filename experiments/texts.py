"""The texts that models are recorded on: five kinds, those for fitting apart from those for judging.

Nothing is stored in the repository. Two texts come with Python, three from the test data of the Brotli source
archive on PyPI (the Canterbury corpus, all in the public domain); they are fetched once.
"""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from kvpager.errors import BadInput

__all__ = ["ARCHIVE", "SWITCHES", "TEST", "TEXTS", "TRAIN", "Text"]

ARCHIVE = "Brotli==1.1.0"


class Text(NamedTuple):
    """A text."""

    kind: str
    source: str
    read: Callable[[Path], str]
    """Given a folder to keep fetched files in."""


def _corpus(name: str, folder: Path) -> str:
    archive = folder / f"{ARCHIVE.replace('==', '-')}.tar.gz"
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        fetch = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            ":all:",
            "--dest",
            str(folder),
            ARCHIVE,
        ]
        got = subprocess.run(fetch, capture_output=True, text=True)
        if got.returncode:
            reason = (got.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BadInput(
                f"text {name!r} comes in {ARCHIVE}, which pip cannot fetch ({reason}): put {archive.name} into {str(folder)!r}"
            )
        if not archive.is_file():  # the name of a source archive may be in lower case
            next(folder.glob("[Bb]rotli-*.tar.gz")).rename(archive)
    with tarfile.open(archive) as files:
        member = next((one for one in files if one.name.endswith(f"/tests/testdata/{name}")), None)
        if member is None or (found := files.extractfile(member)) is None:
            raise BadInput(f"text {name!r} is not in {str(archive)!r}: fetch {ARCHIVE} again")
        return found.read().decode("utf-8", errors="replace")


def _source(module: object, folder: Path) -> str:
    return Path(inspect.getsourcefile(module)).read_text(encoding="utf-8")  # type: ignore[arg-type]


def _topics(folder: Path) -> str:
    from pydoc_data import topics

    return "\n\n".join(topics.topics[name] for name in sorted(topics.topics))


TEXTS: dict[str, Text] = {
    "novel": Text("prose", "Carroll, Alice's Adventures in Wonderland (alice29.txt)", partial(_corpus, "alice29.txt")),
    "library": Text("code", "Python's inspect.py", partial(_source, inspect)),
    "code": Text("code", "Python's argparse.py", partial(_source, argparse)),
    "docs": Text("technical documentation", "Python's language reference by topic (pydoc_data)", _topics),
    "drama": Text("dialogue", "Shakespeare, As You Like It (asyoulik.txt)", partial(_corpus, "asyoulik.txt")),
    "report": Text("prose", "proceedings of a workshop on electronic texts (lcet10.txt)", partial(_corpus, "lcet10.txt")),
}

SWITCHES: dict[str, tuple[str, str, str]] = {
    "report-to-code": ("report", "report", "code"),
    "code-to-report": ("code", "code", "report"),
    "return": ("code", "report", "code"),
}
"""Texts with a switch of topic: first and second half of the context, and what follows. The last comes back."""

TRAIN = ("novel", "library")
"""Constants are fitted on these alone."""

TEST = ("code", "docs", "drama", "report", *SWITCHES)
"""Results are judged on these."""
