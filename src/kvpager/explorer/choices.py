"""What the reader chose: fields with their sliders, and the permalink that holds them all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from kvpager.errors import BadInput

__all__ = ["Choices", "Slider", "from_query", "slider_of", "to_query"]


@dataclass(frozen=True)
class Slider:
    """How a number is chosen.

    Parameters
    ----------
    label : str
        What it is, with its unit.
    low, high, step : float
        Ends and distance of the positions; whole numbers for an int field.
    steps : tuple, optional
        The positions themselves, where they are not evenly spaced.
    share : bool
        Whether it is a share, which is told in per cent.
    """

    label: str
    low: float
    high: float
    step: float = 1
    steps: tuple[float, ...] = ()
    share: bool = False

    def text(self, value: float) -> str:
        """Return a position as the page tells it."""
        return f"{100 * value:.10g} %" if self.share else f"{value:,}"

    def positions(self, value: float) -> list[Any]:
        """Return the positions in order, with `value` among them and all of its type."""
        even = (self.low + index * self.step for index in range(round((self.high - self.low) / self.step) + 1))
        within = [step for step in self.steps or even if self.low <= step <= self.high]
        return sorted({type(value)(round(step, 10)) for step in within} | {value})


def _slider(
    default: Any, label: str, low: float, high: float, step: float = 1, steps: Iterable[float] = (), share: bool = False
) -> Any:
    return field(default=default, metadata={"slider": Slider(label, low, high, step, tuple(steps), share)})


_CONTEXTS = tuple(1 << i for i in range(10, 21))


@dataclass(frozen=True)
class Choices:
    """All that a permalink holds.

    Parameters
    ----------
    model : str
        A built-in name, a config.json or its directory.
    system : str
        A system of the catalogue.
    trace : str
        Path of an attention trace; "" for none.
    run : str
        Path of a document of ``kvpager demo`` or ``ladder``; "" for none.
    context, users, tokens : int
        Tokens of each user's context, users, tokens of a block to fetch or compute.
    read : float
        Share of the KV that a step reads.
    slo_ms : float
        Longest time of a token.
    layer, head, block : int
        Which of the trace's.
    alpha, w_r, w_e, w_n, cut_1, cut_2, half_life, hbm : float
        Constants of the placement score, its cuts, and the share of the KV that HBM holds.
    distance : int
        Tokens between query and key.
    prefetch : float
        Share of the pool that is fetched ahead a step.
    """

    model: str = "llama-3.1-70b"
    system: str = "b200-host-cxl"
    trace: str = ""
    run: str = ""
    context: int = _slider(131_072, "context, tokens", _CONTEXTS[0], _CONTEXTS[-1], steps=_CONTEXTS)
    users: int = _slider(16, "users at the same time", 1, 256)
    read: float = _slider(0.05, "share of the KV that a step reads", 0.01, 1.0, 0.01, share=True)
    slo_ms: float = _slider(100.0, "longest time of a token, ms", 10, 1000, 10)
    tokens: int = _slider(16, "tokens of the block", 16, 256, 16)
    layer: int = _slider(0, "layer", 0, 255)
    head: int = _slider(0, "KV head", 0, 127)
    block: int = _slider(0, "block", 0, 65_535)
    alpha: float = _slider(0.2, "α, weight of the newest observation", 0.01, 1.0, 0.01)
    w_r: float = _slider(0.25, "weight of R, recency", 0.0, 1.0, 0.05)
    w_e: float = _slider(0.55, "weight of E, attention", 0.0, 1.0, 0.05)
    w_n: float = _slider(0.20, "weight of N, anchors", 0.0, 1.0, 0.05)
    cut_1: float = _slider(0.3, "cut between HBM and the tiers below", 0.0, 1.0, 0.01)
    cut_2: float = _slider(0.6, "cut of tier 0", 0.0, 1.0, 0.01)
    half_life: int = _slider(128, "half-life of R, steps", 1, 512)
    hbm: float = _slider(0.0684, "share of the KV in HBM", 0.01, 1.0, 0.01, share=True)
    distance: int = _slider(1024, "distance between query and key, tokens", 1, 131_072, steps=tuple(1 << i for i in range(18)))
    prefetch: float = _slider(0.01, "share of the pool fetched ahead a step", 0.0, 0.25, 0.01, share=True)

    def __post_init__(self) -> None:
        """Refuse what no slider reaches."""
        for one in fields(self):
            slider = one.metadata.get("slider")
            if slider is None:
                continue
            value = getattr(self, one.name)
            if not math.isfinite(value) or not slider.low <= value <= slider.high:
                raise BadInput(
                    f"{one.name} = {value} lies outside {slider.low:,g} to {slider.high:,.10g} ({slider.label}): choose within"
                )

    def but(self, **changes: Any) -> Choices:
        """Return the choices with some changed."""
        return replace(self, **changes)

    def source(self, name: str) -> Path | None:
        """Path of the chosen ``trace`` or ``run``; None if none is chosen."""
        text = getattr(self, name)
        return Path(text) if text else None


def slider_of(name: str) -> Slider:
    """The slider of a field."""
    return cast(Slider, next(one for one in fields(Choices) if one.name == name).metadata["slider"])


def to_query(choices: Choices) -> dict[str, str]:
    """Return the permalink's parameters: what differs from the defaults."""
    return {one.name: str(getattr(choices, one.name)) for one in fields(Choices) if getattr(choices, one.name) != one.default}


def from_query(query: Mapping[str, str], base: Choices | None = None) -> Choices:
    """Read a permalink's parameters.

    Parameters
    ----------
    query : mapping of str to str
        Names of fields and their values as text.
    base : Choices, optional
        What holds for absent names.

    Raises
    ------
    BadInput
        For an unknown name, a value that is no number, or one out of range.
    """
    known = {one.name: one for one in fields(Choices)}
    found: dict[str, Any] = {}
    for name, text in query.items():
        if name not in known or known[name].default is MISSING:
            raise BadInput(f"the link has no choice {name!r}: drop it, or use one of {', '.join(known)}")
        kind: type[Any] = type(known[name].default)
        try:
            found[name] = kind(text)
        except ValueError:
            raise BadInput(f"the link's {name}={text!r} is no {'whole ' if kind is int else ''}number: correct it") from None
    return replace(base or Choices(), **found)
