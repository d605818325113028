"""What a runner did in its trials, and a folder of those that are done: an interrupted evaluation goes on from there."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput

__all__ = ["Kept", "Outcome"]


@dataclass
class Outcome:
    """What one runner did in some trials, in their order."""

    right: list[bool] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    ahead: list[NDArray[np.float32]] = field(default_factory=list)
    """Log probabilities ``[n, vocabulary]``: where each question is first read inexactly, and along each sequel."""
    loss: list[float] = field(default_factory=list)
    """Negative log probability of each foretold token of the sequels."""
    facts: list[dict[str, float]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Append the trials of `other`."""
        for name, values in vars(self).items():
            values.extend(getattr(other, name))


class Kept:
    """Outcomes of single contexts in files of a folder, by all that decides them.

    Parameters
    ----------
    folder : Path
        Made if need be.
    about : str
        What decides every outcome: model, weights, versions, settings.

    Raises
    ------
    BadInput
        If the folder cannot be made.
    """

    def __init__(self, folder: Path, about: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"trials cannot be kept in {folder}: {error.strerror}; choose a folder that you may write to"
            ) from error
        self._folder, self._about = folder, about

    def get(self, *what: str) -> Outcome | None:
        """Return the outcome of what is named so, or None: it was not kept, or its file is damaged."""
        try:
            with np.load(io.BytesIO(self._path(what).read_bytes()), allow_pickle=False) as file:
                rest: dict[str, Any] = json.loads(bytes(file["rest"]))
                lengths, rows = file["lengths"], file["ahead"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        ahead = [np.asarray(part) for part in np.split(rows, np.cumsum(lengths)[:-1])] if len(lengths) else []
        return Outcome(**rest, ahead=ahead)

    def put(self, outcome: Outcome, *what: str) -> None:
        """Keep `outcome` under its name; raise `BadInput` if the folder cannot take it."""
        rest = asdict(outcome)
        ahead = rest.pop("ahead")
        content = io.BytesIO()
        np.savez(
            content,
            rest=np.frombuffer(json.dumps(rest).encode(), np.uint8),
            lengths=np.array([len(part) for part in ahead], np.int64),
            ahead=np.concatenate(ahead) if ahead else np.zeros((0, 0), np.float32),
        )
        path = self._path(what)
        draft = path.with_suffix(f".{os.getpid()}")
        try:
            draft.write_bytes(content.getvalue())
            draft.replace(path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise BadInput(f"trials cannot be kept in {self._folder}: {error.strerror}; choose a folder with room") from error

    def _path(self, what: tuple[str, ...]) -> Path:
        name = hashlib.sha256("\0".join([self._about, *what]).encode()).hexdigest()
        return self._folder / f"{name[:40]}.npz"
