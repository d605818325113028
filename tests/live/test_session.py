"""Sessions: what comes back from disk goes on as if nothing had been; what is lost is computed again; nothing leaks."""

import contextlib
import functools
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.families import BLOCK, VOCABULARY, WatchedDriver, ids_of, layout_of, live, stock, tiny, tiny_once

from kvpager.core import NVME, KVGeometry, LayerKV, Tick
from kvpager.errors import BadInput, BlockLostError, StorageFull, StoreError
from kvpager.live.budget import live_budget
from kvpager.live.fingerprint import fingerprint
from kvpager.live.layout import Layout
from kvpager.live.park import Shelf
from kvpager.live.store import TieredStore
from kvpager.live.transformers import Session, load_model
from kvpager.replay.run import replay_run
from kvpager.runlog import LoggedDriver, LoggedTable
from kvpager.slab.files import Files
from kvpager.slab.sessions import open_store, sessions_in
from kvpager.traces.run import RunHeader
from kvpager.traces.runcounts import RunTally
from kvpager.traces.runstore import RunWriter, read_run

PROMPT = ids_of(1, 101, seed=5)[0].tolist()
MORE = ids_of(1, 38, seed=6)[0].tolist()
SELECTIVE = {"selective": True, "selector": "outlier_mean:read_fraction=0.2"}
SAMPLED = {"do_sample": True, "temperature": 0.9, "top_p": 0.95}
MODELS = ("llama", "gemma3_text")


@contextlib.contextmanager
def opened(folder, family="llama", rows=3, **options):
    """A store for a tiny model, with small slabs; HBM holds half of one session."""
    model = tiny_once(family)
    options = {"hbm": "8%", "disk_bytes": 2 << 20, "fingerprint": fingerprint(model, layout_of(model))} | options
    with live(model, folder, context=200, rows=rows, **options) as found:
        found.store.selective = found.selective
        yield found.store


def new(store, family="llama", **options):
    return Session(tiny_once(family), store, selective=store.selective, chunk=48, **options)


def resume(store, id, family="llama"):
    return Session.resume(tiny_once(family), store, id, selective=store.selective, chunk=48)


def slabs_of(folder):
    return sorted(folder.glob("slab-*.kv"))


dense = functools.cache(tiny)
"""The same models again, for stock attention."""


def likeliest(tokens, family="llama"):
    """The likeliest token at each place by stock attention, given those before it; None for the first."""
    model = dense(family)
    cache = stock(model)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens]), cache=cache, use_cache=True).logits[0]
    return [None, *logits.argmax(-1).tolist()]


def is_greedy(tokens, prompt, family="llama"):
    """Whether all tokens behind the prompt are the likeliest ones."""
    return likeliest(tokens, family)[prompt:-1] == tokens[prompt:]


# ── going on ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", MODELS)
def test_a_run_generates_what_stock_attention_does(family, tmp_path):
    with opened(tmp_path, family) as store, new(store, family) as session:
        told = []
        assert session.run(8, PROMPT, on_token=told.append) == told
        session.run(5, MORE)
        expected, prompts = PROMPT + told + MORE, len(PROMPT)
        assert session.tokens[: len(expected)] == expected
        assert len(session.tokens) == len(expected) + 5
        assert is_greedy(session.tokens[: prompts + 8], prompts, family)
        assert is_greedy(session.tokens, len(expected), family)
        assert session.cache.tokens == len(session.tokens) - 1


@pytest.mark.parametrize(
    ("family", "mode", "choice"),
    [
        ("llama", {}, {}),
        ("llama", {}, SAMPLED),
        ("llama", SELECTIVE, {}),
        ("llama", {"selective": True, "selector": "history:read_fraction=0.2"}, SAMPLED),
        ("gemma3_text", {}, SAMPLED),
        ("gemma3_text", SELECTIVE, {}),
    ],
    ids=str,
)
def test_a_resumed_session_goes_on_as_if_never_interrupted(family, mode, choice, tmp_path):
    parts = (3, 4, 5, 1)  # parked with the open block empty, full and in between
    with opened(tmp_path / "whole", family, **mode) as store, new(store, family) as session:
        session.run(0, PROMPT, seed=4)
        for count in parts:
            session.run(count, **choice)
        session.run(3, MORE, **choice)
        expected = list(session.tokens)
    with opened(tmp_path / "parts", family, **mode) as store:
        session = new(store, family, id="s")
        session.run(0, PROMPT, seed=4)
        session.park()
    for count in parts:
        with opened(tmp_path / "parts", family, **mode) as store:
            session = resume(store, "s", family)
            session.run(count, **choice)
            assert session.park() == "s"
    with opened(tmp_path / "parts", family, **mode) as store, resume(store, "s", family) as session:
        session.run(3, MORE, **choice)
        assert session.tokens == expected
        assert store.counts.recomputed_tokens == 0
        assert session.notices == []
        written = store.disk.written_units["backup"] // (store.layout.layers * store.layout.kv_heads)
        assert written <= len(MORE) // BLOCK + 3, "what was parked is not written again"
        assert store.disk.read_units["demand"] > 0


