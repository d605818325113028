"""The page *What is true*, from the findings and the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvpager.claims.findings import Finding
from kvpager.claims.ledger import claims, status

__all__ = ["page"]

HEAD = """# What is true

<!-- Written by 'python -m experiments publish' from experiments/results. Change those, not this page. -->

The source notes make {total} claims; {empirical} of them no arithmetic can settle, only an experiment. Each has run one here, on real models
and texts; every figure below can be had again by the command beside it. Constants were fitted on two texts, results judged on others
([experiments/](../experiments/README.md)). {counts}

What these experiments cannot say, since the models are small and the contexts short, and what would change at 70B and 128K, is in
[limits.md](limits.md). Claims that are arithmetic are in [claims.md](claims.md).

A figure is a mean over texts, contexts or repeats, with its 95 % interval in brackets.
"""


def page(document: Mapping[str, Any]) -> str:
    """The page as Markdown."""
    known = claims()
    empirical = [one for one in known.values() if one.verdict == "empirical-claim-to-test"]
    found = [Finding.of(entry) for entry in document["claims"]]
    counts = Counter(one.outcome for one in found if known[one.claim].verdict == "empirical-claim-to-test")
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items(), key=lambda item: -item[1]))
    parts = [HEAD.format(total=len(known), empirical=len(empirical), counts=f"Outcomes: {told}." if told else "")]
    parts.append(_overview(found))
    parts += [_claim(one) for one in found]
    parts.append("## Beyond the notes\n\nWhat kvpager asked besides: its own placement, constants and prefetch.\n")
    parts += [_result(Finding.of(entry)) for entry in document["results"]]
    parts.append(_experiments(document["experiments"]))
    return "\n".join(parts)


def _overview(found: list[Finding]) -> str:
    known = claims()
    rows = ["| claim | it says | outcome | figure | evidence |", "|---|---|---|---|---|"]
    rows += [
        f"| [`{one.claim}`](#{_anchor(one.claim)}){_fallen(one.claim)} | {known[one.claim].says} | **{one.outcome}** | {one.figure_text or '–'} | {one.evidence} |"
        for one in found
    ]
    return "\n".join(rows) + "\n"


def _claim(one: Finding) -> str:
    claim = claims()[one.claim]
    audit = "; its own numbers contradict it" if claim.verdict == "inconsistent" else ""
    lines = [f"## {one.claim}{_fallen(one.claim)}", "", f"*{claim.says.rstrip('.')}.* (note {claim.note}{audit})", ""]
    lines += [
        f"**{one.outcome.capitalize()}**{': ' + one.figure_text if one.figure else ''} [{one.evidence}]. {_sentence(one.says)}",
        "",
    ]
    lines += _picture(one)
    return "\n".join([*lines, f"`{one.command}`{_fallen(one.claim)} ({one.experiment}, {one.date})", ""])


def _fallen(id: str) -> str:
    """What became of a claim, where it was withdrawn or demoted: no citation goes without."""
    return "" if status(id) == "audited" else f" ({status(id)})"


def _anchor(id: str) -> str:
    return id.lower() + ("" if status(id) == "audited" else f"-{status(id)}")


def _result(one: Finding) -> str:
    lines = [
        f"### {one.claim[0].upper()}{one.claim[1:]}",
        "",
        f"{one.figure_text + ' [' + one.evidence + ']. ' if one.figure else ''}{_sentence(one.says)}",
        "",
    ]
    lines += _picture(one)
    return "\n".join([*lines, f"`{one.command}` ({one.date})", ""])


def _picture(one: Finding) -> list[str]:
    return [f"![{_sentence(one.says)}](img/{one.picture})", ""] if one.picture else []


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _experiments(runs: Mapping[str, Any]) -> str:
    rows = ["## The runs", "", "| experiment | what it finds out | date | command |", "|---|---|---|---|"]
    rows += [f"| {name} | {run['question']} | {run['date'][:10]} | `{run['command']}` |" for name, run in runs.items()]
    return "\n".join(rows) + "\n"
