"""What a caller asks, and how it learns the answer: a request for several blocks, answered one by one.

A caller's memory is lent by its request for as long as a copy takes, and never again once the caller has given up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput
from kvpager.slab.files import PAGE_BYTES, Buffer

__all__ = ["Job", "Request", "bytes_of", "copy"]

Bytes = NDArray[np.uint8]
_LONG_BYTES = 256 << 10


class Request:
    """One call of a caller.

    Parameters
    ----------
    count : int
        Blocks that are to be answered for.
    lends : bool
        Whether the caller lends its memory to the disk itself: it is not the caller's before `settles` says so.

    Attributes
    ----------
    ok : bool [count]
        The answers; False till they are in.
    result : object
        Of calls about other things than blocks.
    since_s : float
        When it was made, by the monotonic clock.
    """

    def __init__(self, count: int, lends: bool = False) -> None:
        self.lends = lends
        self.ok = np.zeros(count, np.bool_)
        self.result: Any = None
        self.error: Exception | None = None
        self.lock = threading.Lock()
        self.given_up = False
        self._lent = 0
        self._back = threading.Condition(self.lock)
        self.since_s = time.monotonic()
        self._left = count
        self._answered = np.zeros(count, np.bool_)
        self._finished = threading.Event()
        if not count:
            self._finished.set()

    @property
    def done(self) -> bool:
        """Whether everything is answered."""
        return self._finished.is_set()

    @property
    def unanswered(self) -> list[int]:
        """Numbers of the blocks that are not answered for."""
        return np.flatnonzero(~self._answered).tolist()

    def answer(self, number: int, ok: bool) -> bool:
        """Answer for one block; False if nobody waits any longer."""
        return self.answer_some([number], ok)

    def answer_some(self, numbers: list[int], ok: bool) -> bool:
        """Answer for several blocks alike; False if nobody waits any longer."""
        with self.lock:
            if self.given_up:
                return False
            self.ok[numbers], self._answered[numbers] = ok, True
            self._left -= len(numbers)
            if not self._left:
                self._finished.set()
        return True

    def fail(self, error: Exception) -> int:
        """Answer everything with an error, which the caller gets; return how many blocks were not answered for."""
        with self.lock:
            left = 0 if self.given_up else self._left
            self.error, self.given_up = self.error or error, True
            self._finished.set()
        return left

    def wait(self, seconds: float) -> int:
        """Wait until all is answered, `seconds` at most; return how many were not, and give those up.

        Raises
        ------
        Exception
            What `fail` was given.
        """
        self.finishes(seconds)
        late = self.give_up()
        if self.error is not None:
            raise self.error
        return late

    def finishes(self, seconds: float) -> bool:
        """Wait until all is answered, `seconds` at most; return whether it is. Nothing is given up."""
        return self._finished.wait(min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def give_up(self) -> int:
        """Say that nobody waits any longer; return how many blocks were not answered for. Those stay False.

        Whoever copies to or from the caller's memory at this moment finishes first; nobody waits for a disk meanwhile: what
        the disk itself was lent may be in its hands longer, see `settles`.
        """
        with self.lock:
            late = 0 if self._finished.is_set() or self.given_up else self._left
            self.given_up = self.given_up or late > 0
            while self._lent and not self.lends:
                self._back.wait()
        if late:
            self._finished.set()
        return late

    def settles(self, seconds: float) -> bool:
        """Wait until nobody has the caller's memory, `seconds` at most; return whether that is so."""
        with self.lock:
            return self._back.wait_for(lambda: not self._lent, min(max(seconds, 0.0), threading.TIMEOUT_MAX))

    def lend(self) -> bool:
        """Say that the caller's memory is to be touched, till `give_back`; False if it is not to be had any longer."""
        with self.lock:
            if self.given_up:
                return False
            self._lent += 1
        return True

    def give_back(self) -> None:
        """Say that it is touched no longer."""
        with self.lock:
            self._lent -= 1
            if not self._lent:
                self._back.notify_all()


class Job:
    """One block of a request.

    Parameters
    ----------
    request : Request
        Whose.
    number : int
        Which of its blocks.
    digest : bytes
        The block's name.
    memory : uint8, optional
        The caller's, to read into or to write from.
    """

    __slots__ = ("digest", "memory", "number", "request")

    def __init__(self, request: Request, number: int, digest: bytes, memory: Bytes) -> None:
        self.request, self.number, self.digest, self.memory = request, number, digest, memory

    def answer(self, ok: bool) -> bool:
        """Answer for the block; False if nobody waits any longer."""
        return self.request.answer(self.number, ok)

    def lend(self, size: int) -> Buffer | None:
        """The caller's memory for the disk, till the request has it back; None if it is not `size` bytes of whole pages."""
        memory, request = self.memory, self.request
        if not request.lends or len(memory) != size or memory.__array_interface__["data"][0] % PAGE_BYTES or not request.lend():
            return None
        return memory.data

    def with_memory(self, do: Callable[[Bytes], None]) -> bool:
        """Let `do` have the caller's memory; False if it is not to be had any longer."""
        if not self.request.lend():
            return False
        try:
            do(self.memory)
        finally:
            self.request.give_back()
        return True


def copy(to: Bytes, what: Bytes) -> None:
    """Copy bytes. NumPy lets other threads run meanwhile, which costs more than a short copy takes."""
    if len(to) < _LONG_BYTES:
        to.data[:] = what.data
    else:
        to[:] = what


def bytes_of(buffer: Any, *, writable: bool) -> Bytes:
    """Return the memory of `buffer` as uint8 [bytes], not copied.

    Raises
    ------
    BadInput
        If it is no contiguous memory, or may not be written.
    """
    try:
        view = memoryview(buffer)
    except TypeError as error:
        raise BadInput(f"a {type(buffer).__name__} is no buffer: give bytes, a bytearray or a NumPy array") from error
    if not view.c_contiguous or (writable and view.readonly):
        raise BadInput(f"a buffer of {view.nbytes:,} bytes is {'read-only' if view.c_contiguous else 'not contiguous'}: copy it")
    return np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.zeros(0, np.uint8)
