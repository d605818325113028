"""The tier with vLLM's own classes around it, without an engine: jobs, failures, deadlines, tenants, names, counts."""

import time
import urllib.request
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from kvpager import store as block_store
from kvpager.errors import BadInput, StoreError
from kvpager.slab.files import aligned
from tests.stores import GatedFiles, WaywardFiles

pytestmark = [pytest.mark.engines, pytest.mark.filterwarnings("default")]

ROW = 65536  # so long that it can be lent
PATIENT = {"deadline_s": 60, "lookup_deadline_s": 30}  # a busy machine is not what is tested


@pytest.fixture(scope="module")
def config(smollm2):
    """Make an engine's config."""
    from vllm.engine.arg_utils import EngineArgs

    def make(**changes):
        return EngineArgs(model=str(smollm2), dtype="bfloat16", enforce_eager=True, **changes).create_engine_config()

    return make


@pytest.fixture(scope="module")
def plain(config):
    return config()


@pytest.fixture
def spec():
    """What vLLM tells a tier."""
    from vllm.v1.kv_offload import config

    def make(dtype="bfloat16", tokens=16, tp=1, **changes):
        group = {"tokens_per_block": tokens, "layer_names": ("0", "1")}
        if "group_id" in config.OffloadingGroupConfig.__dataclass_fields__:
            group["group_id"] = 0
        parallel = config.OffloadingParallelConfig(
            rank=0, world_size=tp, tp_size=tp, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, data_parallel_size=1,
            data_parallel_rank_local=None, is_parallelism_agnostic=False,
        )  # fmt: skip
        settings = config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(**group),), worker_kv_bytes_per_block=ROW, enable_kv_cache_events=False,
            extra_config={}, engine_id="0", model=config.OffloadingModelConfig("smollm2", dtype),
            cache=config.OffloadingCacheConfig(tokens_per_hash=tokens, blocks_per_chunk=1), parallel=parallel, **changes,
        )  # fmt: skip
        return SimpleNamespace(config=settings)

    return make


@pytest.fixture
def tier(spec, plain, tmp_path):
    """Make a tier over twelve rows of memory, and close it at the end."""
    from vllm.config import set_current_vllm_config

    from kvpager.connect.vllm import KVPagerTier

    made = []

    def make(its_spec=None, its_config=None, **options):
        rows = aligned(12 * ROW).view(np.int8).reshape(12, ROW)
        rows[:] = np.random.default_rng(len(made)).integers(-128, 127, (12, ROW), np.int8)
        options = {"path": str(tmp_path / "blocks"), "capacity": "256MiB", "weights": "one"} | PATIENT | options
        with set_current_vllm_config(its_config or plain):
            one = KVPagerTier(its_spec or spec(), memoryview(rows), "KVPagerTier", **options)
        made.append(one)
        return one, rows

    yield make
    for one in made:
        one.shutdown()


def request(name="one", **params):
    from vllm.v1.kv_offload.base import ReqContext

    return ReqContext(name, kv_transfer_params=params or None)


def keys(*numbers):
    from vllm.v1.kv_offload.base import make_offload_key

    return [make_offload_key(number.to_bytes(32), 0) for number in numbers]


def job(number, its_keys, rows, load, context=None):
    from vllm.v1.kv_offload.tiering.base import TransferJob

    ids = "chunk_ids" if "chunk_ids" in TransferJob.__dataclass_fields__ else "block_ids"
    fields = {"job_id": number, "keys": its_keys, ids: np.array(rows, np.int32), "is_promotion": load}
    return TransferJob(**fields, req_context=context or request())


def finish(tier, seconds=90):
    """The one result that is awaited."""
    deadline = time.monotonic() + seconds
    while not (results := list(tier.get_finished_jobs())):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    (result,) = results
    return result


