"""The arena on a GPU, without one: its bookkeeping over a stand-in for CUDA that computes at once and notes who waits.

What a GPU does with it is tested in tests/live/test_gpu.py, where there is one.
"""

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.errors import CapacityError, InvariantError
from kvpager.tiers.arena import Arena
from kvpager.tiers.device import DeviceArena
from kvpager.tiers.pinned import PinnedArena


class Stream:
    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def wait_stream(self, other):
        self.notes.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.notes.append(f"{self.name} waits for {event}")

    def record_event(self):
        self.notes.append(f"{self.name} marks")
        return "the mark"

    def synchronize(self):
        self.notes.append(f"the host waits for {self.name}")


class OnHost(DeviceArena):
    def _pinned(self, slots):
        return torch.empty(slots, self.memory.shape[1], dtype=torch.uint8)

    def _index(self, slots):
        return torch.from_numpy(slots.astype(np.int64))


def stand_in(patch):
    """Put the stand-in in the place of CUDA; return its notes of what waited for what."""
    found = []
    model, copies = Stream("model", found), Stream("copies", found)

    @contextlib.contextmanager
    def stream(which):
        found.append(f"on {which.name}")
        yield

    class Runtime:
        def cudaHostRegister(self, pointer, length, flags):
            found.append("pinned")
            return 0 if length < 1 << 20 else 2

        def cudaHostUnregister(self, pointer):
            found.append("unpinned")

    patch.setattr(torch.cuda, "Stream", lambda device: copies)
    patch.setattr(torch.cuda, "current_stream", lambda device: model)
    patch.setattr(torch.cuda, "stream", stream)
    patch.setattr(torch.cuda, "synchronize", lambda device: found.append("all waits"))
    patch.setattr(torch.cuda, "cudart", Runtime)
    patch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    patch.setattr(torch, "as_tensor", lambda window, device: torch.from_numpy(seen(window)))
    return found


def seen(window):
    """The memory that CUDA's array interface describes."""
    return np.asarray(type("Host", (), {"__array_interface__": window.__cuda_array_interface__})())


@pytest.fixture
def notes(monkeypatch):
    return stand_in(monkeypatch)


def numbered(rows, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, 64), np.uint8)


@given(st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_what_is_moved_arrives_whole_and_nothing_else_changes(count, seed):
    with pytest.MonkeyPatch.context() as patch:
        stand_in(patch)
        random, expected = np.random.default_rng(seed), numbered(40, seed)
        arena = OnHost(40, 64, "cpu")
        arena.write(np.arange(40, dtype=np.int32), expected)
        slots, others = (random.permutation(40)[:count].astype(np.int32) for _ in range(2))
        np.testing.assert_array_equal(arena.read(slots), expected[slots])
        _, memory, places = arena.outgoing(slots)
        np.testing.assert_array_equal(memory[places], expected[slots])
        host = arena.neighbour(50)
        there = host.take(count)
        arena.save(slots, host, there)
        arena.load(others, host, there)
        expected[others] = expected[slots]
        np.testing.assert_array_equal(arena.memory.numpy(), expected)
        _, memory, places = passage = arena.incoming(slots)
        memory[places] = new = numbered(count, seed + 1)
        good = random.random(count) < 0.7
        arena.arrived(passage, good)
        expected[slots[good]] = new[good]
        np.testing.assert_array_equal(arena.memory.numpy(), expected)
        host.close()
        arena.close()


def test_a_copy_in_waits_for_what_was_there_when_it_was_asked_for_and_no_longer(notes):
    arena = OnHost(8, 64, "cpu")
    slots = np.arange(3, dtype=np.int32)
    passage = arena.incoming(slots)
    assert notes == ["model marks"]
    arena.arrived(passage, slots >= 0)
    assert notes[1:] == ["copies waits for the mark", "on copies", "model waits for copies"], "the host waits for nothing"
    passage = arena.incoming(slots)
    arena.arrived(passage, slots < 0)
    assert not arena._incoming, "what could not be served is forgotten"


def test_the_host_waits_for_what_the_disk_is_to_get(notes):
    OnHost(8, 64, "cpu").outgoing(np.arange(3, dtype=np.int32))
    assert notes == ["copies waits for model", "on copies", "the host waits for copies"]


@pytest.mark.parametrize("way", ["save", "load"])
def test_copies_to_and_from_dram_keep_the_host_free(notes, way):
    arena = OnHost(8, 64, "cpu")
    host = arena.neighbour(4)
    notes.clear()
    getattr(arena, way)(np.arange(3, dtype=np.int32), host, np.arange(3, dtype=np.int32))
    assert notes == ["copies waits for model", "on copies", "model waits for copies"]


def test_host_memory_is_pinned_as_long_as_it_is_there(notes):
    host = OnHost(8, 64, "cpu").neighbour(4)
    assert isinstance(host, PinnedArena)
    host.close()
    assert notes == ["pinned", "unpinned"]
    host.close()
    assert notes == ["pinned", "unpinned"]


def test_memory_that_cannot_be_pinned_is_refused(notes):
    with pytest.raises(CapacityError, match=r"does not pin 1,048,576 bytes.*CUDA error 2.*ulimit -l"):
        OnHost(8, 1 << 16, "cpu").neighbour(16)


def test_other_memory_is_no_neighbour(notes):
    with pytest.raises(InvariantError, match="neighbours that it made"):
        OnHost(8, 64, "cpu").load(np.zeros(1, np.int32), Arena(4, 64), np.zeros(1, np.int32))


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 512), (4, 0)])
def test_an_impossible_arena_is_refused(slots, slot_bytes):
    with pytest.raises(CapacityError, match="holds nothing"):
        DeviceArena(slots, slot_bytes, "cuda:0")


def test_a_full_gpu_is_refused(notes, monkeypatch):
    def full(*shape, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "zeros", full)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    with pytest.raises(CapacityError, match=r"no memory on cuda:0 for an arena of 2,048 bytes, 1,000 are free"):
        DeviceArena(4, 512, "cuda:0")
