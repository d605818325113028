"""The metrics: what is exported is what store and gate say, under bounded labels, and the dashboard names nothing else."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from tests.store.blocks import block_of
from tests.stores import GatedFiles

from kvpager.errors import BadInput
from kvpager.slab.files import Files
from kvpager.store.blockstore import BlockStore
from kvpager.store.client import Client
from kvpager.store.dashboard import dashboard
from kvpager.store.engine import Settings
from kvpager.store.gate import CHOICES, Gate
from kvpager.store.journal import DEPARTURES, EVICTED_FOR
from kvpager.store.keys import Namespace
from kvpager.store.metrics import METRICS, MOST_TENANTS, Endpoint, samples


@pytest.fixture
def served():
    """Endpoints on free ports, closed at the end."""
    opened = []

    def serve(blocks, **more):
        opened.append(Endpoint(blocks, 0, **more))
        return opened[-1]

    yield serve
    for one in opened:
        one.close()


def scrape(endpoint):
    """Samples by name and labels, as Prometheus reads them."""
    with urllib.request.urlopen(endpoint.url, timeout=20) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def busy(made):
    """A store with a bit of everything, and a gate."""
    store = made(capacity=1 << 17, watermarks=(1.0, 1.0), quotas={b"a": 40_000})
    for tenant in (b"a", b"b"):
        mine = store.of_tenant(tenant)
        for number in range(20):
            assert mine.put(b"%d" % number, block_of(4000))
        assert mine.get(b"19", bytearray(4000))
        assert not mine.get(b"none", bytearray(4000))
    gate = Gate(16)
    gate.prefilled(64, 0, 0.1)
    for _ in range(3):
        gate.fetched(4000, 1e-3, gate.decide(3, 4000, 0))
    return store, gate


def test_each_metric_is_exported_and_true(made, served):
    store, gate = busy(made)
    found = scrape(served(store, gate=gate))
    said, decided, tier = store.stats(), gate.stats(), (("tier", "disk"),)
    for metric in METRICS:
        name = metric.name + ("_count" if metric.kind == "histogram" else "")
        assert any(one == name for one, _ in found), f"{metric.name} is not exported"
    assert found["kvpager_store_requests_total", tier] == said["asked"] == 4
    assert found["kvpager_store_hits_total", tier] == 2
    assert found["kvpager_store_misses_total", tier] == 2
    assert found["kvpager_store_written_bytes_total", tier] == 160_000
    assert found["kvpager_store_held_bytes", tier] == said["held_bytes"] > 0
    evicted = {labels: value for (name, labels), value in found.items() if name == "kvpager_store_evictions_total"}
    assert sum(evicted.values()) == said["evicted"] > 0
    assert evicted[("cause", "quota"), ("tier", "disk")] > 0
    buckets = [value for (name, _), value in found.items() if name == "kvpager_store_read_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["kvpager_store_read_seconds_count", tier] == 2
    assert {value for (name, _), value in found.items() if name == "kvpager_store_unaccounted"} == {0.0}
    choices = {labels[0][1]: value for (name, labels), value in found.items() if name == "kvpager_gate_decisions_total"}
    assert choices == decided["decisions"]
    assert set(choices) == set(CHOICES)
    assert found["kvpager_gate_fetch_bytes_per_s", ()] == pytest.approx(1 / decided["fetch_rates"][0])


def test_conservation_as_prometheus_sees_it(made, served):
    """Hits, misses and failures are the requests; what came and did not leave is held."""
    store, _ = busy(made)
    found = scrape(served(store))

    def total(name):
        return sum(value for (one, _), value in found.items() if one == f"kvpager_store_{name}")

    assert total("requests_total") == total("hits_total") + total("misses_total") + total("failures_total")
    assert total("puts_total") == total("stored_total") + total("refused_total") + total("unwritten_total")
    assert total("held_bytes") == total("written_bytes_total") - total("evicted_bytes_total") - total("removed_bytes_total")


def test_tenants_are_few_whatever_happens(made, served):
    """The largest are named; the sum is true all the same, and no salt is shown."""
    store = made(capacity="16MiB", quotas={b"tenant 1": "1MiB", **{b"idle %d" % number: 1 << 20 for number in range(50)}})
    for number in range(3 * MOST_TENANTS):
        assert store.of_tenant(b"tenant %d" % number).put(b"0", block_of(100 if number else 30_000))
    found = scrape(served(store))
    used = {labels[0][1]: value for (name, labels), value in found.items() if name == "kvpager_store_tenant_used_bytes"}
    assert len(used) == MOST_TENANTS + 1
    assert sum(used.values()) == store.stats()["used_bytes"]
    assert max((value, name) for name, value in used.items() if name != "other")[1] == next(
        one.tenant.hex()[:12] for one in store.scan(everyone=True) if one.length == 30_000
    )
    quotas = [labels[0][1] for (name, labels) in found if name == "kvpager_store_tenant_quota_bytes"]
    assert len(quotas) <= MOST_TENANTS + 1
    assert all(re.fullmatch(r"[0-9a-f]{12}|other", name) for name in [*used, *quotas])


def test_labels_are_bounded():
    """By lists that stand in the code; tenants are the other test's."""
    assert {label for metric in METRICS for label in metric.labels} == {
        "tier", "cause", "tenant", "what", "choice", "chosen", "by"
    }  # fmt: skip
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"kvpager_(store|gate)_[a-z_]+", name) for name in names)
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in METRICS)
    assert set(EVICTED_FOR) < set(DEPARTURES)


