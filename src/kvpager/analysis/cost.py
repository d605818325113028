"""What it costs: parts, power, years, per user and per million tokens. Pure and vectorised; US dollars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvpager.analysis.capacity import Values

__all__ = [
    "HOURS_PER_YEAR",
    "energy_usd",
    "implied_usd_per_kwh",
    "saving",
    "tco_usd",
    "total",
    "usd_per_million_tokens",
    "usd_per_user",
]

HOURS_PER_YEAR = 8760.0


def total(quantities: Sequence[Values], each: Sequence[Values]) -> Values:
    """Sum of quantity times unit value over a bill of materials: dollars or watts (mission row 44)."""
    sum_: Values = 0.0
    for count, value in zip(quantities, each, strict=True):
        sum_ = sum_ + count * value
    return sum_


def energy_usd(power_w: Values, years: Values, usd_per_kwh: Values, pue: Values = 1.0) -> Values:
    """Electricity over `years` of running at `power_w`, with the building's overhead (PUE) on top (mission row 44)."""
    return power_w / 1000.0 * HOURS_PER_YEAR * years * usd_per_kwh * pue


def tco_usd(capex_usd: Values, power_w: Values, years: Values, usd_per_kwh: Values, pue: Values = 1.0) -> Values:
    """Purchase plus electricity: no staff, space, network or failures (note 000 part 16; mission row 44)."""
    return capex_usd + energy_usd(power_w, years, usd_per_kwh, pue)


def implied_usd_per_kwh(tco: Values, capex_usd: Values, power_w: Values, years: Values) -> Values:
    """Electricity price that a stated TCO implies: a reconstruction, $0.168 for both systems of note 000 part 16."""
    return (tco - capex_usd) / (power_w / 1000.0 * HOURS_PER_YEAR * years)


def saving(base: Values, proposed: Values) -> Values:
    """Share saved against a base: ``(base - proposed) / base`` (note 000 part 16)."""
    return (base - proposed) / base


def usd_per_user(tco: Values, users: Values) -> Values:
    """Cost of serving one user over the whole period; infinite if none can be served (mission row 44)."""
    with np.errstate(divide="ignore"):
        cost: Values = np.divide(tco, users)
    return cost


def usd_per_million_tokens(tco: Values, tokens_per_s: Values, years: Values, busy_share: Values = 1.0) -> Values:
    """Cost of a million generated tokens if the system decodes `busy_share` of the time (mission row 44)."""
    tokens = tokens_per_s * HOURS_PER_YEAR * 3600.0 * years * busy_share
    with np.errstate(divide="ignore"):
        cost: Values = 1e6 * np.divide(tco, tokens)
    return cost