def look(tier, its_keys, context=None, seconds=90):
    """Look up as the scheduler does, until each is known."""
    from vllm.v1.kv_offload.base import LookupResult, ScheduleEndContext

    context, deadline = context or request(), time.monotonic() + seconds
    while LookupResult.RETRY in (found := [tier.lookup(key, context) for key in its_keys]):
        assert time.monotonic() < deadline
        tier.on_schedule_end(ScheduleEndContext([], []))
        tier.get_finished_jobs()
        time.sleep(0.001)
    return [result.name for result in found]


def store(tier, its_keys, rows, number=1, context=None):
    tier.submit_store(job(number, its_keys, rows, False, context))
    return finish(tier)


def counts(tier):
    found = {}
    while (stats := tier.get_stats()) is not None:
        for name, value in stats.reduce().items():
            found[name.removeprefix("vllm:kvpager_")] = value
    return found


def test_what_was_stored_is_found_and_loaded(tier):
    one, rows = tier()
    wanted, before = keys(1, 2, 3), rows.copy()
    assert look(one, wanted) == ["MISS"] * 3
    assert store(one, wanted, [0, 1, 2]).success
    assert look(one, [*wanted, *keys(4)], request("two")) == ["HIT", "HIT", "HIT", "MISS"]
    one.submit_load(job(2, wanted, [5, 6, 7], True))
    result = finish(one)
    assert (result.job_id, result.success, list(result.successful_keys)) == (2, True, wanted)
    assert np.array_equal(rows[5:8], before[:3])
    assert np.array_equal(rows[8:], before[8:])


def test_lent_memory_is_stored_and_filled_like_any_other(tier):
    one, rows = tier(lend=True)
    assert store(one, keys(1, 2, 3), [0, 1, 2]).success
    one.submit_load(job(2, keys(3, 1), [5, 7], True))
    assert finish(one).success
    assert np.array_equal(rows[[5, 7]], rows[[2, 0]])


def test_a_job_that_fails_in_part_names_what_succeeded(tier):
    one, rows = tier()
    here, gone = keys(1, 3), keys(2)
    store(one, here, [0, 1])
    wanted, context = [here[0], gone[0], here[1]], request("two")
    assert look(one, here, context) == ["HIT", "HIT"]
    one.submit_load(job(2, wanted, [5, 6, 7], True, context))
    result = finish(one)
    assert not result.success
    assert list(result.successful_keys) == here
    assert np.array_equal(rows[[5, 7]], rows[:2])
    assert look(one, wanted, context) == ["HIT", "MISS", "HIT"]  # not asked for again and again


def test_what_is_there_is_not_written_again(tier):
    one, _ = tier()
    store(one, keys(1, 2), [0, 1])
    assert store(one, keys(1, 2, 3), [0, 1, 2], number=2).success
    said = counts(one)
    assert said["blocks_stored"] == 3
    assert said["blocks_already_stored"] == 2


def test_a_block_that_does_not_fit_is_a_failure(tier):
    one, _ = tier(capacity="12MiB", tenants={"small": "8KiB"})
    result = store(one, keys(1), [0], context=request(kvpager_tenant="small"))
    assert not result.success
    assert not result.successful_keys
    assert counts(one)["blocks_not_stored"] == 1


class Slow:
    """A store's clock: nothing is answered in time."""

    def __init__(self, real):
        self.real = real

    def __getattr__(self, name):
        return getattr(self.real, name)

    def wait(self, tickets, deadline_s):
        return []

    def contains_many(self, keys, deadline_s=None):
        time.sleep(0.3)
        return self.real.contains_many(keys, deadline_s)


def test_a_job_ends_at_its_deadline(tier):
    one, rows = tier(deadline_s=0.2, lookup_deadline_s=0.1)
    one._store = Slow(one._store)
    before, began = rows.copy(), time.monotonic()
    one.submit_load(job(1, keys(9), [3], True))
    one.submit_store(job(2, keys(8), [4], False))
    assert time.monotonic() - began < 0.1  # the scheduler was not held
    results = {}
    while len(results) < 2:
        results |= {result.job_id: result for result in one.get_finished_jobs()}
        assert time.monotonic() < began + 5
    assert not any(result.success or result.successful_keys for result in results.values())
    assert np.array_equal(rows, before)


