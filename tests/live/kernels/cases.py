"""Blocks in scattered slots, and the same attention in float64."""

from dataclasses import dataclass

import numpy as np


def rounded(array):
    """Round float32 to bfloat16, kept as float32."""
    bits = array.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


@dataclass
class Case:
    """A layer's blocks: KV head h owns rows counts[:h].sum() and after of keys and values."""

    query: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    tokens: np.ndarray
    slots: np.ndarray
    memory: np.ndarray
    group: int

    @property
    def heads(self):
        return np.repeat(np.arange(len(self.counts)), self.counts).astype(np.int32)

    @property
    def starts(self):
        return np.r_[0, self.counts.cumsum()].astype(np.int32)

    def exact(self, softcap=0.0):
        """Output and mass in float64, by the definition."""
        outputs, masses = [], []
        for head, count in enumerate(self.counts):
            rows = slice(self.starts[head], self.starts[head] + count)
            valid = np.arange(self.keys.shape[1]) < self.tokens[rows, None]
            query = self.query[head * self.group : (head + 1) * self.group].astype(np.float64)
            logits = query @ self.keys[rows][valid].astype(np.float64).T
            if softcap:
                logits = softcap * np.tanh(logits / softcap)
            weights = np.exp(logits - logits.max(-1, keepdims=True, initial=-np.inf)) if count else logits
            weights = weights / np.where(count, weights.sum(-1, keepdims=True), 1)
            outputs.append(weights @ self.values[rows][valid].astype(np.float64))
            shares = np.zeros((self.group, *valid.shape))
            shares[:, valid] = weights
            masses.append(shares.sum(-1).mean(0))
        return np.concatenate(outputs), np.concatenate(masses)


def make_case(*, counts, group, k_dim, v_dim, element="float32", block_size=16, last=None, seed=0, sharpness=1.0):
    """Random blocks; `last` valid tokens in each head's last block, the rest of it being NaN."""
    random = np.random.default_rng(seed)
    counts = np.asarray(counts)
    blocks = int(counts.sum())
    query = (random.standard_normal((len(counts) * group, k_dim)) * sharpness / np.sqrt(k_dim)).astype(np.float32)
    keys, values = (random.standard_normal((blocks, block_size, dim), np.float32) for dim in (k_dim, v_dim))
    if element == "bfloat16":
        keys, values = rounded(keys), rounded(values)
    tokens = np.full(blocks, block_size, np.int32)
    if last is not None:
        ends = counts.cumsum()[counts > 0] - 1
        tokens[ends] = last
        keys[ends, last:] = values[ends, last:] = np.nan
    units = np.concatenate(
        [keys.swapaxes(1, 2).reshape(blocks, k_dim * block_size), values.reshape(blocks, v_dim * block_size)], 1
    )
    units = (units.view(np.uint32) >> 16).astype(np.uint16) if element == "bfloat16" else units
    slots = random.permutation(blocks + 3)[:blocks].astype(np.int32)
    memory = np.full((blocks + 3, units.view(np.uint8).shape[1]), 0xFF, np.uint8)  # NaN in either type
    memory[slots] = units.view(np.uint8)
    return Case(query, keys, values, counts, tokens, slots, memory, group)