def test_it_goes_on_in_another_process(tmp_path):
    with opened(tmp_path / "store") as store:
        session = new(store, id="far")
        session.run(5, PROMPT, **SAMPLED, seed=9)
        session.park()
        expected = session.run(6, **SAMPLED)
    script = (
        "import sys; from pathlib import Path; from tests.live.test_session import *\n"
        "with opened(Path(sys.argv[1])) as store: print(resume(store, 'far').run(6, **SAMPLED))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")], cwd=root, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == str(expected)


def test_other_summaries_are_made_from_the_parked_keys(tmp_path):
    """Parked without key summaries, resumed with one kind, then another: reading everything by them is exact."""
    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(3, PROMPT)
        session.park()
        expected = session.run(8)
    for selector in ("outlier_mean", "key_bound"):
        with opened(tmp_path, selective=True, selector=f"{selector}:read_fraction=1.0") as store:
            session = resume(store, "s")
            assert store.summary.take(np.arange(25, dtype=np.int32)), "each block has one"
            assert session.run(8) == expected
            session.cache.crop(-8)
            session.tokens = session.tokens[:-8]
            session.park()


def test_parking_changes_nothing(tmp_path):
    with opened(tmp_path / "a") as store, new(store) as session:
        expected = session.run(12, PROMPT)
    with opened(tmp_path / "b") as store, new(store) as session:
        assert session.run(12, PROMPT, on_token=lambda token: session.park()) == expected
    with opened(tmp_path / "b") as store:
        with resume(store, session.id) as back:
            assert back.tokens == PROMPT + expected
        assert len(store.shelf.ids()) == 1


def test_stop_tokens_and_interrupts_leave_a_session_that_goes_on(tmp_path):
    class Stopped(Exception):
        pass

    def stop(token):
        raise Stopped

    with opened(tmp_path) as store, new(store) as session:
        expected = session.run(10, PROMPT)
        other = new(store)
        first = other.run(10, PROMPT, stop={expected[4]})
        assert first == expected[: expected.index(expected[4]) + 1]
        with pytest.raises(Stopped):
            other.run(5, on_token=stop)
        other.run(10 - len(other.tokens) + len(PROMPT))
        assert other.tokens == session.tokens


# ── forks and drops ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", MODELS)
def test_a_fork_shares_what_is_sealed_and_goes_on_alone(family, tmp_path):
    with opened(tmp_path, family) as store:
        session = new(store, family)
        session.run(2, PROMPT)
        records = store.slabs.records
        fork = session.fork("twin")
        assert store.slabs.records == records
        assert fork.tokens == session.tokens
        fork.run(3, MORE)
        expected = session.run(6)
        assert is_greedy(fork.tokens, len(PROMPT) + 2 + len(MORE), family)
        assert is_greedy(session.tokens, len(PROMPT), family)
        session.close()
        again = fork.fork()
        assert again.run(4) == fork.run(4)
        again.close()
        fork.close()
        assert store.slabs.records == 0
        assert len(expected) == 6


def test_sessions_resumed_together_share_their_beginning_again(tmp_path):
    with opened(tmp_path) as store:
        session = new(store, id="a")
        session.run(2, PROMPT)
        fork = session.fork("b")
        fork.run(2, MORE)
        session.park()
        fork.park()
        expected = session.run(6), fork.run(6)
        session.close()
        fork.close()
    with opened(tmp_path) as store:
        a, b = resume(store, "a"), resume(store, "b")
        both = len(PROMPT) // BLOCK
        assert (a.cache.batch.rows[0].bases[:both] == b.cache.batch.rows[0].bases[:both]).all()
        assert b.cache.batch.rows[0].bases[both] not in a.cache.batch.rows[0].bases
        assert (a.run(6), b.run(6)) == expected
        a.drop()
        assert b.run(3)
        b.park()
        b.close()
    with opened(tmp_path) as store:
        assert store.shelf.ids() == ["b"]
        b = resume(store, "b")
        assert len(b.run(2)) == 2
        assert store.counts.recomputed_tokens == 0
        b.drop()
        assert store.slabs.records == 0
        assert list((tmp_path / "sessions").iterdir()) == []


