"""Fetch against recompute, by where the block lies."""

from __future__ import annotations

from experiments.pictures.marks import Picture, Rows, lines, spread

CLAIMS = ("interior-prefix", "gap-widens", "recompute of 16 tokens on a small model")
CASES = {
    "missing": "whole context computed again",
    "tail": "last block computed, prefix at hand",
    "interior": "inner block computed, prefix at hand",
    "decode": "one token decoded",
    "copy": "block copied from host memory",
}


def draw(rows: Rows) -> Picture:
    """Seconds by context and way to get a block back."""
    contexts = sorted({row["context_tokens"] for row in rows})
    found = [
        {"at": context, "series": told}
        | spread((row["seconds"] for row in rows if (row["case"], row["context_tokens"]) == (case, context)), 1000)
        for case, told in CASES.items()
        for context in contexts
    ]
    chart = lines(found, "context, tokens", "ms", series=list(CASES.values()), log="xy", ticks=[float(one) for one in contexts])
    return (
        chart,
        "What it takes to have 16 tokens' KV back",
        "SmolLM2-135M on this machine's processor, mean and 95 % interval over repeats, measured",
    )
