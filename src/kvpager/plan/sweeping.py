"""Many configurations at once: the same step model on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvpager.analysis import cost
from kvpager.errors import BadInput
from kvpager.hardware import System
from kvpager.models.facts import ModelFacts
from kvpager.plan.assumptions import DEFAULT, Assumptions
from kvpager.plan.curve import HitCurve
from kvpager.plan.evaluate import Numbers
from kvpager.plan.load import load_of
from kvpager.plan.service import serve, site_of

__all__ = ["sweep"]

_of = Numbers()


def sweep(
    facts: ModelFacts,
    system: System,
    context_tokens: ArrayLike,
    users: ArrayLike,
    read_fraction: ArrayLike = 1.0,
    *,
    hit_curve: HitCurve | None = None,
    slo_s: float = 0.1,
    assumptions: Assumptions = DEFAULT,
) -> dict[str, NDArray[Any]]:
    """Evaluate a model on a system at many points; the arguments broadcast. Ranges are left to `plan`.

    Parameters
    ----------
    facts : ModelFacts
        The model.
    system : System
        The machine.
    context_tokens, users, read_fraction : array_like
        Points, >= 1, >= 1 and in (0, 1].
    hit_curve : HitCurve, optional
        As in `plan`.
    slo_s : float
        As in `plan`.
    assumptions : Assumptions
        As in `plan`.

    Returns
    -------
    dict of arrays
        ``context_tokens users read_fraction kv_bytes_per_user users_by_capacity hbm_share miss_bytes token_s
        tokens_per_s meets_slo usd_per_million_tokens``, each of the broadcast shape. Never is ``inf``.

    Raises
    ------
    BadInput
        For a point out of range.
    """
    points = np.broadcast_arrays(*(np.asarray(axis, dtype=np.float64) for axis in (context_tokens, users, read_fraction)))
    context, many, read = points
    if context.size == 0 or context.min() < 1 or many.min() < 1 or read.min() <= 0 or read.max() > 1:
        raise BadInput("sweep: contexts and users start at 1 and read fractions lie in (0, 1]: correct the axis that does not")
    site = site_of(_of, load_of(facts, system.weights_dtype, system.kv_dtype, system.tp), system, assumptions, context)
    with np.errstate(divide="ignore", invalid="ignore"):
        served = serve(_of, site, many, read, hit_curve)
        tco = cost.tco_usd(
            system.capex_usd().value,
            system.power_w().value,
            assumptions.years.value,
            system.electricity_usd_per_kwh.value,
            system.pue.value,
        )
        price = cost.usd_per_million_tokens(tco, served.tokens_per_s, assumptions.years.value, assumptions.busy_share.value)
    found = {
        "context_tokens": context,
        "users": many,
        "read_fraction": read,
        "kv_bytes_per_user": site.memory.kv_bytes_per_user,
        "users_by_capacity": site.allowed,
        "hbm_share": served.step.hbm_share,
        "miss_bytes": served.step.miss_bytes,
        "token_s": served.token_s,
        "tokens_per_s": served.tokens_per_s,
        "meets_slo": (served.token_s <= slo_s) & (many <= site.allowed),
        "usd_per_million_tokens": price,
    }
    return {name: np.broadcast_to(values, context.shape) for name, values in found.items()}
