"""How a benchmark of block stores talks with its sides: each is a process of its own, asked in lines of JSON.

A side's file is run by the Python of its own environment, which need not have kvpager: this file wants nothing but NumPy.
Content of a block follows from a number and from where it stands, so that both ends know it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PEERS = {
    "vllm_fs": ("vllm", "vLLM 0.28 or later"), "lmcache_disk": ("lmcache", "LMCache 0.5"),
    "sglang_file": ("sglang", "SGLang 0.5"),
}  # fmt: skip
"""Sides that are not ours: the word of their option, and what must be installed there."""
STAMP_BYTES = 64
_PATTERNS = 8


def stamp(seed: int, number: int) -> bytes:
    """The first bytes of a block, which no other block has."""
    return np.random.default_rng([seed, number]).bytes(STAMP_BYTES)


class Memory:
    """Blocks in memory that is there from the start, uint8 [blocks, block_bytes], and what they should hold.

    Parameters
    ----------
    blocks, block_bytes : int
        How many, of how many bytes.
    rows : uint8 [blocks, block_bytes], optional
        Memory that is there already; else pages of its own, on huge pages where the system gives them.
    """

    def __init__(self, blocks: int, block_bytes: int, rows: Any = None) -> None:
        import mmap

        if rows is None:
            mapping = mmap.mmap(-1, blocks * block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with contextlib.suppress(OSError):
                mapping.madvise(mmap.MADV_HUGEPAGE)
            rows = np.frombuffer(mapping, np.uint8).reshape(blocks, block_bytes)
        self.rows = rows
        self._patterns = np.random.default_rng(block_bytes).integers(0, 256, (_PATTERNS, block_bytes), np.uint8)

    def fill(self, seed: int) -> None:
        """Make the rows the blocks of `seed`."""
        for number, row in enumerate(self.rows):
            row[:] = self._patterns[number % _PATTERNS]
            row[:STAMP_BYTES] = np.frombuffer(stamp(seed, number), np.uint8)

    def clear(self) -> None:
        """Make the rows what no block is."""
        self.rows[:] = 0

    def right(self, seed: int, number: int, row: Any = None) -> bool:
        """Whether a row is block `number` of `seed`."""
        row = self.rows[number] if row is None else np.asarray(row)
        if row.shape != self.rows[number].shape or row[:STAMP_BYTES].tobytes() != stamp(seed, number):
            return False
        return bool(np.array_equal(row[STAMP_BYTES:], self._patterns[number % _PATTERNS][STAMP_BYTES:]))


class Side(ABC):
    """A block store under test, in its own process."""

    memory: Memory
    """What `put` takes and `get` fills."""
    label: str
    """What a reader must know of it."""

    def prepare(self) -> None:
        """Bring the rows where `put` takes them from, untimed: nothing to do where it takes them itself."""
        return

    def finish(self) -> None:
        """Bring what `get` found into the rows, untimed: nothing to do where it fills them itself."""
        return

    @abstractmethod
    def put(self, seed: int) -> list[bool]:
        """Keep all rows as blocks of `seed`; return which it says it has."""

    @abstractmethod
    def get(self, seed: int, order: list[int]) -> list[bool]:
        """Fill the rows `order` with blocks of `seed`; return which it says it did, in that order."""

    @abstractmethod
    def drop(self, seed: int) -> None:
        """Let the blocks of `seed` go."""

    @abstractmethod
    def close(self) -> None:
        """End in good order."""


def serve(make: Callable[[Path, int, int, dict[str, Any]], Side]) -> None:
    """Answer the parent's lines until it closes the pipe. Whatever a library prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    folder, blocks, block_bytes, settings = json.loads(sys.argv[1])
    try:
        side = make(Path(folder), blocks, block_bytes, settings)
    except Exception as error:
        say({"missing": f"{type(error).__name__}: {error}"})
        return
    say({"label": side.label})
    for line in sys.stdin:
        word, seed, order = json.loads(line)
        say(_answer(side, Path(folder), word, seed, order))
        if word == "close":
            return


