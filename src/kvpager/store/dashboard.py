"""A Grafana dashboard of a store's metrics, as the JSON document that Grafana imports. ``docs/grafana.json`` is made of it."""

from __future__ import annotations

from typing import Any

__all__ = ["dashboard"]

_Query = tuple[str, str]


def _rate(name: str, by: str = "") -> str:
    return f"sum {f'by ({by}) ' if by else ''}(rate(kvpager_{name}[$__rate_interval]))"


def _quantiles(name: str) -> list[_Query]:
    return [
        (f"histogram_quantile({share}, {_rate(f'store_{name}_bucket', 'le')})", f"p{round(share * 100)}")
        for share in (0.5, 0.95, 0.99)
    ]


_PANELS: tuple[tuple[str, str, list[_Query]], ...] = (
    ("Counts that do not add up (must be 0)", "none", [("kvpager_store_unaccounted", "{{what}}")]),
    ("Owner answers", "none", [("kvpager_store_up", "up")]),
    ("Block hit ratio", "percentunit", [(f"{_rate('store_hits_total')} / {_rate('store_requests_total')}", "block_hit_ratio")]),
    (
        "Blocks asked for", "ops",
        [(_rate(f"store_{name}_total"), name) for name in ("hits", "misses", "failures")],
    ),
    ("Blocks put", "ops", [(_rate(f"store_{name}_total"), name) for name in ("stored", "refused", "unwritten")]),
    ("Payload", "Bps", [(_rate(f"store_{name}_bytes_total"), name) for name in ("read", "written", "evicted")]),
    ("Read latency", "s", _quantiles("read_seconds")),
    ("Write latency", "s", _quantiles("write_seconds")),
    (
        "Faults", "ops",
        [
            (_rate(f"store_{name}_total"), name)
            for name in ("corrupt", "deadlines_missed", "checksum_failures", "io_errors", "log_events_lost")
        ],
    ),
    (
        "Room", "bytes",
        [(f"kvpager_store_{name}_bytes", name) for name in ("held", "used", "disk", "capacity", "set_aside")],
    ),
    ("Evictions by cause", "ops", [(_rate("store_evictions_total", "cause"), "{{cause}}")]),
    ("Idle before evict", "s", _quantiles("idle_before_evict_seconds")),
    ("Lifetime", "s", _quantiles("lifetime_seconds")),
    ("Reuse gap", "s", _quantiles("reuse_gap_seconds")),
    (
        "Quota used by tenant", "percentunit",
        [("kvpager_store_tenant_used_bytes / on(instance, tenant) kvpager_store_tenant_quota_bytes", "{{tenant}}")],
    ),
    ("Bytes by tenant", "bytes", [("kvpager_store_tenant_used_bytes", "{{tenant}}")]),
    ("Gate: decisions", "ops", [(_rate("gate_decisions_total", "choice"), "{{choice}}")]),
    (
        "Gate: seconds saved", "s",
        [
            ("kvpager_gate_saved_seconds", "{{by}}"), ("kvpager_gate_regret_seconds_total", "regret"),
            ("kvpager_gate_explored_seconds_total", "explored"),
        ],
    ),
    ("Gate: fetch speed", "Bps", [("kvpager_gate_fetch_bytes_per_s", "fetch")]),
    ("Gate: prefill speed", "tokens/s", [("kvpager_gate_prefill_tokens_per_s", "prefill")]),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard; two panels a row, their source a variable of it."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1, "type": "timeseries", "title": title, "datasource": source,
            "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit}},
            "targets": [
                {"refId": chr(ord("A") + place), "expr": query, "legendFormat": legend, "datasource": source}
                for place, (query, legend) in enumerate(queries)
            ],
        }
        for number, (title, unit, queries) in enumerate(_PANELS)
    ]  # fmt: skip
    return {
        "title": "kvpager block store", "uid": "kvpager-store", "schemaVersion": 39, "tags": ["kvpager"], "editable": True,
        "time": {"from": "now-1h", "to": "now"}, "refresh": "30s",
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"}]},
        "panels": panels,
    }  # fmt: skip
