"""``kvpager store`` of a block store: closed, damaged, owned by another process, or served by this command."""

import signal
import socket
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from kvpager import store as block_store


@pytest.fixture
def filled(here):
    """A block store in ``b`` of two tenants and two sizes."""
    with block_store.open(here / "b", "4MiB") as store:
        other = store.of_tenant(b"other")
        for number in range(5):
            assert store.put(b"%d" % number, bytes([number]) * 9000)
        assert other.put(b"0", bytes(100))
    return here / "b"


def test_info(filled, well):
    found = well("store", "info", "b", "--json").document
    assert (found["kind"], found["blocks"], found["capacity_bytes"]) == ("blocks", 6, 4 << 20)
    assert found["disk_bytes"] == sum(file.stat().st_size for file in filled.rglob("slab-*"))
    out = well("store", "info", "b").out
    assert "6 blocks" in out
    assert "tenants        2" in out


def test_verify(filled, well, kvpager):
    assert well("store", "verify", "b", "--json").document == {"sound": True, "records": 6, "notices": [], "damage": []}
    slab = filled / "size-00012288" / "slab-00000.kv"
    content = bytearray(slab.read_bytes())
    content[4096 + 4096 + 17] ^= 1
    slab.write_bytes(content)
    answer = kvpager("store", "verify", "b")
    assert answer.code == 1
    assert "size-00012288/slab-00000.kv, place 0: part 0" in answer.out


def test_gc(filled, well):
    (filled / "size-00004096").rename(filled / "size-00012289")  # no size of ours
    found = well("store", "gc", "b", "--json").document
    assert found["records"] == 5
    assert found["given_back_bytes"] > 60_000
    assert not list((filled / "set-aside").iterdir())
    assert "5 blocks kept" in well("store", "gc", "b").out


def test_top_and_a_store_in_use(filled, well):
    with block_store.open(filled) as store:
        for _ in range(3):
            assert store.get(b"2", np.zeros(9000, np.uint8))
        found = well("store", "top", "b", "--json").document
        assert found["blocks"][0] == {"digest": store.digest(b"2").hex(), "reads": 3, "bytes": 9000}
    assert [one["bytes"] for one in found["tenants"]] == [45_000, 100]
    assert [one["bytes"] for one in found["namespaces"]] == [45_100]
    assert "blocks, by reads" in well("store", "top", "b").out


def test_what_cannot_be_told(refused, here, filled):
    refused("store", "look", "b", words=("'look'", "info, verify, gc, top"))
    (here / "empty").mkdir()
    refused("store", "top", "empty", words=("no block store",))
    refused("store", "top", "nowhere", words=("no block store",))


def started(entry, *arguments):
    """``kvpager store serve`` as a process of its own, and where its metrics are."""
    process = subprocess.Popen([*entry, "store", "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    line = process.stdout.readline().decode()
    assert line.startswith("serving 'b', metrics at http://127.0.0.1:"), process.communicate()[1]
    return process, line.split()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_keeps_the_store_open_and_gives_metrics_out(filled, entry, well, number):
    """This process is its client, then it ends cleanly at a signal."""
    process, url = started(entry, "b", "--metrics", "0", "--log", "events")
    try:
        with block_store.open(filled) as store:
            assert store.get(b"2", np.zeros(9000, np.uint8))
        with urllib.request.urlopen(url, timeout=20) as answer:
            text = answer.read().decode()
        assert 'kvpager_store_hits_total{tier="disk"} 1.0' in text
        assert well("store", "info", "b", "--json").document["hits"] == 1
        assert b'"event": "hit"' in (filled.parent / "events").read_bytes()
    finally:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not (filled / "socket").exists()


def test_serve_refuses_in_one_line(filled, refused, here, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as door:
        refused("store", "serve", "b", "--metrics", door.getsockname()[1], words=("give another port",))
    refused("store", "serve", "b", "--metrics", 99_999, words=("--metrics",))
    refused("store", "serve", "b", "--log", "no/where", words=("no/where", "another file"))
    refused("store", "info", "b", "--metrics", 1, words=("kvpager store serve",))
    refused("store", "serve", "nowhere", "--metrics", 0, words=("no block store",))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    refused("store", "serve", "b", "--metrics", 0, words=("prometheus_client", "kvpager[metrics]"))


def test_help_shows_all_of_it(well):
    out = well("store", "--help").out
    for needle in ("info|verify|gc|top|serve", "--metrics", "--log", "Example: kvpager store verify", "127.0.0.1"):
        assert needle in " ".join(out.split())