def _answer(side: Side, folder: Path, word: str, seed: int, order: list[int]) -> dict[str, Any]:
    if word == "put":
        side.memory.fill(seed)
        side.prepare()
        begun = time.perf_counter()
        ok = side.put(seed)
        return {"seconds": time.perf_counter() - begun, "ok": ok}
    if word == "get":
        side.memory.clear()
        begun = time.perf_counter()
        try:
            ok = side.get(seed, order)
        except Exception as error:  # an answer, too: the fault table shows it
            return {"raised": type(error).__name__, "ok": [], "right": []}
        seconds = time.perf_counter() - begun
        side.finish()
        return {"seconds": seconds, "ok": ok, "right": [side.memory.right(seed, number) for number in order]}
    if word == "drop":
        side.drop(seed)
    elif word == "cold":
        cold(folder)
    elif word == "close":
        side.close()
    return {}


def cold(folder: Path) -> None:
    """Take the files of `folder` out of the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Child:
    """A side, from the benchmark's end.

    Parameters
    ----------
    name : str
        Its file beside this one.
    python : str
        The interpreter of its environment.
    folder : Path
        Where its blocks go.
    blocks, block_bytes : int
        Of its memory.
    settings : object
        What its file takes.

    Attributes
    ----------
    missing : str
        Why it is not there; empty if it is.
    """

    def __init__(self, name: str, python: str, folder: Path, blocks: int, block_bytes: int, **settings: Any) -> None:
        self.name, self.blocks, self.block_bytes = name, blocks, block_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(f"{name}.py")), json.dumps([str(folder), blocks, block_bytes, settings])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        said = self._line()
        self.label, self.missing = said.get("label", ""), said.get("missing", "")

    def ask(self, word: str, seed: int = 0, order: list[int] | None = None) -> dict[str, Any]:
        """Have something done; return the answer."""
        if self._process.stdin is None:
            raise SystemExit(f"{self.name} has no pipe")
        self._process.stdin.write(json.dumps([word, seed, order if order is not None else [*range(self.blocks)]]) + "\n")
        self._process.stdin.flush()
        return self._line()

    def rate(self, word: str, seed: int, order: list[int] | None = None) -> float:
        """Bytes a second of a put or a get; ends the benchmark if not all of it was done, and right."""
        said = self.ask(word, seed, order)
        if not all(said["ok"]) or not all(said.get("right", [])) or len(said["ok"]) != self.blocks:
            raise SystemExit(f"{self.name}: {word} of {self.blocks} blocks: {said.get('raised', 'not all were served right')}")
        return self.blocks * self.block_bytes / float(said["seconds"])

    def end(self, *, kill: bool = False) -> None:
        """Close it, or kill it as kill -9 does."""
        if self._process.poll() is None and not self.missing:
            self._process.kill() if kill else self.ask("close")
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            self._said = [*self._said[-20:], line]

    def _line(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._process.wait()
            tail = self._said[-1].strip() if self._said else "nothing"
            return {"missing": f"it ended, and said {tail!r}", "raised": "it ended", "ok": [], "right": []}
        said: dict[str, Any] = json.loads(line)
        return said


def peers(options: argparse.Namespace) -> dict[str, str]:
    """Which peers were named, and the Python of each."""
    return {name: python for name, (word, _) in PEERS.items() if (python := getattr(options, word))}


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Let a user name the environments of the peers, by option or by environment variable."""
    for word, what in PEERS.values():
        variable = f"KVPAGER_{word.upper()}_PYTHON"
        parser.add_argument(
            f"--{word}",
            metavar="PYTHON",
            default=os.environ.get(variable, ""),
            help=f"of an environment with {what}, or {variable}",
        )


def pieces(order: list[int], parts: int) -> Iterator[list[int]]:
    """Cut a list into about equal parts."""
    step = -(-len(order) // parts)
    for first in range(0, len(order), step):
        yield order[first : first + step]
