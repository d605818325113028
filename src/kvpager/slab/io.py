"""The I/O threads. Reads go before writes; a checksum is made or judged in the thread that moves the bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from kvpager.slab.memory import private_memory

__all__ = ["Pool", "Ticket", "Workers"]


_HUGE_PAGE_BYTES = 2 << 20


class Ticket:
    """One request, cut into jobs that the threads work off in any order.

    Parameters
    ----------
    number : int
        By which the caller knows it.
    answers : int
        Records or units to be answered for; all bad until a job says otherwise.
    """

    urgent = False
    """Whether it goes before those that are not."""
    queued_bytes = 0
    """What it counts for in the bounded queue."""

    def __init__(self, number: int, answers: int) -> None:
        self.number = number
        self.ok = np.zeros(answers, np.bool_)
        self.jobs = self.left = 0
        self.errors: list[OSError] = []
        self.failure: Exception | None = None

    def run(self, job: int, scratch: NDArray[np.uint8]) -> None:
        """Do job number `job`; `scratch` is the thread's own, page-aligned."""
        raise NotImplementedError


class Workers:
    """Threads that work off the tickets of one pool or of several.

    Parameters
    ----------
    threads : int
        How many.
    scratch_bytes : int
        Of each thread's scratch memory: enough for the neediest pool.

    Attributes
    ----------
    count : int
        How many threads.
    """

    def __init__(self, threads: int, scratch_bytes: int) -> None:
        self.count = threads
        self._waiting = threading.Condition()
        self._first: deque[tuple[Pool, Ticket, int]] = deque()
        self._then: deque[tuple[Pool, Ticket, int]] = deque()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, args=(scratch_bytes,), name=f"kvpager-store-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def take_on(self, pool: Pool, ticket: Ticket) -> None:
        """Queue all jobs of `ticket`, which is `pool`'s."""
        with self._waiting:
            (self._first if ticket.urgent else self._then).extend((pool, ticket, job) for job in range(ticket.jobs))
            self._waiting.notify(min(ticket.jobs, len(self._threads)))

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        with self._waiting:
            self._closed = True
            self._waiting.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, scratch_bytes: int) -> None:
        scratch = np.frombuffer(private_memory(-(-scratch_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES), np.uint8)
        while True:
            with self._waiting:
                while not (self._first or self._then or self._closed):
                    self._waiting.wait()
                if not (self._first or self._then):
                    return
                pool, ticket, job = (self._first or self._then).popleft()
            try:
                ticket.run(job, scratch)
            except OSError as error:
                ticket.errors.append(error)
            except Exception as failure:  # a bug: it is raised where the answer is asked for, not lost with the thread
                ticket.failure = failure
            pool.job_done(ticket)


class Pool:
    """One store's tickets, and the threads that work them off.

    Parameters
    ----------
    threads : int
        How many.
    scratch_bytes : int
        Of each thread's scratch memory.
    workers : Workers, optional
        Threads that work for other stores, too; without, the pool has its own.
    wake : callable, optional
        Called by a thread that finished a ticket.

    Attributes
    ----------
    queued_bytes : int
        Of tickets handed in and not finished.
    """

    def __init__(
        self, threads: int, scratch_bytes: int, workers: Workers | None = None, wake: Callable[[], None] | None = None
    ) -> None:
        self._finished = threading.Condition()
        self._done: list[Ticket] = []
        self._open: set[int] = set()
        self.queued_bytes = 0
        self._wake, self._shared = wake, workers is not None
        self._workers = workers or Workers(threads, scratch_bytes)

    def submit(self, ticket: Ticket) -> None:
        """Queue all jobs of `ticket`."""
        with self._finished:
            ticket.left = ticket.jobs
            if not ticket.jobs:
                self._done.append(ticket)
                self._finished.notify_all()
            else:
                self.queued_bytes += ticket.queued_bytes
                self._open.add(ticket.number)
        if ticket.jobs:
            self._workers.take_on(self, ticket)
        elif self._wake is not None:
            self._wake()

    def job_done(self, ticket: Ticket) -> None:
        """Count one job of `ticket` as done."""
        with self._finished:
            ticket.left -= 1
            if ticket.left:
                return
            self.queued_bytes -= ticket.queued_bytes
            self._open.discard(ticket.number)
            self._done.append(ticket)
            self._finished.notify_all()
        if self._wake is not None:
            self._wake()

    def oldest(self) -> int | None:
        """Number of the oldest ticket that is not finished."""
        with self._finished:
            return min(self._open, default=None)

    def collect(self) -> list[Ticket]:
        """Return the tickets that finished since the last call."""
        with self._finished:
            done, self._done = self._done, []
        return done

    def wait(self, tickets: Collection[int] | None, deadline: float) -> None:
        """Wait until one of `tickets` is finished and not collected (None: until all that are open are), or `deadline`."""

        def ready() -> bool:
            if tickets is None:
                return not self._open
            return any(ticket.number in tickets for ticket in self._done)

        with self._finished:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._finished.wait(min(left, threading.TIMEOUT_MAX))

    def close(self) -> None:
        """Finish what is queued, and end the threads that are the pool's own."""
        if not self._shared:
            self._workers.close()
            return
        self.wait(None, float("inf"))
