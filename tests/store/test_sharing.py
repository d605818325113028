"""Several processes on one store: one owns it and serves the others; when it ends, another takes its place."""

import os
import socket
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from tests.store.blocks import block_of, conserved, read
from tests.stores import GatedFiles

from kvpager.errors import BadInput, StoreError
from kvpager.store.client import Client
from kvpager.store.server import Owner

SCRIPT = """
import sys
from kvpager import store as block_store
from tests.store.blocks import block_of, read
store = block_store.open(sys.argv[1], "8MiB", tenant=b"t")
print("open", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "put":
        print(store.put(rest[0].encode(), block_of(int(rest[1]), int(rest[2]))), flush=True)
    elif word == "get":
        found = read(store, rest[0].encode())
        print(found is not None and found == block_of(int(rest[1]), int(rest[2])), flush=True)
    elif word == "who":
        print(type(store._backend).__name__, flush=True)
store.close()
"""


class Other:
    """Another process with the store open."""

    def __init__(self, path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "open\n"

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, *, kill=False):
        self.process.kill() if kill else self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        if kill:
            self.process.stdin.close()


def test_the_second_one_has_the_same_store(made):
    owner, client = made(tenant=b"t"), made(tenant=b"t")
    assert (type(owner._backend), type(client._backend)) == (Owner, Client)
    payloads = {b"%d" % number: block_of(3000 * number, number) for number in range(8)}
    assert client.put_many(list(payloads), list(payloads.values()), [None, *list(payloads)[:-1]]).all()
    assert all(read(owner, key) == payload for key, payload in payloads.items())
    buffers = [bytearray(len(payload)) for payload in payloads.values()]
    ok = client.get_many([*payloads, b"absent"], [*buffers, bytearray(4)])
    assert ok.tolist() == [True] * 8 + [False]
    assert buffers == list(payloads.values())
    assert client.contains_many([b"3", b"absent"]).tolist() == [True, False]
    assert client.scan() == owner.scan()
    assert client.pin(b"3", 5)
    assert client.delete(b"5")
    assert not client.delete(b"5")
    assert not owner.contains(b"5")
    assert client.flush()
    assert client.stats() == owner.stats()
    with pytest.raises(BadInput, match="9,000 bytes"):
        client.get(b"3", bytearray(1))
    assert read(client.of_tenant(b"u"), b"3") is None
    ticket = client.submit_get([b"4"], [buffers[4]])
    assert [ok.tolist() for _, ok in client.wait([ticket], 30)] == [[True]]
    assert conserved(owner)


def test_a_client_goes_on_when_the_owner_closes(made):
    owner, first, second = made(tenant=b"t"), made(tenant=b"t"), made(tenant=b"t")
    assert owner.put(b"k", b"payload")
    owner.close()
    assert read(second, b"k") == b"payload"
    assert second._backend._owner is not None
    assert first.put(b"from the other", b"x")
    assert first._backend._owner is None
    assert read(second, b"from the other") == b"x"
    second.close()
    assert read(first, b"from the other") == b"x"


def test_processes_share_what_each_wrote_and_survive_each_other(tmp_path):
    path = tmp_path / "store"
    owner, client = Other(path), Other(path)
    assert (owner.say("who"), client.say("who")) == ("Owner", "Client")
    assert client.say("put", "a", 70_000, 1) == "True"
    assert owner.say("put", "b", 100, 2) == "True"
    assert owner.say("get", "a", 70_000, 1) == "True"
    owner.end(kill=True)
    assert client.say("get", "b", 100, 2) == "True"
    assert client.say("put", "c", 100, 3) == "True"
    late = Other(path)
    assert late.say("get", "c", 100, 3) == "True"
    client.end(kill=True)
    for key, length, seed in (("a", 70_000, 1), ("b", 100, 2), ("c", 100, 3)):
        assert late.say("get", key, length, seed) == "True"
    late.end()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cycles", [4, pytest.param(100, marks=pytest.mark.long)])
def test_owners_and_clients_killed_at_random(tmp_path, cycles):
    """Three processes; one is killed each time, whichever it is: what was acknowledged stays."""
    rng, path, held = np.random.default_rng(cycles), tmp_path / "store", {}
    others = [Other(path) for _ in range(3)]
    for cycle in range(cycles):
        for number in range(6):
            key, seed = f"k{rng.integers(10)}", 100 * cycle + number
            assert others[rng.integers(3)].say("put", key, 2000, seed) == "True"
            held[key] = seed
        victim = int(rng.integers(3))
        others[victim].end(kill=True)
        others[victim] = others[(victim + 1) % 3]
        for key, seed in held.items():
            assert others[rng.integers(3)].say("get", key, 2000, seed) == "True"
        others[victim] = Other(path)
    for other in others:
        other.end()


