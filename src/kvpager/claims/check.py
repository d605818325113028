"""Check a claim: re-derive its values, compare, and say what came of it, with every step on request."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvpager.claims import findings
from kvpager.claims.derivation import Path, Reckoning, Step
from kvpager.claims.ledger import CONTRADICTED, NOT_SETTLEABLE, SUPPORTED, Claim, claim, claims, givens, history, status
from kvpager.evidence import Evidence, weakest

__all__ = ["Derived", "explain", "holds", "outcome", "rederive", "row"]

_AUDIT = ("reproduced", "reproduced-with-stated-rounding", "inconsistent")


class Derived(NamedTuple):
    """What re-deriving a claim gave."""

    values: tuple[float, ...]
    """In the claim's unit."""
    inputs: dict[Path, float]
    """Every number that went in, in base units, by where it stands."""
    steps: tuple[Step, ...]
    used: tuple[str, ...]
    """Givens and claims that were referred to."""


def rederive(id: str, nudge: Callable[[Path, float], float] | None = None) -> Derived:
    """Compute a claim's values anew from its inputs.

    Parameters
    ----------
    id : str
        The claim.
    nudge : callable, optional
        Where an input stands, and its value → the value to use instead.

    Returns
    -------
    Derived
        Empty if the claim has no recipe.

    Raises
    ------
    UnknownName
        If the ledger has no such claim.
    """
    claim(id)
    reckoning = Reckoning(*_tables(), nudge)
    values = reckoning.derive(id)
    return Derived(values, reckoning.inputs, tuple(reckoning.steps), tuple(reckoning.used))


@functools.cache
def _tables() -> tuple[dict[str, tuple[Mapping[str, Any], ...]], dict[str, Any], dict[str, str]]:
    """Recipes, givens and units, as `Reckoning` wants them."""
    known = claims().items()
    values = {name: given.value for name, given in givens().items()}
    return {name: one.derive for name, one in known}, values, {name: one.unit for name, one in known}


def holds(one: Claim, values: Sequence[float]) -> bool:
    """Whether derived `values` are what the claim states, within its tolerance; rounding of floats aside."""
    slack = [tolerance + 1e-9 * max(1.0, abs(stated)) for stated, tolerance in zip(one.stated, one.tolerance, strict=True)]
    pairs = zip(values, one.stated, slack, strict=True)
    if one.relation == "at least":
        return all(value >= stated - off for value, stated, off in pairs)
    if one.relation == "at most":
        return all(value <= stated + off for value, stated, off in pairs)
    if one.relation == "more than":
        return all(value > stated + off for value, stated, off in pairs)
    return all(abs(value - stated) <= off for value, stated, off in pairs)


def outcome(id: str) -> str:
    """What an experiment says of a claim, or the re-derivation if it can be re-derived; else *not settleable here*."""
    return _outcome(claim(id), rederive(id).values)


def _settling(one: Claim) -> findings.Finding | None:
    """What an experiment found, where the text's own numbers decide nothing."""
    return None if one.verdict in _AUDIT else findings.finding(one.id)


def _outcome(one: Claim, values: Sequence[float]) -> str:
    found = _settling(one)
    if found is not None:
        return found.outcome
    if one.verdict not in _AUDIT or not (values or one.reading):
        return NOT_SETTLEABLE
    return SUPPORTED if not values or holds(one, values) else CONTRADICTED


def row(id: str) -> dict[str, Any]:
    """A claim and its check as one JSON object.

    Parameters
    ----------
    id : str
        The claim.

    Returns
    -------
    dict
        ``id note claim stated derived figure verdict status outcome evidence finding run``; `stated`, `derived` and
        `figure` (what an experiment measured, with its interval) are null where there is no number, `run` where no
        command settles the claim.
    """
    one, found, seen = claim(id), rederive(id), findings.finding(id)
    settled = _settling(one)
    own = Evidence.of(one.label)
    evidence = weakest([Evidence.ANALYTICAL, *_labels(found)]) if found.values else own
    return {
        "id": id,
        "note": one.note,
        "claim": one.says,
        "stated": _quantity(one.stated, one.units, own),
        "derived": _quantity(found.values, one.units, evidence),
        "figure": None if seen is None or seen.figure is None else {**seen.figure, "evidence": seen.evidence},
        "verdict": one.verdict,
        "status": status(id),
        "outcome": _outcome(one, found.values),
        "evidence": evidence.label if settled is None else settled.evidence,
        "finding": _finding(one, found),
        "run": None if seen is None else seen.command,
    }


def _labels(found: Derived) -> list[Evidence]:
    known = givens()
    return [Evidence.of(known[name].label) for name in found.used if name in known]