def test_closing_forgets_what_is_not_parked_and_nothing_else(tmp_path):
    with opened(tmp_path) as store:
        session = new(store)
        session.run(2, PROMPT)
        session.park()
        parked = store.slabs.records
        session.run(9)
        session.close()
        session.close()
        assert store.slabs.records == parked
        assert store.memory.arena.free == len(store.memory.arena.memory)
        other = new(store)
        other.run(2, PROMPT)
        other.close()
        assert store.slabs.records == parked
        store.shelf.remove(session.id)
        assert store.slabs.records == 0
        with pytest.raises(BadInput, match="closed"):
            session.run(1)


def test_a_dropped_session_leaves_a_living_fork_its_blocks(tmp_path):
    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(2, PROMPT)
        session.park()
        fork = session.fork()
        session.drop()
        assert fork.run(5)
        assert is_greedy(fork.tokens, len(PROMPT))
        fork.close()
        assert store.slabs.records == 0


def test_gc_keeps_what_sessions_need(tmp_path):
    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(2, PROMPT)
        session.park()
        expected = session.run(20)  # whose blocks nobody parks: the process ends here
    with open_store(tmp_path) as slabs:
        [file] = sessions_in(tmp_path)
        assert (file.id, file.tokens) == ("s", len(PROMPT) + 2)
        assert slabs.keep_only(file.keys) > 0
    with opened(tmp_path) as store, resume(store, "s") as session:
        assert session.run(20) == expected
        assert store.counts.recomputed_tokens == 0


@settings(max_examples=12)
@given(st.data())
def test_any_sequence_of_operations_keeps_every_session_right(tmp_path_factory, data):
    """Open, run, fork, park, close, resume, drop, and processes that end, in any order."""
    folder = tmp_path_factory.mktemp("store")
    known, parked, serial = {}, {}, 0  # tokens and prompts' places of open and parked sessions
    for _ in range(data.draw(st.integers(1, 3))):
        with opened(folder, rows=9) as store:
            running = {}
            for _ in range(data.draw(st.integers(1, 8))):
                names = sorted(running)
                act = data.draw(st.sampled_from(["new", "resume", "run", "run", "fork", "park", "close", "drop"]))
                if act in ("new", "resume") and len(running) < 4:
                    serial += 1
                    waiting = sorted(set(parked) - set(running))
                    if act == "resume" and waiting:
                        name = data.draw(st.sampled_from(waiting))
                        running[name], known[name] = resume(store, name), list(parked[name])
                        assert running[name].tokens == [token for token, _ in known[name]]
                    elif act == "new":
                        running[f"s{serial}"], known[f"s{serial}"] = new(store, id=f"s{serial}"), []
                        act, names = "run", [f"s{serial}"]
                if not names:
                    continue
                name = data.draw(st.sampled_from(names))
                session = running[name]
                if act == "run":
                    prompt = PROMPT[: data.draw(st.integers(0, 40))] if known[name] else PROMPT[:9]
                    made = session.run(data.draw(st.integers(0, 6)), prompt)
                    known[name] += [(token, False) for token in prompt] + [(token, True) for token in made]
                elif act == "fork" and len(running) < 4:
                    serial += 1
                    running[f"s{serial}"], known[f"s{serial}"] = session.fork(f"s{serial}"), list(known[name])
                elif act == "park":
                    session.park()
                    parked[name] = list(known[name])
                elif act in ("close", "drop"):
                    getattr(session, act)()
                    del running[name]
                    if act == "drop":
                        parked.pop(name, None)
                store.pager.check()
                store.slabs.check()
            assert store.counts.recomputed_tokens == 0
            for name, session in running.items():
                assert session.tokens == [token for token, _ in known[name]]
                session.close()
            assert store.memory.arena.free == len(store.memory.arena.memory)
            assert store.shelf.ids() == sorted(parked)
    with opened(folder, rows=9) as store:
        for name, tokens in parked.items():
            session = resume(store, name)
            before = len(session.tokens)
            session.run(2, PROMPT[:1])
            every = [*tokens, (PROMPT[0], False), *((token, True) for token in session.tokens[before + 1 :])]
            right = likeliest([token for token, _ in every])
            assert all(token == right[at] for at, (token, was_made) in enumerate(every) if was_made)
            session.drop()
        assert store.counts.recomputed_tokens == 0
        assert store.slabs.records == 0, "whatever nobody names any more is gone"


