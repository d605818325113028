"""SmolLM2 over tiers: each way of generating, exactly, with a tenth of its KV in HBM."""

import argparse
import functools
from pathlib import Path

import pytest
import torch
from tests.live.families import adds_up, ends_clean, generate, live, logits_of, stock

from kvpager.core import DRAM, NVME
from kvpager.live.transformers import load_model

PROMPT, NEW = 1056, 8
MODES = {
    "padded": (2, {}),
    "beams": (4, {"num_beams": 4}),
    "samples": (3, {"do_sample": True, "num_return_sequences": 3}),
    "chunks": (1, {"prefill_chunk_size": 256}),
    "lookup": (1, {"prompt_lookup_num_tokens": 4}),
}

pytestmark = pytest.mark.long


@functools.cache
def smollm2():
    return load_model("smollm2")


def prompt(mode):
    ids = torch.tensor([smollm2().tokenize(Path(argparse.__file__).read_text(encoding="utf-8"))[:PROMPT]])
    mask = torch.ones_like(ids)
    if mode == "padded":
        ids, mask = ids.repeat(2, 1), mask.repeat(2, 1)
        ids[0, :19], mask[0, :19] = 0, 0
    return ids, mask


@pytest.mark.parametrize("mode", MODES)
def test_real_weights_give_the_tokens_and_logits_of_a_dynamic_cache(mode, tmp_path):
    model, (rows, options), (ids, mask) = smollm2().model, MODES[mode], prompt(mode)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW} | options
    expected = generate(model, stock(model), ids, mask, **options)
    sizes = {"hbm": "10%", "dram": "10%", "policy": "blend"}
    with live(
        model, tmp_path, context=PROMPT + NEW + 8, rows=rows, block_size=16, disk_bytes=512 << 20, lockstep=False, **sizes
    ) as opened:  # fmt: skip
        found = generate(model, opened.cache, ids, mask, **options)
        assert min(len(row.bases) for row in opened.cache.batch.rows) >= 64
        adds_up(opened)
        assert opened.read(DRAM) > 0 < opened.read(NVME)
        ends_clean(opened)
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(logits_of(found), logits_of(expected), atol=1e-4, rtol=0)
