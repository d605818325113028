"""How far a share that was counted may be from the true one."""

from __future__ import annotations

import math

from kvpager.errors import BadInput

__all__ = ["wilson"]


def wilson(count: int, of: int, z: float = 1.959964) -> tuple[float, float]:
    """Bounds of a share of which `count` of `of` trials were seen.

    Parameters
    ----------
    count, of : int
        Trials that were so, and all.
    z : float
        Normal quantile; the default is 95 % confidence.

    Returns
    -------
    tuple of float
        Lower and upper bound, in [0, 1]; (0, 1) without a trial.

    Raises
    ------
    BadInput
        If `count` is not between 0 and `of`.

    Notes
    -----
    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    if not 0 <= count <= of:
        raise BadInput(f"{count} of {of} trials is impossible: count from 0 to the number of trials")
    if of == 0:
        return 0.0, 1.0
    share = count / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    low = 0.0 if count == 0 else max(0.0, middle - half)  # exact at the ends, where rounding would leave 1e-17
    return low, 1.0 if count == of else min(1.0, middle + half)
