"""``kvpager store``: what it says of a store that is sound, damaged, half needed or none."""

import json
import subprocess

import numpy as np
import pytest
from tests.stores import LAYERS, Rig, payload_of

from kvpager.slab import SlabStore


@pytest.fixture
def filled(here):
    """A store of three slabs in ``s``: block 1 belongs to session a, blocks 2 and 3 to b, 4 to 6 to nobody."""
    rig = Rig(here / "s")
    keys = [1 + number // LAYERS for number in range(18)]
    rig.put(keys, [number % LAYERS for number in range(18)], payload_of(18))
    rig.store.close()
    (here / "s/sessions").mkdir()
    (here / "s/sessions/a.json").write_text(json.dumps({"tokens": 4, "keys": [1]}))
    (here / "s/sessions/b.json").write_text(json.dumps({"tokens": [5, 6, 7], "keys": [2, 3]}))
    return rig


def flip(path, byte):
    content = bytearray(path.read_bytes())
    content[byte] ^= 4
    path.write_bytes(content)


def test_info_shows_size_and_sessions(filled, well):
    found = well("store", "info", "s", "--json").document
    record = filled.shape.payload_bytes
    assert (found["blocks"], found["records"], found["used_bytes"]) == (6, 18, 18 * record)
    assert found["disk_bytes"] == 3 * (64 << 10)
    assert found["unneeded_bytes"] == 9 * record
    assert found["sessions"] == [
        {"id": "a", "tokens": 4, "blocks": 1, "bytes": 3 * record},
        {"id": "b", "tokens": 3, "blocks": 2, "bytes": 6 * record},
    ]
    assert found["shape"]["fingerprint"] == "f"
    out = well("store", "info", "s").out
    for needle in ("made for       f\n", "6 blocks, 18 records", "3 slabs", "b  3 tokens, 2 blocks"):
        assert needle in out


def test_verify_of_a_sound_store(filled, well):
    found = well("store", "verify", "s", "--json").document
    assert found == {"sound": True, "records": 18, "notices": [], "damage": []}
    assert "all are as they were written" in well("store", "verify", "s").out


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: flip(s / "slab-00001.kv", 100), ["slab-00001.kv: superblock"]),
        (lambda s: flip(s / "slab-00001.kv", 4096 + 9), ["slab-00001.kv, place 0: header, key 0x3, layer 1"]),
        (lambda s: flip(s / "slab-00000.kv", 2 * 4096 + 600), ["slab-00000.kv, place 0: part 1, key 0x1, layer 0"]),
        (lambda s: (s / "slab-00002.kv").unlink(), ["slab-00002.kv, place 0: missing"]),
        (lambda s: (s / "slab-00000.kv").unlink(), ["session a: missing, key 0x1, layer 0", "session b: missing"]),
        (lambda s: (s / "sessions/c.json").write_text('{"keys": [77]}'), ["session c: missing, key 0x4d, layer 2"]),
    ],
)
def test_verify_of_a_damaged_store_fails(filled, kvpager, here, damage, words):
    damage(here / "s")
    answer = kvpager("store", "verify", "s")
    assert (answer.code, answer.err) == (1, "")
    for word in words:
        assert word in answer.out
    assert "damaged or missing" in answer.out
    answer = kvpager("store", "verify", "s", "--json")
    if not words[0].startswith("slab-00002"):  # nobody needs what was in that slab, and it was said once
        assert answer.code == 1
        assert not answer.document["sound"]
        assert {"where", "what", "key", "layer"} == set(answer.document["damage"][0])


def test_gc_keeps_what_sessions_need(filled, well, here):
    found = well("store", "gc", "s", "--json").document
    assert (found["records"], found["sessions"]) == (9, 2)
    assert found["freed_bytes"] == 9 * filled.shape.record_bytes
    assert found["given_back_bytes"] == 64 << 10
    assert len(list((here / "s").glob("slab-*"))) == 2
    assert well("store", "verify", "s", "--json").document["sound"]
    filled.open()
    keys = np.arange(1, 7, dtype=np.uint64)
    assert filled.store.holds(keys, np.zeros(6, np.int32)).tolist() == [True] * 3 + [False] * 3
    filled.store.close()
    (here / "s/sessions/b.json").unlink()
    assert "3 records of 1 sessions kept" in well("store", "gc", "s").out


def test_bad_input_is_refused(filled, refused, here):
    refused("store", "look", "s", words=("'look'", "info, verify, gc"))
    refused("store", "info", "nowhere", words=("no store in 'nowhere'",))
    (here / "empty").mkdir()
    refused("store", "gc", "empty", words=("no store in 'empty'",))
    (here / "s/sessions/c.json").write_text('{"tokens": 1}')
    for action in ("info", "verify", "gc"):
        refused("store", action, "s", words=("c.json", "list its keys"))


def test_a_store_in_use_is_refused(filled, here, entry):
    filled.open()
    done = subprocess.run(
        [*entry, "store", "verify", "s"],
        cwd=here, capture_output=True, text=True, check=False,
    )  # fmt: skip
    filled.store.close()
    assert (done.returncode, done.stdout) == (2, "")
    assert "in use by another process" in done.stderr


def test_a_store_that_does_not_say_what_it_is(filled, refused, here):
    for number in range(3):
        flip(here / f"s/slab-{number:05}.kv", 200)
    filled.open().close()  # the run that made it knows; and the index does
    (here / "s/index.sqlite").unlink()
    refused("store", "info", "s", words=("says what it is",))
    with SlabStore(here / "s", **filled.settings) as store:
        assert store.records == 18
