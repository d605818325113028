"""Only the last step's mass counts."""

from __future__ import annotations

from dataclasses import dataclass

from kvpager.policies.base import POLICIES
from kvpager.policies.ema import EMA

__all__ = ["LastStep"]


@POLICIES.register("last-step")
@dataclass
class LastStep(EMA):
    """Keep what drew mass in its layer's last tick: the EMA with alpha = 1.

    Source: the persistence of selections between steps that FreeKV (arXiv 2505.13109) and LiteCache
    (arXiv 2511.14510) build on. Differs in: it ranks residency; those systems reuse the selection itself.
    """

    alpha: float = 1.0
