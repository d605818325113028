"""Generate with a KV cache in tiers, a tenth of it in fast memory, and get the tokens of a plain cache.

python examples/run_tiered.py              SmolLM2-135M-Instruct on the beginning of a file of Python's standard library
python examples/run_tiered.py book.txt     the same on the beginning of a text
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import DynamicCache

from kvpager.live.opening import open_store, plan_budget
from kvpager.live.transformers import TieredCache, load_model

CONTEXT_TOKENS, NEW_TOKENS = 400, 6


def main() -> None:
    loaded = load_model("smollm2")
    text = Path(sys.argv[1] if sys.argv[1:] else argparse.__file__).read_text(encoding="utf-8")
    prompt = torch.tensor([loaded.tokenize(text)[:CONTEXT_TOKENS]])
    budget = plan_budget(loaded.geometry, context_tokens=CONTEXT_TOKENS + NEW_TOKENS, hbm="10%")
    print(budget.describe())
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    plain = loaded.model.generate(prompt, cache=DynamicCache(config=loaded.model.config), **options)
    with TemporaryDirectory() as folder, open_store(loaded, Path(folder) / "kv", budget) as store:
        tiered = loaded.model.generate(prompt, cache=TieredCache(loaded.model, store), **options)
        counted = store.document()
    print(repr(loaded.tokenizer.decode(tiered[0, prompt.shape[1] :])))
    print(f"the same tokens as with DynamicCache: {'yes' if torch.equal(tiered, plain) else 'no'}")
    for name, tier in counted["per_tier"].items():
        print(f"{name:14}{tier['accesses']:8} accesses")
    print(f"block_hit_ratio {counted['block_hit_ratio']:.1%} ({counted['access']}), {counted['evidence']}")


if __name__ == "__main__":
    main()
