"""What moves beside the step's own reads: load and queues of the links, writes, wear, room for prefetch."""

from __future__ import annotations

import numpy as np

from kvpager.analysis import steptime, transfer
from kvpager.evidence import Quantity
from kvpager.plan.evaluate import Explained
from kvpager.plan.service import Service, Site

__all__ = ["traffic"]

_of = Explained()


def traffic(site: Site[Quantity], served: Service[Quantity]) -> dict[str, Quantity]:
    """Load of the links, waiting at that load, writes to the backing store and what they do to its drives."""
    found: dict[str, Quantity] = {}
    for tier, moved in zip(site.machine.tiers, served.step.tier_bytes, strict=False):
        load = _of.step(
            f"{tier.name}_utilisation",
            "1",
            "bytes of a step / step_s / rate, at most 1",
            lambda size, time, rate: np.minimum(1.0, transfer.utilisation(size / time, rate)),
            moved,
            served.step.step_s,
            tier.read_bytes_per_s,
            source="mission row 42",
        )
        found[load.name] = load
        found[f"{tier.name}_queue_wait_s"] = _of.step(
            f"{tier.name}_queue_wait_s",
            "s",
            "S rho / (2 (1 - rho)), S = one block / rate",
            lambda rate, rho, kv, tokens, block: transfer.queue_wait_s(kv / tokens * block / rate, rho),
            tier.read_bytes_per_s,
            load,
            site.memory.full_kv_bytes_per_user,
            site.context,
            site.assumed.block_tokens,
            source="M/D/1 queue: Kleinrock 1975, section 5.6; if blocks were asked for at random times",
        )
    written = _of.step(
        "write_bytes_per_s",
        "B/s",
        "tokens_per_s x KV bytes a token: every token is written once to the backing store",
        lambda rate, kv, tokens: transfer.write_bytes_per_s(rate, kv / tokens),
        served.tokens_per_s,
        site.memory.kv_bytes_per_user,
        site.context,
        source="mission row 7; prefill bursts come on top",
    )
    if site.system.tiers:
        found["write_bytes_per_s"] = written
        found |= _bursts(site, served)
    for path in site.system.tiers:
        endurance = path.medium.endurance_bytes
        if endurance is not None:
            found[f"{path.name}_life_years"] = _of.step(
                f"{path.name}_life_years",
                "years",
                f"{path.count} x endurance / write_bytes_per_s",
                lambda one, rate, count=path.count: transfer.drive_life_s(count * one, np.maximum(rate, 1e-9)) / 31_557_600.0,
                endurance,
                written,
                source="mission row 7; no write amplification",
            )
    return found


def _bursts(site: Site[Quantity], served: Service[Quantity]) -> dict[str, Quantity]:
    """Writes while a prompt is computed, and what a step's idle link time could prefetch from the fastest tier."""
    tier = site.machine.tiers[0]
    found = {
        "prefill_write_bytes_per_s": _of.step(
            "prefill_write_bytes_per_s",
            "B/s",
            "kv_bytes_per_user / prefill_s: while one prompt is computed",
            lambda size, time: size / time,
            site.memory.kv_bytes_per_user,
            site.prefill_s,
            source="mission row 7",
        ),
        "prefetch_window_s": _of.step(
            "prefetch_window_s",
            "s",
            "max(0, step_s - transfer_s)",
            steptime.prefetch_window_s,
            served.step.step_s,
            served.step.transfer_s,
            source="mission row 31; compute from the roofline, not given",
        ),
    }
    found["prefetch_bytes"] = _of.step(
        "prefetch_bytes",
        "B",
        f"prefetch_window_s x {tier.name} rate, for all users",
        steptime.prefetch_bytes,
        found["prefetch_window_s"],
        tier.read_bytes_per_s,
        source="mission row 31",
    )
    return found