@pytest.mark.parametrize("lend", [False, True])
def test_memory_goes_back_to_vllm_when_nobody_writes_into_it_any_longer(tier, monkeypatch, lend):
    """A disk that hangs: a copied job fails at its deadline, a lent one when the disk lets go; nobody waits for either."""
    files = GatedFiles()
    monkeypatch.setattr("kvpager.store.opening.Files", lambda: files)
    one, rows = tier(deadline_s=1.0, lend=lend)
    assert store(one, keys(1), [0]).success
    files.read_gate.clear()
    try:
        began = time.monotonic()
        one.submit_load(job(2, keys(1), [5], True))
        results = []
        while not results and time.monotonic() < began + 3:
            results = list(one.get_finished_jobs())
            time.sleep(0.01)
        assert bool(results) == (not lend)
        before = rows[5].copy()
    finally:
        files.read_gate.set()
    (result,) = results or [finish(one)]
    assert not result.success
    rows[5] = 1  # whatever vLLM does with it now
    time.sleep(0.3)
    assert (rows[5] == 1).all()
    assert lend or not np.array_equal(before, rows[0])


def test_a_lookup_ends_at_its_deadline_as_a_miss(tier):
    one, _ = tier(lookup_deadline_s=0.1)
    store(one, keys(1), [0])
    one._store = Slow(one._store)
    assert look(one, keys(1), request("two")) == ["MISS"]
    assert counts(one)["blocks_late"] == 1


def test_drain_leaves_nothing_under_way(tier):
    one, _ = tier()
    for number in range(6):
        one.submit_store(job(number, keys(number), [number], False))
    one.drain_jobs()
    assert sorted(result.job_id for result in one.get_finished_jobs()) == list(range(6))


def test_a_closed_store_is_a_failure_not_a_crash(tier):
    one, _ = tier()
    store(one, keys(1), [0])
    one._store.close()
    one.submit_load(job(2, keys(1), [5], True))
    assert not finish(one).success
    one.submit_store(job(3, keys(2), [5], False))
    assert not finish(one).success
    assert look(one, keys(1), request("two")) == ["MISS"]


def test_tenants_see_their_own(tier):
    one, _ = tier(tenants={"a": "64MiB", "b": "64MiB"})
    store(one, keys(1), [0], context=request("a1", kvpager_tenant="a"))
    assert look(one, keys(1), request("a2", kvpager_tenant="a")) == ["HIT"]
    assert look(one, keys(1), request("b1", kvpager_tenant="b")) == ["MISS"]
    assert look(one, keys(1), request("nobody", kvpager_tenant="c")) == ["MISS"]
    assert look(one, keys(1), request("nothing")) == ["MISS"]


def test_blocks_stand_behind_the_ones_before_them(tier):
    one, _ = tier()
    context, wanted = request(), keys(1, 2, 3)
    if hasattr(context, "set_offload_key_position"):  # vLLM notes the whole prompt, and stores what is new
        for number, key in enumerate(wanted):
            context.set_offload_key_position(key, 16 * number)
        store(one, wanted[:1], [0], context=context)
        store(one, wanted[1:], [1, 2], number=2, context=context)
    else:
        store(one, wanted, [0, 1, 2], context=context)
    parents = {info.digest: info.parent for info in one._store.scan()}
    first, second, third = map(one._store.digest, wanted)
    assert parents == {first: b"", second: first, third: second}


