"""What goes wrong under a running cache: nothing wrong is served, and what can go on goes on."""

import errno
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.live.families import Pair, adds_up, ends_clean, generate, ids_of, live, settle, tiny_once
from tests.stores import RefusingFiles

from kvpager.core import NVME
from kvpager.errors import BlockLostError, StorageFull, StoreError
from kvpager.live import store as live_store
from kvpager.slab.store import SlabStore


@pytest.fixture
def disk(monkeypatch):
    """The disk under every live store that is opened, which can be told to refuse."""
    files = RefusingFiles()
    monkeypatch.setattr(live_store, "SlabStore", functools.partial(SlabStore, files=files))
    return files


def test_a_full_disk_stops_nothing_while_hbm_holds_all(disk, tmp_path):
    with live(tiny_once("llama"), tmp_path, context=150, hbm="100%", disk_bytes=1 << 20) as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 30))
        disk.refuse = {"allocate": errno.ENOSPC, "write": errno.ENOSPC}
        for step in range(12):
            pair.forward(ids_of(1, 8, step))
        assert isinstance(opened.store.driver.full, StorageFull) or opened.store.slabs.stats.io_errors
        disk.refuse = {}
        pair.forward(ids_of(1, 1))
        ends_clean(opened)


def test_a_full_disk_is_one_clear_error_when_hbm_is_full_too(disk, tmp_path):
    with live(tiny_once("llama"), tmp_path, context=600, hbm="30%", disk_bytes=256 << 10) as opened:
        pair = Pair(opened)
        tokens = 0
        with pytest.raises(StorageFull, match=r"full|room"):  # noqa: PT012 - which step it is depends on sizes
            for step in range(100):
                pair.forward(ids_of(1, 7, step))
                tokens += 7
        assert tokens > 60
        assert pair.cache.tokens == tokens, "at the last full step"
        pair.mask = pair.mask[:, :tokens]
        pair.crop(40)
        for step in range(8):  # what was cropped made room
            pair.forward(ids_of(1, 1, step))
        ends_clean(opened)


def slabs(folder):
    return sorted(folder.glob("slab-*.kv"))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_damaged_block_is_named_and_never_served(family, tmp_path):
    model = tiny_once(family)
    with live(model, tmp_path, context=400, hbm="12%", disk_bytes=8 << 20) as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 200))
        pair.forward(ids_of(1, 1))
        settle(opened)
        assert slabs(tmp_path), "the test finds the slab files"
        for slab in slabs(tmp_path):
            content = bytearray(slab.read_bytes())
            for at in range(4096 + 600, len(content), 256):
                content[at] ^= 0x40
            with open(slab, "r+b") as file:  # the same file, which the store has open
                file.write(content)
        with pytest.raises(
            BlockLostError, match=r"block \d+ of layer \d+ of session 'test' has no good copy in tier 3: prefill"
        ) as lost:
            pair.forward(ids_of(1, 1, 1))
        error = lost.value
        assert error.session == "test"
        assert error.tier == NVME
        assert error.layer in opened.store.layer_numbers
        assert 0 <= error.block < 50
        assert opened.store.slabs.stats.checksum_failures > 0
        assert pair.cache.tokens == 201
        pair.mask = pair.mask[:, :201]
        with torch.inference_mode(), pytest.raises(BlockLostError, match="in any tier"):  # and it stays so
            model(ids_of(1, 1, 1), cache=pair.cache)
        opened.store.pager.check()
        if family == "llama":  # the sliding layers of others keep too little to go back so far
            with pytest.raises(BlockLostError):
                pair.cache.crop(-(201 - 4 * error.block - 1))  # the middle of what is lost
            assert pair.cache.tokens == 201
            pair.crop(201 - 4 * error.block)
            pair.forward(ids_of(1, 60, 3))
        ends_clean(opened)


def test_bare_generate_gives_the_error_and_the_remedy(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=400, hbm="12%", disk_bytes=8 << 20) as opened:
        ids = ids_of(1, 150)
        generate(opened.model, opened.cache, ids, max_new_tokens=2)
        settle(opened)
        for slab in slabs(tmp_path):
            os.truncate(slab, 4096)
        with pytest.raises(BlockLostError, match="prefill the session's tokens again from that block on"):
            generate(opened.model, opened.cache, torch.cat([ids, ids_of(1, 9)], 1), max_new_tokens=2)


def test_a_second_user_of_a_store_is_refused(tmp_path):
    with (
        live(tiny_once("llama"), tmp_path, context=100, hbm="50%", disk_bytes=1 << 20),
        pytest.raises(StoreError, match="in use"),
        live(tiny_once("llama"), tmp_path, context=100, hbm="50%"),
    ):
        pass


@pytest.mark.long
def test_a_second_process_is_refused(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=100, hbm="50%", disk_bytes=1 << 20):
        code = (
            "from tests.live.families import live, tiny\n"
            f"with live(tiny('llama'), {str(tmp_path)!r}, context=100, hbm='50%', disk_bytes=1 << 20): pass"
        )
        root = Path(__file__).parents[2]
        found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
        assert found.returncode != 0
        assert "StoreError" in found.stderr
        assert "in use" in found.stderr


def test_a_read_only_directory_is_refused(disk, tmp_path):
    disk.refuse = {"open": errno.EROFS}
    with pytest.raises(StoreError, match=r"cannot be|Read-only"), live(tiny_once("llama"), tmp_path, context=100, hbm="50%"):
        pass


def test_another_model_is_refused(tmp_path):
    with live(tiny_once("llama"), tmp_path, context=100, hbm="50%", fingerprint="one", disk_bytes=1 << 20):
        pass
    with (
        pytest.raises(StoreError, match=r"fingerprint|another"),
        live(tiny_once("llama"), tmp_path, context=100, hbm="50%", fingerprint="two", disk_bytes=1 << 20),
    ):
        pass


def test_without_direct_reads_it_runs_and_says_so(disk, monkeypatch, tmp_path):
    """As on tmpfs."""
    monkeypatch.setattr(disk, "direct_works", lambda path: False)
    with live(tiny_once("llama"), tmp_path, context=100, hbm="30%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 60))
        pair.forward(ids_of(1, 1))
        assert opened.read(NVME) > 0
        assert any("O_DIRECT" in notice for notice in opened.store.slabs.stats.notices)


def test_problem_7_rows_are_reordered_while_their_blocks_are_in_three_tiers(tmp_path):
    with live(tiny_once("qwen2"), tmp_path, context=200, rows=4, hbm="15%", dram="30%") as opened:
        pair = Pair(opened)
        pair.forward(ids_of(4, 130))
        for number, parents in enumerate(([3, 3, 1, 0], [1, 0, 3, 2], [2, 2, 2, 2], [0, 1, 2, 3])):
            pair.forward(ids_of(4, 1, number))
            pair.rearrange(parents)
        pair.forward(ids_of(4, 1, 9))
        assert opened.read(NVME) > 0
        assert opened.read(2) > 0
        adds_up(opened)
        ends_clean(opened)


def test_problem_13_prefetches_neither_leak_nor_stop(tmp_path):
    with live(
        tiny_once("llama"), tmp_path, context=260, hbm="40%", policy="ema", prefetcher="previous", lockstep=False
    ) as opened:
        pair = Pair(opened)
        pair.forward(ids_of(1, 200))
        issued = []
        for step in range(40):
            pair.forward(ids_of(1, 1, step))
            assert len(opened.store.pager.pending) < 200
            issued.append(opened.store.disk.read_units.get("prefetch", 0))
        assert issued[-1] > issued[19] > issued[5] > 0
        ends_clean(opened)
