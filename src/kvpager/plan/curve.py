"""Hits by size of HBM, as the planner takes them: from a replay, or from a JSON document that holds an earlier one's."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvpager.errors import BadInput

__all__ = ["HitCurve", "read_curve"]


@dataclass(frozen=True, slots=True)
class HitCurve:
    """What replayed recordings say about hits.

    Parameters
    ----------
    hbm_shares : tuple of float
        Shares of the KV that HBM holds, ascending, in (0, 1).
    byte_hit_ratios : tuple of float
        Hit bytes over read bytes at each.
    read_fraction : float
        Share of the KV that the selector read in the recording.
    source : str
        Recording, policy and selector.
    """

    hbm_shares: tuple[float, ...]
    byte_hit_ratios: tuple[float, ...]
    read_fraction: float
    source: str

    def __post_init__(self) -> None:
        """Refuse a curve that is empty, unordered or outside [0, 1]."""
        shares, ratios = self.hbm_shares, self.byte_hit_ratios
        if not shares or len(shares) != len(ratios) or list(shares) != sorted(set(shares)):
            raise BadInput(f"hit curve: {len(shares)} shares and {len(ratios)} ratios: give one ratio a share, shares ascending")
        if not all(0.0 <= value <= 1.0 for value in (*shares, *ratios)) or not 0.0 < self.read_fraction <= 1.0:
            raise BadInput("hit curve: shares, ratios and read_fraction must lie in [0, 1]: give them as shares, not per cent")

    @property
    def points(self) -> str:
        """The curve in words: byte hit ratio at each size of HBM."""
        pairs = zip(self.hbm_shares, self.byte_hit_ratios, strict=True)
        return ", ".join(f"{ratio:.3f} at {100 * share:g} %" for share, ratio in pairs)

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in a document's list ``curves``."""
        return {
            "read_fraction": self.read_fraction,
            "hbm_shares": [*self.hbm_shares],
            "byte_hit_ratios": [*self.byte_hit_ratios],
            "source": self.source,
        }


def read_curve(path: Path, read_fraction: float | None = None) -> HitCurve:
    """Read a curve from a JSON document with a list ``curves``: a plan's, or an experiment's published result.

    Parameters
    ----------
    path : Path
        The document.
    read_fraction : float, optional
        Which of its curves; not needed if there is only one.

    Returns
    -------
    HitCurve
        Its `source` is the document's, with the file's name before it.

    Raises
    ------
    BadInput
        If there is no such file, or no such curve in it; the message lists those that there are.
    """
    import orjson

    try:
        document = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise BadInput(f"curve file {str(path)!r} cannot be read ({error}): name a JSON document of 'kvpager plan'") from error
    found = document.get("curves") if isinstance(document, dict) else None
    if not isinstance(found, list) or not found:
        raise BadInput(
            f"curve file {str(path)!r} has no curves: write one by 'kvpager plan … --trace T --read 10% --json > {path.name}'"
        )
    curves = [_curve(path, each) for each in found]
    chosen = [each for each in curves if read_fraction is None or math.isclose(each.read_fraction, read_fraction, rel_tol=1e-6)]
    if len(chosen) != 1:
        known = ", ".join(f"{100 * each.read_fraction:g} %" for each in curves)
        asked = "" if read_fraction is None else f", not {100 * read_fraction:g} %"
        raise BadInput(f"curve file {path.name!r} has curves for reads of {known}{asked}: choose one by --read")
    return chosen[0]


def _curve(path: Path, entry: Any) -> HitCurve:
    try:
        shares, ratios = tuple(map(float, entry["hbm_shares"])), tuple(map(float, entry["byte_hit_ratios"]))
        read, source = float(entry["read_fraction"]), str(entry["source"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"curve file {path.name!r}: a curve needs hbm_shares, byte_hit_ratios, read_fraction and source ({error!r})"
        ) from error
    return HitCurve(shares, ratios, read, source if path.name in source else f"{path.name}: {source}")
