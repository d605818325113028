"""A small store and a model of it."""

import numpy as np
import pytest

from kvpager.slab import SlabStore

PARTS, PART_BYTES, LAYERS = 2, 512, 3


def memory_of(slots, part_bytes=PART_BYTES, seed=0):
    """Random uint8 [slots, part_bytes]."""
    return np.random.default_rng(seed).integers(0, 256, (slots, part_bytes), np.uint8)


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


@pytest.fixture
def rig(tmp_path):
    """Make rigs in the test's folder; all are closed at the end."""
    made = []

    def make(name="store", **settings):
        made.append(Rig(tmp_path / name, **settings))
        return made[-1]

    yield make
    for one in made:
        one.store.close()
