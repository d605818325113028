"""What a live cache may take: refused below the least that works, and no more memory for a longer context (law 6)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.live.families import Pair, adds_up, ends_clean, ids_of, layout_of, live, tiny_once

from kvpager.errors import CapacityError
from kvpager.live.budget import live_budget
from kvpager.units import parse_bytes

SIZES = {"context": 100, "rows": 2}


def least(model):
    """The bytes that the refusal of too little HBM asks for, and the share."""
    with pytest.raises(CapacityError, match="give at least") as refused:
        live_budget(layout_of(model), context_tokens=SIZES["context"], rows=SIZES["rows"], hbm="1KiB")
    message = str(refused.value)
    parts = [int(part.replace(",", "")) for part in re.findall(r"([\d,]+) (?:\(|of )", message.split("need")[1])]
    total = int(re.search(r"give at least ([\d,]+) B", message)[1].replace(",", ""))
    assert sum(parts) == total, f"the sum of {message}"
    return total


def test_exactly_the_least_that_the_message_names_works(tmp_path):
    model = tiny_once("llama")
    total = least(model)
    with live(model, tmp_path, hbm=f"{total}B", **SIZES) as opened:
        assert total - layout_of(model).unit_bytes < opened.budget.hbm_bytes <= total
        pair = Pair(opened)
        pair.forward(ids_of(2, 60))
        for step in range(12):
            pair.forward(ids_of(2, 1, step))
        adds_up(opened)
        ends_clean(opened)


@pytest.mark.parametrize("pool", ["global", "layer", "equal"])
def test_rows_that_do_not_fit_are_refused_and_the_batch_goes_on(tmp_path, pool):
    """At the least that works, six rows have no room for their open blocks, and one row more has if another ends."""
    model = tiny_once("llama")
    with live(model, tmp_path, hbm=f"{least(model)}B", pool=pool, **SIZES) as opened:
        pair = Pair(opened)
        pair.forward(ids_of(2, 60))
        for call, argument in (
            ("batch_select_indices", torch.zeros(6, dtype=torch.long)),
            ("reorder_cache", torch.tensor([1] * 6)),
            ("batch_repeat_interleave", 3),
        ):
            pair.forward(ids_of(2, 1))
            with pytest.raises(CapacityError, match="open blocks: give it at least"):
                getattr(pair.cache, call)(argument)
        twin = pair.cache.fork()
        with pytest.raises(CapacityError, match="open blocks"):
            pair.cache.fork()
        twin.reset()
        pair.forward(ids_of(2, 1, 7))
        pair.rearrange([1, 1])
        pair.forward(ids_of(2, 3, 8))
        adds_up(opened)
        ends_clean(opened)


def test_one_unit_less_than_the_least_is_refused_before_anything_starts(tmp_path):
    model = tiny_once("llama")
    less = least(model) - layout_of(model).unit_bytes
    with pytest.raises(CapacityError, match="give at least"), live(model, tmp_path / "store", hbm=f"{less}B", **SIZES):
        pass
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("size", ["12%", "100%", "200KiB"])
def test_bytes_are_everything_and_a_share_is_payload(size):
    budget = live_budget(layout_of(tiny_once("llama")), context_tokens=300, hbm=size)
    if size.endswith("%"):
        assert budget.hbm_fraction == pytest.approx(float(size[:-1]) / 100, abs=0.01)
    else:
        assert parse_bytes(size) - budget.layout.unit_bytes < budget.hbm_bytes <= parse_bytes(size)


def test_units_in_hbm_and_staging_stay_within_the_budget_at_each_tick(tmp_path):
    with live(tiny_once("gemma2"), tmp_path, hbm="20%", **SIZES) as opened:
        pair, memory = Pair(opened), opened.store.memory
        most = []
        land = memory.land
        memory.land = lambda units: (land(units), most.append(len(memory.arena.memory) - memory.arena.free))[0]
        pair.forward(ids_of(2, 80))
        for step in range(8):
            pair.forward(ids_of(2, 1, step))
        assert max(most) <= opened.budget.hbm_units + opened.budget.staging_units


_GROWTH = """
import json, sys, tempfile, torch
from transformers.cache_utils import DynamicCache
from tests.live.families import live, stock, tiny

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

tiers, chunk, first, last = sys.argv[1] == "tiers", 256, 1024, 8192
torch.set_num_threads(1)
model = tiny("llama", num_hidden_layers=8, num_key_value_heads=4, head_dim=64, max_position_embeddings=last)
with tempfile.TemporaryDirectory() as folder, live(
    model, folder, context=last, hbm="5%", block_size=16, disk_bytes=512 << 20
) as opened, torch.inference_mode():
    opened.store.driver.submit = super(type(opened.store.driver), opened.store.driver).submit  # without a log
    cache = opened.cache if tiers else stock(model)
    model.set_attn_implementation("kvpager" if tiers else "sdpa")
    ids, sizes = torch.randint(3, 199, (1, last)), []
    for start in range(0, last, chunk):
        model(ids[:, start : start + chunk], cache=cache, logits_to_keep=1)
        sizes.append(resident())
    before = max(sizes[: first // chunk])
    print(json.dumps({"growth": max(sizes) - before, "metadata": opened.budget.metadata_bytes, "kv": opened.budget.kv_bytes}))
"""


def growth(kind):
    root = Path(__file__).parents[2]
    found = subprocess.run(
        [sys.executable, "-c", _GROWTH, kind], cwd=root, capture_output=True, text=True, check=True, timeout=280
    )  # fmt: skip
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from Linux's /proc")
def test_memory_does_not_grow_with_the_context():
    tiers, control = growth("tiers"), growth("control")
    allowed = (32 << 20) + tiers["metadata"]
    assert tiers["growth"] <= allowed
    assert control["growth"] > allowed, "the test can tell"


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_bfloat16_is_the_same_to_the_bit_for_every_size(family, tmp_path):
    from tests.live.families import generate, logits_of, tiny

    model = tiny(family).to(torch.bfloat16)
    ids, found = ids_of(2, 110), []
    for number, size in enumerate(({"hbm": "25%", "dram": "20%"}, {"hbm": "100%", "policy": "blend"})):
        with live(model, tmp_path / str(number), context=120, rows=2, **size) as opened:
            assert opened.store.layout.unit_bytes == 256
            output = generate(model, opened.cache, ids, max_new_tokens=6, min_new_tokens=6)
            adds_up(opened)
            found.append((output.sequences, logits_of(output)))
            assert number or opened.read(2) > 0 < opened.read(3)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
