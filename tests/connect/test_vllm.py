"""A real vLLM on the CPU, with real weights, over the block store: what it answers, and where it had it from.

Each process is one run of `serving.py`. In order: one without offloading, one that fills the store, a fresh one that is killed,
one after the kill, one whose gate declines, and one after half of the blocks were overwritten.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default"), pytest.mark.timeout(1800)]

HERE = Path(__file__).parent
PAGE_BYTES = 4096
BLOCK_TOKENS = 128  # of vLLM on a CPU
PROMPT_TOKENS = 1300
FULL_BLOCKS = PROMPT_TOKENS // BLOCK_TOKENS


@pytest.fixture(scope="module")
def prompt(smollm2):
    from transformers import AutoTokenizer

    text = (HERE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    return AutoTokenizer.from_pretrained(smollm2)(text, verbose=False)["input_ids"][:PROMPT_TOKENS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tier") / "blocks"


@pytest.fixture(scope="module")
def serve(smollm2, prompt, folder):
    """Start a process, and return what it says of each prompt."""

    def start(steps, tier=True, **settings):
        patient = {"deadline_s": 120, "lookup_deadline_s": 60}  # a busy machine is not what is tested
        options = {"path": str(folder), "capacity": "1GiB", "refresh_s": 0, **patient, **settings} if tier else None
        asked = {"model": str(smollm2), "prompt": prompt, "steps": steps, "tier": options}
        done = subprocess.run(
            [sys.executable, str(HERE / "serving.py")], input=json.dumps(asked), capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        killed = steps[-1] == "kill"
        assert done.returncode == (-9 if killed else 0), done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return start


@pytest.fixture(scope="module")
def without(serve):
    (said,) = serve([{}], tier=False)
    assert said["cached"] == 0
    assert len(set(said["tokens"])) > 4  # else equal tokens would say little
    return said["tokens"]


@pytest.fixture(scope="module")
def first(serve, without):
    return serve([{}, "reset", {}])


@pytest.fixture(scope="module")
def fresh(serve, first):
    return serve([{}, "reset", {"cache_salt": "another"}, "reset", {"cache_salt": "another"}, "kill"])


@pytest.fixture(scope="module")
def after_kill(serve, fresh):
    return serve([{}, {"cache_salt": "another"}])


@pytest.fixture(scope="module")
def declining(serve, after_kill):
    """An engine that says it computes a billion tokens a second: no disk is as fast."""
    return serve([{}, "reset", {}], prefill_tokens_per_s=1e9)


@pytest.fixture(scope="module")
def damaged(serve, after_kill, folder):
    """Noise in place of every other block's payload, of the same length; then one more process."""
    places = list(places_of(folder))
    for path, offset, length in places[::2]:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(np.random.default_rng(offset).bytes(length))
    return len(places), serve([{}, "reset", {}])


def places_of(folder):
    """Where the payload of each block stands: a page of header is before it, and one before the first."""
    for path in sorted(folder.glob("size-*/slab-*.kv")):
        size = int(path.parent.name.removeprefix("size-"))
        for offset in range(PAGE_BYTES, path.stat().st_size, PAGE_BYTES + size):
            with path.open("rb") as file:
                file.seek(offset)
                if any(file.read(PAGE_BYTES)):  # free places have no header
                    yield path, offset + PAGE_BYTES, size


def test_the_first_process_stores_and_gets_back_what_it_stored(first, without):
    stored, again = first
    assert stored["cached"] == 0
    assert stored["counts"]["blocks_stored"] == FULL_BLOCKS
    assert stored["counts"]["store_blocks"] == FULL_BLOCKS
    assert again["cached"] == FULL_BLOCKS * BLOCK_TOKENS
    assert again["counts"]["blocks_loaded"] == FULL_BLOCKS
    assert again["counts"]["blocks_not_loaded"] == 0
    assert stored["tokens"] == again["tokens"] == without


def test_a_fresh_process_has_it_from_disk(fresh, without):
    assert fresh[0]["cached"] == FULL_BLOCKS * BLOCK_TOKENS
    assert fresh[0]["counts"]["blocks_loaded"] == FULL_BLOCKS
    assert fresh[0]["tokens"] == without


def test_another_salt_gets_nothing_but_its_own(fresh, without):
    _, salted, again = fresh
    assert salted["cached"] == 0
    assert salted["counts"]["blocks_loaded"] == FULL_BLOCKS  # of the prompt before
    assert salted["counts"]["blocks_stored"] == FULL_BLOCKS
    assert again["cached"] == FULL_BLOCKS * BLOCK_TOKENS
    assert salted["tokens"] == again["tokens"] == without


def test_after_a_kill_everything_that_was_stored_is_there(after_kill, without):
    for said in after_kill:
        assert said["cached"] == FULL_BLOCKS * BLOCK_TOKENS
        assert said["tokens"] == without


def test_what_is_sooner_computed_is_not_loaded(declining, without):
    measured, declined = declining
    few = -(-FULL_BLOCKS // 8)
    assert measured["cached"] == few * BLOCK_TOKENS
    assert measured["counts"]["gate_blocks_fetched"] == measured["counts"]["blocks_loaded"] == few
    assert declined["cached"] == 0
    assert declined["counts"]["gate_decided_decline"] == 1
    assert declined["counts"]["gate_blocks_fetched"] == few
    assert declined["counts"]["gate_blocks_declined"] == 2 * FULL_BLOCKS - few
    assert declined["counts"]["gate_saved_estimate_seconds"] > 0
    assert measured["tokens"] == declined["tokens"] == without


def test_damaged_blocks_are_computed_again_and_the_tokens_are_right(damaged, without):
    places, (said, again) = damaged
    assert places == 2 * FULL_BLOCKS
    assert said["tokens"] == without
    assert said["cached"] < FULL_BLOCKS * BLOCK_TOKENS
    assert said["counts"]["blocks_not_loaded"] > 0
    assert said["counts"]["store_quarantined"] == said["counts"]["blocks_not_loaded"] == said["counts"]["store_checksum_failures"]
    assert again["tokens"] == without
    assert again["cached"] == FULL_BLOCKS * BLOCK_TOKENS  # what was computed again was stored again


@pytest.mark.parametrize("run", ["first", "fresh", "after_kill", "declining", "damaged"])
def test_what_was_asked_was_found_or_missing(run, request):
    said_by = request.getfixturevalue(run)
    for said in said_by[1] if run == "damaged" else said_by:
        counts = said["counts"]
        parts = counts["blocks_found"] + counts.get("blocks_missing", 0) + counts.get("blocks_late", 0)
        assert counts["blocks_asked"] == parts
        assert counts.get("blocks_late", 0) == 0
