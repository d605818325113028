"""Small stores, and disks that lose, refuse or wait."""

import errno
import os
import threading
import time

import numpy as np

from kvpager.slab import SlabStore
from kvpager.slab.files import Files

PARTS, PART_BYTES, LAYERS = 2, 512, 3


def payload_of(records, parts=PARTS, part_bytes=PART_BYTES, seed=0):
    """Random uint8 [records, parts, part_bytes]."""
    return np.random.default_rng(seed).integers(0, 256, (records, parts, part_bytes), np.uint8)


class Rig:
    """A store and shorter words for what tests do with it."""

    def __init__(self, path, **settings):
        self.path = path
        self.settings = {
            "parts": PARTS, "part_bytes": PART_BYTES, "layers": LAYERS, "fingerprint": "f", "slab_bytes": 64 << 10,
            "capacity_bytes": 4 * (64 << 10), **settings,
        }  # fmt: skip
        self.open()

    def open(self):
        self.store = SlabStore(self.path, **self.settings)
        return self.store

    def reopen(self):
        self.store.close()
        return self.open()

    @property
    def shape(self):
        return self.store.shape

    def put(self, keys, layers, payload, deadline_s=30.0):
        """Write records, payload uint8 [records, parts, part_bytes]; return which are acknowledged."""
        memory = np.ascontiguousarray(payload).reshape(-1, self.shape.part_bytes)
        slots = np.arange(len(memory), dtype=np.int32).reshape(-1, self.shape.parts)
        ticket = self.store.write(np.array(keys, np.uint64), np.array(layers, np.int32), memory, slots)
        [(number, ok)] = self.store.wait([ticket], deadline_s)
        assert number == ticket
        return ok

    def get(self, keys, layers, deadline_s=30.0):
        """Read whole records; return ok [records, parts] and the payload."""
        parts = self.shape.parts
        memory = np.full((len(keys) * parts, self.shape.part_bytes), 0xEE, np.uint8)
        part = np.tile(np.arange(parts, dtype=np.int32), len(keys))
        ticket = self.store.read(
            np.repeat(np.array(keys, np.uint64), parts), np.repeat(np.array(layers, np.int32), parts), part, memory,
            np.arange(len(memory), dtype=np.int32),
        )  # fmt: skip
        [(_, ok)] = self.store.wait([ticket], deadline_s)
        return ok.reshape(-1, parts), memory.reshape(-1, parts, self.shape.part_bytes)

    def crash(self):
        """Let the store go as a killed process would: nothing more is synced, no file is written."""
        self.store._pool.close()
        self.store._contents.close()
        self.store._closed = True


class LosingFiles(Files):
    """A disk that keeps what was synced, and of the rest a random selection of pages and names, when `power_cut` comes."""

    def __init__(self):
        self.paths, self.before, self.created, self.removed = {}, {}, set(), {}

    def open(self, path, flags):
        new = not path.exists()
        fd = super().open(path, flags)
        self.paths[fd] = path
        if new:
            self.created.add(path)
        return fd

    def pwritev(self, fd, buffers, offset):
        path, length = self.paths[fd], sum(map(len, buffers))
        content = path.read_bytes()
        for page in range(offset // 4096, -(-(offset + length) // 4096)):
            self.before.setdefault((path, page), content[page * 4096 : (page + 1) * 4096])
        return super().pwritev(fd, buffers, offset)

    def sync(self, fd):
        super().sync(fd)
        self.before = {key: old for key, old in self.before.items() if key[0] != self.paths[fd]}

    def sync_folder(self, path):
        super().sync_folder(path)
        self.created.clear()
        self.removed.clear()

    def remove(self, path):
        if path.exists() and path not in self.created:
            self.removed[path] = path.read_bytes()
        super().remove(path)

    def power_cut(self, rng):
        """Choose what is lost."""
        for (path, page), old in self.before.items():
            if rng.random() < 0.5 and path.exists():
                with open(path, "r+b") as file:
                    file.seek(page * 4096)
                    file.write(old)
        for path in self.created:
            if rng.random() < 0.5:
                path.unlink(missing_ok=True)
        for path, content in self.removed.items():
            if rng.random() < 0.5:
                path.write_bytes(content)


class RefusingFiles(Files):
    """A disk that refuses to `allocate`, `write`, `read`, `open`, `sync` or `remove`, with the error number that is set."""

    def __init__(self, **refuse):
        self.refuse = refuse

    def _may(self, what):
        if what in self.refuse:
            raise OSError(self.refuse[what], os.strerror(self.refuse[what]))

    def allocate(self, fd, length):
        self._may("allocate")
        super().allocate(fd, length)

    def open(self, path, flags):
        if flags & os.O_CREAT:
            self._may("open")
        return super().open(path, flags)

    def pwritev(self, fd, buffers, offset):
        self._may("write")
        return super().pwritev(fd, buffers, offset)

    def preadv(self, fd, buffers, offset):
        self._may("read")
        return super().preadv(fd, buffers, offset)

    def sync(self, fd):
        self._may("sync")
        super().sync(fd)

    def remove(self, path):
        self._may("remove")
        super().remove(path)


class GatedFiles(Files):
    """A disk whose writes wait until `gate` is set, and its reads until `read_gate` is."""

    def __init__(self):
        self.gate, self.read_gate = threading.Event(), threading.Event()
        self.open_gates()

    def open_gates(self):
        """Let everything through."""
        self.gate.set()
        self.read_gate.set()

    def preadv(self, fd, buffers, offset):
        self.read_gate.wait()
        return super().preadv(fd, buffers, offset)

    def pwritev(self, fd, buffers, offset):
        self.gate.wait()
        return super().pwritev(fd, buffers, offset)


class WaywardFiles(Files):
    """A disk whose reads and writes fail, move less than asked, or take up to `delay_s` seconds (all of it if nothing else)."""

    def __init__(self, seed=0, errors=0.0, short=0.0, delay_s=0.0):
        self.errors, self.short, self.delay_s, self.failed = errors, short, delay_s, 0
        self._random, self._lock = np.random.default_rng(seed), threading.Lock()

    def _moved(self, call, fd, buffers, offset):
        with self._lock:
            fate, part, wait = self._random.random(3)
            self.failed += fate < self.errors
        time.sleep(self.delay_s * (wait if self.errors or self.short else 1))
        if fate < self.errors:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if fate < self.errors + self.short and len(buffers[0]) > 4096:
            buffers = [buffers[0][: max(1, int(part * len(buffers[0])) // 4096) * 4096]]
        return call(fd, buffers, offset)

    def preadv(self, fd, buffers, offset):
        return self._moved(super().preadv, fd, buffers, offset)

    def pwritev(self, fd, buffers, offset):
        return self._moved(super().pwritev, fd, buffers, offset)