# ── losses ───────────────────────────────────────────────────────────────────────────────────────


def damage(folder, how):
    """Lose a part of what is in the slabs."""
    slabs = slabs_of(folder)
    if how == "a slab is gone":
        slabs[-1].unlink()
    elif how == "a slab is short":
        os.truncate(slabs[-1], 8192)
    else:
        rng = np.random.default_rng(0)
        for path in slabs:
            content = np.frombuffer(path.read_bytes(), np.uint8).copy()
            some = rng.choice(np.arange(4096, len(content)), 100, replace=False)
            content[some] ^= 0x10
            path.write_bytes(content.tobytes())


@pytest.mark.parametrize("how", ["a slab is gone", "a slab is short", "bits flipped"])
@pytest.mark.parametrize("family", MODELS)
def test_lost_blocks_are_computed_again(family, how, tmp_path):
    with opened(tmp_path, family) as store:
        session = new(store, family, id="s")
        session.run(4, PROMPT)
        session.park()
        expected = session.run(8)
        session.close()
    damage(tmp_path, how)
    with opened(tmp_path, family) as store, resume(store, "s", family) as session:
        assert session.run(8) == expected
        assert 0 < store.counts.recomputed_tokens < 8 * len(PROMPT)
        assert session.notices
        assert "computed again" in session.notices[0]
        store.pager.check()
        session.park()
        session.run(2)
    with opened(tmp_path, family) as store, resume(store, "s", family) as session:
        session.run(2)
        assert is_greedy(session.tokens, len(PROMPT), family)
        assert store.counts.recomputed_tokens == 0, "what was parked after the loss is whole"


def test_a_fork_of_what_is_lost_computes_it_again_too(tmp_path):
    with opened(tmp_path, disk_bytes=4 << 20) as store:
        session = new(store, id="s")
        session.run(4, PROMPT)
        session.park()
    damage(tmp_path, "bits flipped")
    with opened(tmp_path, disk_bytes=4 << 20) as store:
        session = resume(store, "s")
        fork = session.fork()
        session.run(4)
        fork.run(4)
        assert session.tokens == fork.tokens
        assert is_greedy(fork.tokens, len(PROMPT))
        assert fork.notices
        fork.park()
        session.drop()
        assert fork.run(1)


def test_a_block_that_is_gone_from_the_store_is_noticed_when_resuming(tmp_path):
    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(4, PROMPT)
        session.park()
        expected = session.run(6)
        session.close()
        store.slabs.forget(store.shelf.read("s").keys[10:11])
        session = resume(store, "s")
        assert store.counts.recomputed_tokens == len(PROMPT) + 3 - 10 * BLOCK
        assert "block 10" in session.notices[0]
        assert session.run(6) == expected


def test_a_disk_that_loses_everything_ends_in_one_error(tmp_path, monkeypatch):
    with opened(tmp_path) as store, new(store, id="s") as session:
        session.run(4, PROMPT)
        done = store.disk._done

        def lose(ticket, ok):
            move = store.disk._moves[ticket][0]
            return done(ticket, ok & (move.src != NVME))

        monkeypatch.setattr(store.disk, "_done", lose)
        with pytest.raises(BlockLostError, match="session 's'"):
            session.run(4)
        monkeypatch.undo()
        session.run(4)
        assert is_greedy(session.tokens, len(PROMPT))
        assert len(session.notices) == 9, "eight, and the block that was known to be lost"


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


def test_another_model_is_refused_by_name_of_what_differs(tmp_path):
    with opened(tmp_path, "llama") as store:
        session = new(store, id="s")
        session.run(1, PROMPT)
        session.park()
        with pytest.raises(StoreError, match=r"store belongs to another model or layout \(weights is \w+, not \w+\)"):
            Session(tiny_once("llama", seed=1), store)
        with pytest.raises(StoreError, match=r"\(rope is \w+, not \w+\)"):
            Session(tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5}), store)
    other = fingerprint(tiny("llama", seed=1), layout_of(tiny_once("llama")))
    with (
        pytest.raises(StoreError, match=r"made for something else: weights is \w+, not \w+; "),
        opened(tmp_path, fingerprint=other),
    ):
        pass


