"""What the tests of pager, policies and replay share: small streams, scripted demand, logged runs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvpager.core import HBM, Demand, Tick
from kvpager.policies import make_policy
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import configure
from kvpager.replay.attention import Replay
from kvpager.replay.stream import Setting, make_stream
from kvpager.testing.recordings import synthetic_recording


@dataclass
class Scripted:
    """A selector that reads what it is told: masks ``[step][layer]`` bool [kv_heads, blocks]."""

    masks: list
    needs: ClassVar[frozenset[str]] = frozenset()
    residency_free: ClassVar[bool] = True

    def describe(self) -> str:
        return "scripted"

    def select(self, view):
        mask = np.zeros(view.resident.shape, bool)
        told = self.masks[view.tick.step][view.tick.layer]
        mask[:, : told.shape[1]] = told[:, : mask.shape[1]]
        return mask


def small_recording(seed=0, *, layers=2, heads=2, context=24, steps=14, block_size=4):
    return synthetic_recording(
        num_layers=layers,
        num_kv_heads=heads,
        context_tokens=context,
        steps=steps,
        block_size=block_size,
        prefill_queries=4,
        seed=seed,
    )


def random_masks(rng, recording, density):
    header = recording.header
    shape = (recording.steps, len(header.layers), header.num_kv_heads, recording.blocks)
    return list(rng.random(shape) < density)


def small_stream(seed=0, density=0.35, setting=None, **shape):
    recording = small_recording(seed, **shape)
    return make_stream(recording, Scripted(random_masks(np.random.default_rng(seed), recording, density)), setting or Setting())


def logged(stream, policy, capacity, pool="global", *, prefetcher=None, seed=0, warmup=0, dram_units=0, prefetch_share=0.1):
    """Run the fast replay with all checks on; return it and its log of (tick, hits, residents after the tick)."""
    replay = Replay(
        stream,
        make_policy(policy) if isinstance(policy, str) else policy,
        capacity,
        pool=pool,
        prefetcher=configure(PREFETCHERS, prefetcher) if isinstance(prefetcher, str) else prefetcher,
        prefetch_share=prefetch_share,
        dram_units=dram_units,
        seed=seed,
        warmup=warmup,
        check=True,
    )
    log = []
    replay.prefetches = []
    request, place, prefetch = replay.pager.request, replay.pager.place, replay.pager.prefetch
    hits = []

    def watched_request(demand: Demand):
        grant = request(demand)
        hits[:] = demand.units[grant.tier <= HBM].tolist()
        replay.last_round = len(grant.rounds) - 1
        return grant

    def watched_place(tick: Tick, round: int):
        moves = place(tick, round)
        if tick.step >= 0 and round == replay.last_round:
            everything = np.arange(len(replay.pager.pages.where), dtype=np.int32)
            log.append((tuple(tick), list(hits), everything[replay.pager.resident(everything)].tolist()))
        return moves

    def watched_prefetch(tick: Tick, ahead):
        moves = prefetch(tick, ahead)
        replay.prefetches += [(tuple(tick), move.units.tolist()) for move in moves if move.why == "prefetch"]
        return moves

    replay.pager.request, replay.pager.place, replay.pager.prefetch = watched_request, watched_place, watched_prefetch
    replay.counts = replay.run()
    return replay, log