def test_a_store_that_does_not_answer_is_down(made, served, monkeypatch):
    monkeypatch.setattr("kvpager.store.metrics._SCRAPE_S", 0.1)
    files = GatedFiles()
    store = made(files=files)
    endpoint = served(store)
    assert scrape(endpoint)["kvpager_store_up", ()] == 1
    monkeypatch.setattr(store, "stats", lambda seconds: {})
    assert scrape(endpoint) == {("kvpager_store_up", ()): 0}
    monkeypatch.undo()
    store.close()
    assert scrape(endpoint) == {("kvpager_store_up", ()): 0}


def test_a_client_of_the_store_exports_the_same(made, served, tmp_path):
    """Whoever asks: the owner counts."""
    store, _ = busy(made)
    settings = Settings(tmp_path / "store", 0, "lru", {}, 0.9, 0.95, 60.0, 1 << 20, Files())
    client = BlockStore(Client(settings, 10.0), Namespace(), b"", 10.0)
    assert scrape(served(client)) == scrape(served(store))
    client.close()


def test_nothing_global_is_touched(made, served):
    before = {family.name for family in REGISTRY.collect()}
    served(made())
    served(made("another"))
    assert {family.name for family in REGISTRY.collect()} == before


def test_a_port_in_use_is_refused(made):
    with socket.create_server(("127.0.0.1", 0)) as door, pytest.raises(BadInput, match="give another port") as told:
        Endpoint(made(), door.getsockname()[1])
    assert "\n" not in str(told.value)
    with pytest.raises(BadInput, match="give another port or address"):
        Endpoint(made("b"), 0, "203.0.113.7")


def test_only_this_machine_can_reach_it(made, served):
    endpoint = served(made())
    assert endpoint.url.startswith("http://127.0.0.1:")
    assert endpoint._server.server_address[0] == "127.0.0.1"


def test_the_dashboard_names_what_is_exported(made):
    store, gate = busy(made)
    exported = set()
    for metric, _ in samples(store.stats(), gate.stats()):
        exported |= (
            {metric.name} if metric.kind != "histogram" else {f"{metric.name}_{end}" for end in ("bucket", "sum", "count")}
        )
    panels = dashboard()["panels"]
    named = {name for panel in panels for target in panel["targets"] for name in re.findall(r"kvpager_\w+", target["expr"])}
    assert named <= exported
    shown = {re.sub("_bucket$", "", name) for name in named}
    missing = {metric.name for metric in METRICS} - shown
    assert missing <= {
        "kvpager_store_puts_total", "kvpager_store_removals_total", "kvpager_store_removed_bytes_total", "kvpager_store_blocks",
        "kvpager_gate_blocks_total", "kvpager_gate_bytes_total", "kvpager_gate_failed_share", "kvpager_gate_fetch_seconds",
    }, "a new metric has its place on the dashboard, or in this list"  # fmt: skip
    assert len({panel["id"] for panel in panels}) == len(panels)
    page = Path(__file__).resolve().parents[2] / "docs" / "grafana.json"
    assert json.loads(page.read_text()) == dashboard(), "run make tables"
