"""Law 3 on real runs: a tiny model's selective `generate` replays move by move, and predicts runs that were never recorded."""

from functools import partial

import pytest
from tests.live.families import BLOCK, generate, ids_of, live, settle, tiny_once

from kvpager.core import KVGeometry, LayerKV
from kvpager.replay.run import replay_run
from kvpager.runlog import LoggedDriver, LoggedTable
from kvpager.traces.run import RunHeader
from kvpager.traces.runcounts import RunTally
from kvpager.traces.runstore import RunWriter, read_run

PROMPT, NEW = 200, 16
SELECTIVE = {"selective": True, "selector": "key_bound:read_fraction=0.2"}


def run(folder, *, sink=None, rows=1, hbm="20%", dram=0, lockstep=True, **settings):
    """Generate over a logged store; return its header, its counts and the tokens."""
    model = tiny_once("llama")
    tally = RunTally()

    def told(event):
        tally(event)
        if sink is not None:
            sink(event)

    ids = ids_of(rows, PROMPT)
    with live(
        model, folder, context=PROMPT + NEW, rows=rows, hbm=hbm, dram=dram, lockstep=lockstep,
        driver=partial(LoggedDriver, sink=told), make_table=partial(LoggedTable, sink=told), **(SELECTIVE | settings),
    ) as opened:  # fmt: skip
        store = opened.store
        options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "prefill_chunk_size": 64}
        tokens = generate(model, opened.cache, ids, **options).sequences.tolist()
        settle(opened)
        layout, pager = store.layout, store.pager
        layer = LayerKV(layout.kv_heads, layout.k_dim, layout.v_dim)
        header = RunHeader(
            model="tiny", weights_sha256="0" * 64, geometry=KVGeometry("tiny", "llama", 4, 4, (layer,) * layout.layers),
            layers=store.layer_numbers, num_kv_heads=layout.kv_heads, block_size=BLOCK, granularity=store.table.granularity,
            unit_bytes=store.table.unit_bytes, mode="selective", selector=SELECTIVE["selector"], policy=store.policy_text,
            budget=pager.budget, pool=pager.pools.kind, seed=pager.seed, lanes=pager.lanes, lockstep=lockstep,
        )  # fmt: skip
        return header, tally.counts.document(store.driver.tiers, store.table.unit_bytes), tokens


def record(folder, **settings):
    """The same, on disk."""
    events = []
    header, counts, tokens = run(folder / "store", sink=events.append, **settings)
    with RunWriter(folder / "run.zarr", header) as writer:
        for event in events:
            writer.append(event)
        writer.close(counts)
    return read_run(folder / "run.zarr"), tokens


@pytest.mark.parametrize("settings", [{}, {"dram": "10%"}, {"rows": 2, "policy": "blend"}, {"lockstep": False}], ids=str)
def test_the_log_of_a_real_run_replays(tmp_path, settings):
    recording, _ = record(tmp_path, **settings)
    found = replay_run(recording, check=True)
    assert found.moves_identical > 150
    assert found.document == recording.counts


def test_a_real_run_predicts_others_that_are_made_but_not_recorded(tmp_path):
    recording, tokens = record(tmp_path, policy="lru")
    for number, (policy, hbm, dram) in enumerate([("ema", "15%", 0), ("blend", "40%", "20%"), ("lfu", "25%", 0)]):
        header, counts, mine = run(tmp_path / f"{number}", policy=policy, hbm=hbm, dram=dram)
        assert mine == tokens
        found = replay_run(recording, policy=policy, hbm_units=header.hbm_units, dram_units=header.dram_units)
        assert found.document == counts
        assert counts["loads"] > 0
        assert counts["block_hits"] > 0
        other = replay_run(recording, policy="random", hbm_units=header.hbm_units, dram_units=header.dram_units)
        assert other.document != counts, "or this test says nothing"