def test_a_session_of_another_fingerprint_is_refused(tmp_path):
    with opened(tmp_path / "a") as store:
        session = new(store, id="s")
        session.run(1, PROMPT)
        session.park()
    model = tiny_once("llama", seed=1)
    with live(model, tmp_path / "b", context=200, fingerprint=fingerprint(model, layout_of(model))) as found:
        shutil.copytree(tmp_path / "a" / "sessions", tmp_path / "b" / "sessions")
        with pytest.raises(StoreError, match=r"session 's' belongs to another model or layout \(weights is"):
            Session.resume(model, found.store, "s")
        assert found.store.shelf.open == {}


def test_fingerprints_differ_with_what_matters():
    model = tiny_once("llama")
    layout = layout_of(model)
    whole = fingerprint(model, layout)
    assert whole == fingerprint(tiny_once("llama"), layout)
    others = [
        fingerprint(model, layout._replace(block_size=8)),
        fingerprint(model, layout._replace(element="bfloat16")),
        fingerprint(tiny_once("llama", seed=1), layout),
        fingerprint(tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 5e5}), layout),
        fingerprint(tiny_once("ministral"), layout),
    ]
    assert len({whole, *others}) == 6


def test_bad_requests_are_refused_and_change_nothing(tmp_path):
    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(1, PROMPT)
        tokens = list(session.tokens)
        for options in (
            {"max_new_tokens": -1}, {"temperature": 0.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"temperature": float("nan")},
            {"prompt": [VOCABULARY]}, {"prompt": [-1]},
        ):  # fmt: skip
            with pytest.raises(BadInput):
                session.run(**{"max_new_tokens": 1} | options)
        assert session.tokens == tokens
        for id in ("", "a/b", "a b", "x" * 65, "é"):
            with pytest.raises(BadInput, match="choose another"):
                new(store, id=id)
        with pytest.raises(BadInput, match="open already"):
            new(store, id="s")
        session.park()
        with pytest.raises(BadInput, match="is open in this process"):
            resume(store, "s")
        session.close()
        with pytest.raises(BadInput, match="parked already"):
            new(store, id="s")
        with pytest.raises(StoreError, match="no parked session 'x': it has s"):
            resume(store, "x")
        with pytest.raises(BadInput, match="give it a prompt"):
            new(store).run(1)
        with pytest.raises(BadInput, match="chunk=1"):
            Session(tiny_once("llama"), store, chunk=0)


# ── crashes ──────────────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    """Ends a process in the middle."""


class CrashingFiles(Files):
    """Stops at its n-th call: before it, or for a write after its first half."""

    def __init__(self, after):
        self.left = after

    def _step(self):
        self.left -= 1
        if self.left < 0:
            raise Crash

    def make_folder(self, path):
        self._step()
        super().make_folder(path)

    def open(self, path, flags):
        self._step()
        return super().open(path, flags)

    def pwritev(self, fd, buffers, offset):
        self._step()
        half = len(buffers[0]) // 2
        super().pwritev(fd, [buffers[0][:half]], offset)
        self._step()
        return half + super().pwritev(fd, [buffers[0][half:]], offset + half)

    def sync(self, fd):
        self._step()
        super().sync(fd)

    def sync_folder(self, path):
        self._step()
        super().sync_folder(path)

    def rename(self, old, new):
        self._step()
        super().rename(old, new)

    def remove(self, path):
        self._step()
        super().remove(path)


def test_a_crash_at_any_step_of_parking_leaves_the_old_state_or_the_new_one(tmp_path):
    folder, met = tmp_path / "store", set()
    with opened(folder) as store:
        session = new(store, id="s")
        session.run(4, PROMPT)
        session.park()
        old, state = list(session.tokens), (folder, tmp_path / "old")
        shutil.copytree(*state)
        session.run(7)
        whole = list(session.tokens)
        for step in range(100):
            store.shelf._files = CrashingFiles(step)
            try:
                session.park()
            except Crash:
                finished = False
            else:
                finished = True
            copy = tmp_path / f"crash{step}"
            shutil.copytree(folder, copy)
            with opened(copy) as after, resume(after, "s") as back:
                assert back.tokens in (old, whole)
                met.add(len(back.tokens))
                back.run(7 if back.tokens == old else 0)
                assert back.tokens == whole
                assert after.counts.recomputed_tokens == 0
            shutil.rmtree(copy)
            if finished:
                break
            store.shelf._files = Files()
            shutil.rmtree(folder / "sessions")
            shutil.copytree(tmp_path / "old" / "sessions", folder / "sessions")
    assert met == {len(old), len(whole)}
    assert step > 10


