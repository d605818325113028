"""A store's counts, and a gate's, as metrics for Prometheus: what each means, and the small server that gives them out.

`METRICS` is the one list: the endpoint, the table in docs/operations.md and the test of the dashboard are made from it.
Labels are bounded: tiers, causes and choices are fixed, of tenants the largest are named, by a part of the id they have on
disk, and the others are summed up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kvpager.errors import BadInput, KVPagerError
from kvpager.store.blockstore import BlockStore
from kvpager.store.gate import Gate
from kvpager.store.journal import DEPARTURES, EVICTED_FOR

__all__ = ["METRICS", "Endpoint", "Metric", "samples"]

MOST_TENANTS = 20
OTHERS = "other"
_SCRAPE_S = 5.0
_TIER = "disk"

Said = dict[str, Any]
Values = Iterable[tuple[tuple[str, ...], Any]]


class Metric(NamedTuple):
    """One name that is exported."""

    name: str
    """As in Prometheus."""
    kind: str
    """counter, gauge or histogram."""
    help: str
    """What it is."""
    labels: tuple[str, ...]
    """Of each value."""
    read: Callable[[Said], Values]
    """Values with their labels, out of `BlockStore.stats` or `Gate.stats`; of a histogram its document."""
    of: str = "store"
    """store or gate."""


def _one(key: str) -> Callable[[Said], Values]:
    return lambda said: [((), said[key])]


def _of_tier(key: str) -> Callable[[Said], Values]:
    return lambda said: [((_TIER,), said[key])]


def _histogram(key: str) -> Callable[[Said], Values]:
    return lambda said: [((_TIER,), said["journal"][key])]


def _by(labels: Iterable[str], *keys: str) -> Callable[[Said], Values]:
    def read(said: Said) -> Values:
        found = said
        for key in keys:
            found = found[key]
        return [((label,), found[label]) for label in labels]

    return read


def _gone(*causes: str) -> Callable[[Said], Values]:
    return lambda said: [((_TIER, cause), said["journal"]["left_blocks"][cause]) for cause in causes]


def _gone_bytes(*causes: str) -> Callable[[Said], Values]:
    return lambda said: [((_TIER, cause), said["journal"]["left_bytes"][cause]) for cause in causes]


def _tenants(key: str) -> Callable[[Said], Values]:
    def read(said: Said) -> Values:
        ids = sorted({*said["tenants"], *said["quotas"]}, key=lambda one: (-said["tenants"].get(one, 0), one))
        found: Counter[str] = Counter()
        for number, one in enumerate(ids):
            if one in said[key]:
                found[one[:12] if number < MOST_TENANTS else OTHERS] += said[key][one]
        return [((name,), value) for name, value in found.items()]

    return read


def _speed(key: str, number: int, *, inverse: bool = False) -> Callable[[Said], Values]:
    def read(said: Said) -> Values:
        rate = said[key][number] if said[key] else 0.0
        return [((), 1 / rate if inverse else rate)] if rate or not inverse else []

    return read


_OTHER_CAUSES = tuple(cause for cause in DEPARTURES if cause not in EVICTED_FOR)
_TIERS, _CAUSES = ("tier",), ("tier", "cause")

METRICS = tuple(
    Metric(f"kvpager_{one[0]}", *one[1:])
    for one in (
        ("store_requests_total", "counter", "Blocks asked for: hits, misses and failures.", _TIERS, _of_tier("asked")),
        ("store_hits_total", "counter", "Blocks served.", _TIERS, _of_tier("hits")),
        ("store_misses_total", "counter", "Blocks asked for and not held.", _TIERS, _of_tier("misses")),
        ("store_failures_total", "counter", "Blocks held and not served.", _TIERS, _of_tier("failed")),
        ("store_corrupt_total", "counter", "Reads that did not match or that the disk refused.", _TIERS, _of_tier("quarantined")),
        ("store_deadlines_missed_total", "counter", "Reads that did not come in time.", _TIERS, _of_tier("late")),
        ("store_read_bytes_total", "counter", "Payload of blocks served.", _TIERS, _of_tier("read_bytes")),
        ("store_puts_total", "counter", "Blocks handed in.", _TIERS, _of_tier("put")),
        ("store_stored_total", "counter", "Blocks acknowledged.", _TIERS, _of_tier("stored")),
        ("store_refused_total", "counter", "Blocks for which there was no room, or nobody waited.", _TIERS, _of_tier("refused")),
        ("store_unwritten_total", "counter", "Blocks that the disk refused.", _TIERS, _of_tier("unwritten")),
        ("store_written_bytes_total", "counter", "Payload of blocks acknowledged.", _TIERS, _of_tier("written_bytes")),
        ("store_read_seconds", "histogram", "From a request to each block served.", _TIERS, _histogram("read_s")),
        ("store_write_seconds", "histogram", "From a request to each acknowledgement.", _TIERS, _histogram("write_s")),
        ("store_lifetime_seconds", "histogram", "From acknowledgement to leaving.", _TIERS, _histogram("lifetime_s")),
        ("store_idle_before_evict_seconds", "histogram", "From the last use to eviction.", _TIERS, _histogram("idle_s")),
        ("store_reuse_gap_seconds", "histogram", "From one use to the next read.", _TIERS, _histogram("reuse_s")),
        ("store_evictions_total", "counter", "Blocks that left to make room.", _CAUSES, _gone(*EVICTED_FOR)),
        ("store_evicted_bytes_total", "counter", "Payload of those.", _CAUSES, _gone_bytes(*EVICTED_FOR)),
        ("store_removals_total", "counter", "Blocks that left for another reason.", _CAUSES, _gone(*_OTHER_CAUSES)),
        ("store_removed_bytes_total", "counter", "Payload of those.", _CAUSES, _gone_bytes(*_OTHER_CAUSES)),
        ("store_blocks", "gauge", "Blocks held.", _TIERS, _of_tier("blocks")),
        ("store_held_bytes", "gauge", "Payload held.", _TIERS, _of_tier("held_bytes")),
        ("store_used_bytes", "gauge", "What blocks take on disk.", _TIERS, _of_tier("used_bytes")),
        ("store_disk_bytes", "gauge", "All slab files, and what is set aside.", _TIERS, _of_tier("disk_bytes")),
        ("store_capacity_bytes", "gauge", "What the disk bytes never exceed.", _TIERS, _of_tier("capacity_bytes")),
        ("store_set_aside_bytes", "gauge", "Found, and not this store's.", _TIERS, _of_tier("set_aside_bytes")),
        ("store_checksum_failures_total", "counter", "Records that did not match.", _TIERS, _of_tier("checksum_failures")),
        ("store_io_errors_total", "counter", "Calls that the disk refused.", _TIERS, _of_tier("io_errors")),
        ("store_tenant_used_bytes", "gauge", "Of the largest tenants, on disk.", ("tenant",), _tenants("tenants")),
        ("store_tenant_quota_bytes", "gauge", "What those may take.", ("tenant",), _tenants("quotas")),
        (
            "store_unaccounted", "gauge", "By how much the counts do not add up: 0, else it is a bug.", ("what",),
            _by(("reads", "writes", "bytes"), "unaccounted"),
        ),
        ("store_log_events_lost_total", "counter", "Events that are not in the log.", (), _one("events_lost")),
        ("store_up", "gauge", "Whether the store's owner answers.", (), _one("up")),
        (
            "gate_decisions_total", "counter", "Prefixes by what was chosen.", ("choice",),
            lambda said: [((choice,), count) for choice, count in said["decisions"].items()], "gate",
        ),
        ("gate_blocks_total", "counter", "Blocks offered.", ("chosen",), _by(("fetched", "declined"), "blocks"), "gate"),
        ("gate_bytes_total", "counter", "Payload offered.", ("chosen",), _by(("fetched", "declined"), "bytes"), "gate"),
        (
            "gate_saved_seconds", "gauge", "Against the other choice.", ("by",), _by(("estimate", "measurement"), "saved_s"),
            "gate",
        ),
        ("gate_regret_seconds_total", "counter", "Choices that took longer than the other.", (), _one("regret_s"), "gate"),
        ("gate_explored_seconds_total", "counter", "Expected to be lost to learn.", (), _one("explored_s"), "gate"),
        ("gate_failed_share", "gauge", "Of the last fetches.", (), _one("failed_share"), "gate"),
        ("gate_fetch_bytes_per_s", "gauge", "Beside a fetch's own time.", (), _speed("fetch_rates", 0, inverse=True), "gate"),
        ("gate_fetch_seconds", "gauge", "A fetch's own time, whatever its bytes.", (), _speed("fetch_rates", 1), "gate"),
        ("gate_prefill_tokens_per_s", "gauge", "At position 0.", (), _speed("prefill_rates", 0, inverse=True), "gate"),
    )
)  # fmt: skip


def samples(store: Said, gate: Said | None = None) -> Iterator[tuple[Metric, list[tuple[tuple[str, ...], Any]]]]:
    """Return each metric with its values.

    Parameters
    ----------
    store : dict
        What `BlockStore.stats` says; empty: it did not answer.
    gate : dict, optional
        What `Gate.stats` says.
    """
    said = {"store": {**store, "up": 1} if store else None, "gate": gate}
    for metric in METRICS:
        document = said[metric.of]
        if document is not None:
            yield metric, [*metric.read(document)]
        elif metric.name == "kvpager_store_up":
            yield metric, [((), 0)]


class Endpoint:
    """Gives metrics out over HTTP, from a registry of its own.

    Parameters
    ----------
    blocks : BlockStore
        The store, whichever process owns it.
    port : int
        0: any that is free.
    address : str
        Who can reach it; only this machine, if nothing else is said. There is no password.
    gate : Gate, optional
        One of this process.

    Attributes
    ----------
    url : str
        Where.

    Raises
    ------
    BadInput
        If the port cannot be had.
    """

    def __init__(self, blocks: BlockStore, port: int, address: str = "127.0.0.1", gate: Gate | None = None) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._blocks, self._gate = blocks, gate
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(f"metrics cannot be served at {address}:{port} ({why}): give another port or address") from error
        self.url = f"http://{address}:{self._server.server_port}/metrics"

    def collect(self) -> Iterator[Any]:
        """Ask store and gate; what Prometheus' client calls at each scrape."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        try:
            said = self._blocks.stats(_SCRAPE_S)
        except KVPagerError:
            said = {}
        for metric, values in samples(said, None if self._gate is None else self._gate.stats()):
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
                for labels, found in values:
                    histogram.add_metric(labels, _buckets(found), found["sum"])
                yield histogram
                continue
            family = (CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily)(
                metric.name, metric.help, labels=metric.labels
            )
            for labels, value in values:
                family.add_metric(labels, value)
            yield family

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _buckets(found: Said) -> list[tuple[str, float]]:
    total, rows = 0, []
    for bound, count in zip([*found["bounds"], "+Inf"], found["counts"], strict=True):
        total += count
        rows.append((str(bound), float(total)))
    return rows