@pytest.mark.parametrize(
    "other",
    [
        {"weights": "two"}, {"tenant": "another"}, {"lora": "adapters of May"}, {"dtype": "fp8_e4m3"}, {"tokens": 32}, {"tp": 2},
        {"canonical_layout": True}, {"engine": {"load_format": "dummy"}},
        {"engine": {"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}}},
    ],
    ids=str,
)  # fmt: skip
def test_an_engine_that_differs_sees_none_of_the_blocks(tier, spec, config, other):
    one, _ = tier()
    store(one, keys(1), [0])
    one.shutdown()
    options = {name: value for name, value in other.items() if name in ("weights", "tenant", "lora")}
    says = {name: value for name, value in other.items() if name in ("dtype", "tokens", "tp", "canonical_layout")}
    two, _ = tier(spec(**says), config(**other["engine"]) if "engine" in other else None, **options)
    assert look(two, keys(1)) == ["MISS"]
    two.shutdown()
    same, _ = tier()
    assert look(same, keys(1)) == ["HIT"]


def test_weights_are_read_if_nothing_is_said_of_them(tier, plain):
    from pathlib import Path

    from kvpager.connect.weights import weights_id

    one, _ = tier(weights="")
    store(one, keys(1), [0])
    one.shutdown()
    same, _ = tier(weights=weights_id(Path(plain.model_config.model)))
    assert look(same, keys(1)) == ["HIT"]


def test_what_cannot_be_trusted_is_refused(tier, spec, config, plain, tmp_path):
    from kvpager.connect.vllm import KVPagerTier

    view = memoryview(np.zeros((2, ROW), np.int8))
    with pytest.raises(BadInput, match="KVPagerConnector"):  # vLLM's own connector names no model
        KVPagerTier(spec(), view, "KVPagerTier", path=str(tmp_path / "x"), capacity="64MiB")
    with pytest.raises(BadInput, match="sha256"):
        tier(its_config=config(prefix_caching_hash_algo="xxhash"))
    with pytest.raises(BadInput, match="set lora"):
        tier(its_config=config(enable_lora=True))
    (tmp_path / "blocks").write_text("a file")
    with pytest.raises(StoreError, match="blocks"):
        tier()


def test_a_row_too_long_for_a_block(spec, plain, tmp_path):
    from vllm.config import set_current_vllm_config

    from kvpager.connect.vllm import KVPagerTier

    view = memoryview(np.zeros((1, (64 << 20) + 4096), np.int8))
    with set_current_vllm_config(plain), pytest.raises(BadInput, match="smaller block_size"):
        KVPagerTier(spec(), view, "KVPagerTier", path=str(tmp_path / "x"), capacity="64MiB")


def test_all_that_is_told_is_announced(tier):
    from kvpager.connect.vllm import KVPagerTier

    announced = KVPagerTier.build_metric_definitions({})
    one, _ = tier(refresh_s=0)
    store(one, keys(1), [0])
    look(one, keys(1), request("two"))
    told = set()
    for _ in range(200):
        stats = one.get_stats()
        told |= set(stats.reduce()) if stats else set()
        time.sleep(0.002)
    assert told <= set(announced)
    assert {"vllm:kvpager_blocks_found", "vllm:kvpager_store_blocks", "vllm:kvpager_store_quarantined"} <= told


class Counting:
    """A store that counts what is asked of it."""

    def __init__(self, real):
        self.real, self.calls = real, Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self.real, name)


def ask_and_load(tier, its_keys, name):
    """A request as vLLM makes it: it loads what it is told is there, from the front."""
    context = request(name)
    for number, key in enumerate(its_keys):
        if hasattr(context, "set_offload_key_position"):
            context.set_offload_key_position(key, 16 * (number + 1))
    hits = look(tier, its_keys, context).count("HIT")
    if hits:
        tier.submit_load(job(1, its_keys[:hits], range(4, 4 + hits), True, context))
        assert finish(tier).success
    tier.on_request_finished(context)
    return hits


def test_a_slow_disk_is_left_alone_after_a_few_loads(tier, monkeypatch):
    files = WaywardFiles()
    monkeypatch.setattr(block_store, "open", partial(block_store.open, files=files))
    one, rows = tier(prefill_tokens_per_s=100_000)
    wanted = keys(1, 2, 3, 4)
    store(one, wanted, [0, 1, 2, 3])
    files.delay_s = 0.05
    loaded = [ask_and_load(one, wanted, f"request {number}") for number in range(12)]
    assert loaded == [1, *[0] * 11]  # one block, to measure
    assert np.array_equal(rows[4], rows[0])
    said = counts(one)
    assert said["blocks_found"] == 48  # what the store has, declined or not
    assert said["gate_blocks_fetched"] == said["gate_decided_unknown"] == said["blocks_loaded"] == 1
    assert said["gate_blocks_declined"] == 47
    assert said["gate_decided_decline"] == 11
    assert said["gate_saved_estimate_seconds"] > 10 * 0.04


def test_a_disk_that_is_fast_enough_is_read(tier):
    one, _ = tier(prefill_tokens_per_s=0.1)
    wanted = keys(1, 2, 3, 4)
    store(one, wanted, [0, 1, 2, 3])
    assert [ask_and_load(one, wanted, f"request {number}") for number in range(4)] == [1, 4, 4, 4]
    assert counts(one)["gate_saved_measured_seconds"] > 3 * 500


def test_without_reuse_the_gate_costs_nothing(tier):
    asked = {}
    for gate in (True, False):
        one, _ = tier(prefill_tokens_per_s=1000, gate=gate)
        one._store = counting = Counting(one._store)
        assert ask_and_load(one, keys(1, 2, 3, 4), "one") == 0
        asked[gate] = counting.calls
        assert not any(name.startswith("gate_") for name in counts(one))
        one.shutdown()
    assert asked[True] == asked[False]
    assert asked[True]["contains_many"] == 1  # one question for all


def test_the_gate_is_off_unless_the_speed_is_told(tier, spec):
    one, _ = tier()
    assert one._offers is None
    store(one, keys(1, 2), [0, 1])
    assert ask_and_load(one, keys(1, 2), "one") == 2
    with pytest.raises(BadInput, match="prefill_tokens_per_s"):
        tier(gate=True)
    two_groups = spec()
    object.__setattr__(two_groups.config, "groups", two_groups.config.groups * 2)
    with pytest.raises(BadInput, match="whole context"):
        tier(two_groups, prefill_tokens_per_s=1000)


def test_metrics_on_a_port(tier, tmp_path):
    one, _ = tier(prefill_tokens_per_s=1000, metrics_port=0)
    store(one, keys(1), [0])
    ask_and_load(one, keys(1), "one")
    with urllib.request.urlopen(one._endpoint.url) as page:
        text = page.read().decode()
    assert 'kvpager_gate_decisions_total{choice="unknown"} 1.0' in text
    assert 'kvpager_store_blocks{tier="disk"} 1.0' in text
    taken = int(one._endpoint.url.split(":")[2].split("/")[0])
    with pytest.raises(BadInput, match="another port"):
        tier(metrics_port=taken, path=str(tmp_path / "another"))
    again, _ = tier(path=str(tmp_path / "another"))  # which was given back
    assert again._endpoint is None


def test_the_policy_behind_vllms_own_door():
    from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

    manager = CPUOffloadingManager(4, cache_policy="LeafFirst", cache_policy_module_path="kvpager.connect.vllm_policy")
    one, two = request("one"), request("two")
    prompts = {"one": keys(1, 2, 3), "two": keys(1, 4, 5)}

    def put(context, chosen):
        manager.on_new_request(context)
        for number, key in enumerate(prompts[context.req_id]):
            if hasattr(context, "set_offload_key_position"):
                context.set_offload_key_position(key, 16 * number)
        if not hasattr(context, "set_offload_key_position"):  # vLLM 0.28 touches a prompt's keys first
            manager.touch(prompts[context.req_id], context)
        said = manager.prepare_store(chosen, context)
        if said is not None:
            manager.complete_store(chosen, context)
            manager.on_request_finished(context)
        return said

    assert put(one, keys(1, 2, 3)).evicted_keys == []
    assert put(two, keys(1, 4, 5)).evicted_keys == keys(3)  # not 1, the oldest, which both continue
    assert [manager.lookup(key, one).name for key in keys(1, 2, 3, 4, 5)] == ["HIT", "HIT", "MISS", "HIT", "HIT"]