@pytest.mark.parametrize("call", ["open", "write", "sync"])
def test_a_disk_that_refuses_leaves_what_was_parked(call, tmp_path):
    from errno import ENOSPC

    from tests.stores import RefusingFiles

    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(4, PROMPT)
        session.park()
        expected = session.run(7)
        store.shelf._files = RefusingFiles(**{call: ENOSPC})
        with pytest.raises(StorageFull, match="what was parked before is unharmed"):
            session.park()
        session.close()
        store.shelf._files = Files()
        session = resume(store, "s")
        assert session.run(7) == expected
        assert store.counts.recomputed_tokens == 0
        assert not list((tmp_path / "sessions").glob("*.draft"))
        session.drop()
        assert store.slabs.records == 0


def test_a_full_backing_store_cannot_park(tmp_path):
    with opened(tmp_path, hbm="100%", disk_bytes=256 << 10) as store:
        session = new(store, id="s")
        session.run(1, PROMPT[:20])
        session.park()
        expected = list(session.tokens)
        with pytest.raises(StorageFull, match="full"):
            session.run(160, on_token=lambda token: session.park())
        session.close()
    with opened(tmp_path, hbm="100%", disk_bytes=256 << 10) as store, resume(store, "s") as session:
        assert session.tokens[: len(expected)] == expected
        assert is_greedy(session.tokens, 20)


def keep_parking(folder, told):
    """Generate and park, token by token, until somebody ends the process."""
    with opened(folder) as store:
        session = resume(store, "s") if "s" in store.shelf else new(store, id="s")
        session.run(1, [] if session.tokens else PROMPT)
        while len(session.tokens) < 190:
            session.park()
            told.send(len(session.tokens))
            session.run(1)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_at_any_moment_it_resumes_from_what_was_parked_last(tmp_path):
    """Thirty processes, each killed while it generates and parks: the state on disk is always one that was parked."""
    fork, rng, reached = multiprocessing.get_context("forkserver"), random.Random(0), 0
    fork.set_forkserver_preload([__name__])
    with opened(tmp_path / "whole") as store, new(store) as session:
        session.run(189 - len(PROMPT), PROMPT)
        expected = list(session.tokens)
    for _ in range(30):
        heard, told = fork.Pipe(duplex=False)
        child = fork.Process(target=keep_parking, args=(tmp_path / "store", told))
        child.start()
        told.close()
        heard.poll(120)
        time.sleep(rng.random() * 0.1)
        child.kill()
        child.join()
        with contextlib.suppress(EOFError):
            while True:
                reached = heard.recv()
        heard.close()
        with opened(tmp_path / "store") as store, resume(store, "s") as session:
            assert session.tokens == expected[: len(session.tokens)]
            assert len(session.tokens) >= reached, "what was said to be parked is there"
            session.run(1)
            assert session.tokens == expected[: len(session.tokens)]
            assert store.counts.recomputed_tokens == 0
    assert reached > len(PROMPT) + 20


def test_files_are_for_their_owner_alone(tmp_path):
    with opened(tmp_path) as store, new(store) as session:
        session.run(2, PROMPT)
        session.park()
        files = list((tmp_path / "sessions").iterdir())
        assert len(files) == 2
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
        assert (tmp_path / "sessions").stat().st_mode & 0o777 == 0o700