READER = """
import sys
import numpy as np
from kvpager import store as block_store
from tests.store.blocks import block_of
rng = np.random.default_rng(int(sys.argv[2]))
store = block_store.open(sys.argv[1])
print(type(store._backend).__name__, flush=True)
while True:
    numbers = rng.integers(0, 30, 8)
    buffers = [bytearray(20_000) for _ in numbers]
    ok = store.get_many([b"%d" % number for number in numbers], buffers)
    right = [buffer == block_of(20_000, int(number)) for number, buffer in zip(numbers, buffers)]
    print("ok" if ok.all() and all(right) else f"wrong: {numbers} {ok} {right}", flush=True)
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cycles", [5, pytest.param(200, marks=pytest.mark.long)])
def test_readers_killed_at_random(made, tmp_path, cycles):
    """In the middle of reads: of a client, whose owner goes on and keeps nothing of it; of an owner, whose blocks all stay."""
    rng, store = np.random.default_rng(cycles), made(capacity="4MiB")
    assert store.put_many([b"%d" % number for number in range(30)], [block_of(20_000, number) for number in range(30)]).all()
    left = []
    for cycle in range(cycles):
        owns = cycle % 2
        if owns:
            store.close()
        child = subprocess.Popen(
            [sys.executable, "-c", READER, str(tmp_path / "store"), str(cycle)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == ("Owner\n" if owns else "Client\n")
        time.sleep(float(rng.random()) * 0.3)
        child.kill()
        assert set(child.stdout.read().split("\n")[:-1]) <= {"ok"}
        child.wait()
        child.stdout.close()
        if owns:
            store = made()
        assert all(read(store, b"%d" % number) == block_of(20_000, number) for number in range(30))
        assert store.put(b"after", b"%d" % cycle)
        assert conserved(store)
        left.append(len(os.listdir("/proc/self/fd")))
    assert max(left) <= left[1] + 2  # a connection that has just ended may still be there


def test_two_writers_of_one_key(made):
    """One of the two contents, whole, in the end; never a mixture."""
    stores = [made(capacity="4MiB"), made(), made()]
    contents = [bytes([number]) * 50_000 for number in range(3)]
    threads = [
        threading.Thread(target=lambda store=store, payload=payload: [store.put(b"k", payload) for _ in range(10)])
        for store, payload in zip(stores, contents, strict=True)
    ]
    for thread in threads:
        thread.start()
    seen = [read(stores[number % 3], b"k") for number in range(10)]
    for thread in threads:
        thread.join()
    assert set(seen) <= {None, *contents}
    assert len({read(store, b"k") for store in stores}) == 1


def test_a_client_waits_no_longer_than_agreed(made):
    files = GatedFiles()
    owner = made(files=files)
    client = made(deadline_s=10)
    assert client.put(b"k", b"payload")
    files.read_gate.clear()
    buffer, begun = bytearray(7), time.monotonic()
    assert not client.get(b"k", buffer, deadline_s=0.3)
    assert time.monotonic() - begun < 5
    files.read_gate.set()
    time.sleep(0.3)
    assert buffer == bytearray(7)
    assert read(owner, b"k") is not None


def test_an_owner_that_does_not_serve_is_told_of_in_time(tmp_path, made):
    store = made()
    store._backend._door.shutdown(socket.SHUT_RDWR)
    begun = time.monotonic()
    with pytest.raises(StoreError, match="does not answer"):
        made(deadline_s=0.3)
    assert time.monotonic() - begun < 5


def test_noise_on_the_socket_harms_nobody(made, tmp_path, monkeypatch):
    store = made()
    monkeypatch.chdir(tmp_path / "store")
    for noise in (b"GET / HTTP/1.1\r\n\r\n" * 3, b"\2\0\0\0\0\0\0\0\0\0\0\0[]", b"\4\0\0\0\0\0\0\0\0\0\0\0null", b""):
        link = socket.socket(socket.AF_UNIX)
        link.connect("socket")
        link.sendall(noise)
        link.close()
    assert store.put(b"k", b"x")
    assert read(made(), b"k") == b"x"


def test_a_long_path(made):
    name = "/".join(["n" * 60] * 3)
    owner, client = made(name), made(name)
    assert owner.put(b"k", b"x")
    assert read(client, b"k") == b"x"


def test_a_forked_child_neither_uses_nor_keeps_the_store(made):
    store = made()
    assert store.put(b"k", b"x")
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are threads is the point
        child = os.fork()
    if not child:
        try:
            store.contains(b"k")
        except StoreError as error:
            os.write(write_end, str(error).encode())
        time.sleep(60)
        os._exit(0)
    assert b"forked" in os.read(read_end, 1000)
    os.close(read_end)
    os.close(write_end)
    store.close()
    try:
        assert read(made(), b"k") == b"x"  # though the child lives
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