def _quantity(values: Sequence[float], units: Sequence[str], evidence: Evidence) -> dict[str, Any] | None:
    if not values:
        return None
    value = [float(f"{number:.10g}") for number in values]
    unit = units[0] if len({*units}) == 1 else " / ".join(units)
    return {"value": value[0] if len(value) == 1 else value, "unit": unit or "1", "evidence": evidence.label}


def _figures(values: Sequence[float], units: Sequence[str]) -> str:
    """Values with their unit, once if it is the same for all."""
    if len({*units}) > 1:
        return " / ".join(f"{_figure(value)} {unit}" for value, unit in zip(values, units, strict=True))
    numbers = " / ".join(map(_figure, values))
    return numbers if units[0] in ("", "x", "relative") else f"{numbers} {units[0]}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _finding(one: Claim, found: Derived) -> str:
    """Say what came of the check, in a sentence or two."""
    parts = [f"{entry.status} (entered {entry.date})" for entry in history(one.id) if entry.status != "audited"]
    if one.reconstructed:
        parts.append(f"reconstruction, not a derivation: {one.reconstructed}; it gives {_figures(found.values, one.units)}")
    elif found.values and one.stated and one.verdict in _AUDIT:
        within = "agrees" if holds(one, found.values) else "does not agree"
        relation = "" if one.relation == "equal" else f"{one.relation} "
        stated = f"{relation}{_figures(one.stated, one.units)}"
        parts.append(f"re-derived {_figures(found.values, one.units)}, stated {stated}: {within}")
    elif found.values:
        stated = f", stated {_figures(one.stated, one.units)}" if one.stated else "; the note prints no value"
        parts.append(f"re-derived {_figures(found.values, one.units)}{stated}")
    elif one.reading:
        parts.append(one.reading)
    elif one.verdict == "assumption":
        parts.append("an assumption of the note: nothing to derive")
    elif one.verdict == "not-derivable-from-the-text":
        parts.append("the note does not say what it follows from")
    known = givens()
    fitted = [name for name in found.used if name in known and known[name].reconstructed]
    if fitted and not one.reconstructed:
        parts.append("rests on a reconstructed input: " + ", ".join(f"{name} = {known[name].value}" for name in fitted))
    seen = findings.finding(one.id)
    if seen is not None:
        figure = f"{seen.figure_text} [{seen.evidence}]: " if seen.figure else ""
        parts.append(f"{figure}{seen.says.rstrip('.')}; {seen.experiment} of {seen.date}, again by `{seen.command}`")
    text = "; ".join(parts)
    return f"{text}. {one.remark}" if one.remark else f"{text}."


def explain(id: str) -> list[str]:
    """A claim with every number that leads to its check, one line a step.

    Parameters
    ----------
    id : str
        The claim.

    Returns
    -------
    list of str
        Plain lines.

    Raises
    ------
    UnknownName
        If the ledger has no such claim; the message names the near ones.
    """
    one, found, known = claim(id), rederive(id), givens()
    lines = [f"{id}  (note {one.note})", f"  claim    {one.says}"]
    if one.stated:
        lines.append(f"  stated   {_figures(one.stated, one.units)}  [{one.label}]")
    for name in found.used:
        if name in known:
            given = known[name]
            fit = "; reconstructed" if given.reconstructed else ""
            lines.append(f"  given    {name} = {_text(given.value)}: {given.says} [{given.label}; {given.source}{fit}]")
    for step in found.steps:
        inputs = ", ".join(f"{name}: {value}" for name, value in step.inputs.items())
        whose = "" if step.claim == id else f"  ({step.claim})"
        lines.append(f"  step     {step.function}({inputs}) = {', '.join(f'{value:.6g}' for value in step.values)}{whose}")
    if found.values:
        lines.append(f"  derived  {_figures(found.values, one.units)}")
    if one.stated and found.values and one.relation == "equal" and (one.verdict in _AUDIT or one.reconstructed):
        gaps = [gap if abs(gap) > 1e-9 * abs(value) else 0.0 for value, gap in _gaps(one, found)]
        lines.append(f"  off by   {_figures(gaps, one.units)}; tolerance {' / '.join(map(_figure, sorted({*one.tolerance})))}")
    lines += [f"  verdict  {one.verdict}", f"  outcome  {_outcome(one, found.values)}", f"  finding  {_finding(one, found)}"]
    for entry in history(id):
        more = f" Instead: {entry.replacement}" if entry.replacement else ""
        lines.append(f"  history  {entry.date}  {entry.status}: {entry.reason}{more} [{entry.evidence}]")
    return lines


def _gaps(one: Claim, found: Derived) -> list[tuple[float, float]]:
    return [(stated, value - stated) for value, stated in zip(found.values, one.stated, strict=True)]


def _text(value: Any) -> str:
    return ", ".join(_text(part) for part in value) if isinstance(value, list) else str(value)
