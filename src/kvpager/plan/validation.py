"""The planner against published measurements: three numbers fixed beforehand, three predicted, the errors shown.

Measured by others, so labelled external literature: agentic-kvc (2026-05-30), one H20, Qwen3-Coder-30B-A3B in vLLM 0.18.1
eager mode, time to first token by where the prompt's KV was found. docs/validation.md says what the errors mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvpager.analysis import recompute, transfer
from kvpager.evidence import Evidence, Quantity
from kvpager.hardware import Accelerator, Catalogue
from kvpager.models import resolve
from kvpager.plan.evaluate import Explained, asked
from kvpager.plan.load import Load, load_of

__all__ = ["Check", "against_h20"]

_of = Explained()
_SOURCE = "agentic-kvc, 2026-05-30, H20, vLLM 0.18.1 eager"
SHORT, LONG = 1024.0, 65536.0


def _measured(name: str, value: float, unit: str = "s") -> Quantity:
    return Quantity(value, unit, frozenset({Evidence.EXTERNAL_LITERATURE}), "", _SOURCE, name)


HIT_SHORT, MISS_SHORT = _measured("gpu_hit_1k_s", 0.042), _measured("miss_1k_s", 0.078)
MISS_LONG = _measured("miss_64k_s", 15.2)
CPU_HIT_SHORT, CPU_HIT_LONG = _measured("cpu_hit_1k_s", 0.057), _measured("cpu_hit_64k_s", 0.272)


@dataclass(frozen=True, slots=True)
class Check:
    """One prediction and its measurement.

    Parameters
    ----------
    name : str
        What was timed.
    predicted, measured : Quantity
        Seconds.
    """

    name: str
    predicted: Quantity
    measured: Quantity

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted.value / self.measured.value - 1.0


def against_h20(catalogue: Catalogue) -> tuple[dict[str, Quantity], tuple[Check, ...]]:
    """Fix three efficiencies from three measurements, then predict three others.

    Fixed: host-to-device rate as measured by copy size; fixed time = the 1k GPU hit; one MFU, from the 64k miss.

    Parameters
    ----------
    catalogue : Catalogue
        Holds the H20 and its link.

    Returns
    -------
    tuple of (dict of Quantity, tuple of Check)
        What was fixed; what was predicted.
    """
    device, load = catalogue.accelerators["h20"], load_of(resolve("qwen3-30b-a3b"))
    size, link = load.full_bytes_per_token, device.host_link

    mfu = _of.step(
        "mfu",
        "1",
        "seconds at peak for 64k / (measured miss - fixed time)",
        lambda at_peak, miss, fixed: at_peak / (miss - fixed),
        _at_peak(load, device, asked("tokens", LONG, "tokens")),
        MISS_LONG,
        HIT_SHORT,
    )

    def cpu_hit(tokens: float) -> Quantity:
        return _of.step(
            f"cpu_hit_{tokens:,.0f}_s",
            "s",
            "fixed time + KV bytes / measured rate at that size",
            lambda fixed, n, rate: fixed + transfer.fetch_s(n * size, rate),
            HIT_SHORT,
            asked("tokens", tokens, "tokens"),
            link.rate_at(tokens * size),
        )

    miss = _of.step(
        "miss_1k_s",
        "s",
        "fixed time + max(seconds at peak / mfu, weights / (hbm rate x efficiency))",
        lambda fixed, at_peak, share, params, each, rate, good: (
            fixed + np.maximum(at_peak / share, params * each / (rate * good))
        ),
        HIT_SHORT,
        _at_peak(load, device, asked("tokens", SHORT, "tokens")),
        mfu,
        load.params,
        load.weight_bytes_per_param,
        device.hbm_bytes_per_s,
        device.hbm_efficiency,
        source="mission row 47",
    )
    fixed = {"fixed_s": HIT_SHORT, "mfu": mfu, "rate_1k": link.rate_at(SHORT * size), "rate_64k": link.rate_at(LONG * size)}
    checks = (
        Check("64k CPU hit", cpu_hit(LONG), CPU_HIT_LONG),
        Check("1k miss", miss, MISS_SHORT),
        Check("1k CPU hit", cpu_hit(SHORT), CPU_HIT_SHORT),
    )
    return fixed, checks


def _at_peak(load: Load, device: Accelerator, tokens: Quantity) -> Quantity:
    """Seconds that a prefill of `tokens` takes at the accelerator's peak."""
    wide = load.groups[-1].attended_dim
    return _of.step(
        "seconds_at_peak",
        "s",
        "(2 active_params n + 4 H d L n (n + 1) / 2) / peak",
        lambda n, active, peak: recompute.pass_flops(n, 0.0, active, load.full_layers, load.q_heads, wide) / peak,
        tokens,
        load.active_params,
        device.bf16_flops_per_s,
        source="mission row 47",
    )