def test_no_flip_in_a_session_file_is_believed(tmp_path):
    rng = random.Random(0)
    with opened(tmp_path) as store:
        session = new(store, id="s")
        session.run(2, PROMPT)
        session.park()
        session.close()
        for path in (tmp_path / "sessions").iterdir():
            content = path.read_bytes()
            for _ in range(150):
                at, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
                path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
                with pytest.raises(StoreError, match=r"damaged|newer"):
                    store.shelf.read("s")
            path.write_bytes(content[: len(content) // 2])
            with pytest.raises(StoreError, match="damaged"):
                resume(store, "s")
            path.write_bytes(content)
        assert store.shelf.read("s").tokens == session.tokens


def test_a_newer_version_is_refused(tmp_path, monkeypatch):
    with opened(tmp_path) as store, new(store, id="s") as session:
        session.run(2, PROMPT)
        monkeypatch.setattr("kvpager.live.park.VERSION", 2)
        session.park()
        monkeypatch.undo()
        with pytest.raises(StoreError, match="newer version"):
            Shelf(store).read("s")


def test_the_open_block_is_parked_without_what_its_slots_held_before(tmp_path):
    with opened(tmp_path, rows=1, driver=WatchedDriver) as store:
        session = new(store)
        session.run(0, PROMPT[:41])
        session.close()
        session = new(store, id="s")
        session.run(0, PROMPT[:1])
        session.park()
        content = store.shelf.read("s").arrays["open"]
        assert not store.layout.keys(content)[..., 1:].any()
        assert not store.layout.values(content)[:, 1:].any()
        assert store.layout.keys(content)[..., :1].any()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_real_weights_go_on_too(tmp_path):
    loaded = load_model("smollm2")
    layout = Layout.of(loaded.geometry)
    budget = live_budget(layout, context_tokens=400, hbm="20%")
    text = loaded.tokenize(Path(contextlib.__file__).read_text(encoding="utf-8"))[:300]

    def store():
        return TieredStore(
            budget, tmp_path, fingerprint=fingerprint(loaded, layout), layer_numbers=loaded.geometry.full_layers,
            selector="outlier_mean:read_fraction=0.2",
        )  # fmt: skip

    for selective in (False, True):
        with store() as opened_store:
            session = Session(loaded, opened_store, selective=selective)
            session.run(6, text)
            session.park()
            expected = session.run(16)
            session.close()
        with store() as opened_store:
            session = Session.resume(loaded, opened_store, session.id, selective=selective)
            assert session.run(16) == expected
            assert opened_store.counts.recomputed_tokens == 0
            session.drop()


@pytest.mark.parametrize("lockstep", [True, False])
def test_the_log_of_sessions_replays(lockstep, tmp_path):
    """Law 3 through resuming, sharing, forking, losing, parking and dropping: the same moves, the same counters."""
    folder, events, tally = tmp_path / "store", [], RunTally()

    def sink(event):
        tally(event)
        events.append(event)

    with opened(folder, **SELECTIVE) as store:
        session = new(store, id="a")
        session.run(3, PROMPT)
        session.park()
        fork = session.fork("b")
        fork.run(2, MORE)
        fork.park()
    damage(folder, "bits flipped")
    logged = {"driver": partial(LoggedDriver, sink=sink), "make_table": partial(LoggedTable, sink=sink), "lockstep": lockstep}
    with opened(folder, **SELECTIVE, **logged) as store:
        a, b = resume(store, "a"), resume(store, "b")
        a.run(6)
        b.run(5)
        c = a.fork("c")
        c.run(3)
        c.park()
        a.close()
        b.run(2)
        c.drop()
        b.close()
        assert store.counts.recomputed_tokens > 0
        store.slabs.drain()
        store.driver.begin(Tick(store.step, 0))
        layout, pager = store.layout, store.pager
        layer = LayerKV(layout.kv_heads, layout.k_dim, layout.v_dim)
        header = RunHeader(
            model="tiny", weights_sha256="0" * 64, geometry=KVGeometry("tiny", "llama", 4, 4, (layer,) * layout.layers),
            layers=store.layer_numbers, num_kv_heads=layout.kv_heads, block_size=BLOCK, granularity=store.table.granularity,
            unit_bytes=store.table.unit_bytes, mode="selective", selector=SELECTIVE["selector"], policy=store.policy_text,
            budget=pager.budget, pool=pager.pools.kind, seed=pager.seed, lanes=pager.lanes, lockstep=lockstep,
        )  # fmt: skip
        counts = tally.counts.document(store.driver.tiers, store.table.unit_bytes)
    with RunWriter(tmp_path / "run.zarr", header) as writer:
        for event in events:
            writer.append(event)
        writer.close(counts)
    found = replay_run(read_run(tmp_path / "run.zarr"), check=True)
    assert found.moves_identical > 150
    assert found.document == counts
