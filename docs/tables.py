"""Write tables into README and docs: of plug-ins, from the registries and their docstrings; of claims, from the ledger.

Also of metrics, and of why blocks leave a store, from the code that counts them; and docs/grafana.json, from the dashboard's.

A table stands between ``<!-- table: policies -->``, ``<!-- ledger: verdicts -->`` or ``<!-- counted: metrics -->`` and
``<!-- end of table -->``. Nobody edits it by hand:

    python docs/tables.py            write
    python docs/tables.py --check    fail if a table is not what the registry or the ledger says
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvpager.claims.check import outcome, row
from kvpager.claims.ledger import VERDICTS, claims, history, status
from kvpager.claims.uncalibrated import register
from kvpager.evaluate import TASKS
from kvpager.live.summaries import SUMMARIES
from kvpager.models.base import MODELS
from kvpager.policies import POLICIES
from kvpager.policies.requests.base import REQUEST_POLICIES
from kvpager.policies.requests.prefix.base import PREFIX_POLICIES
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import Registry
from kvpager.selectors import SELECTORS
from kvpager.store.dashboard import dashboard
from kvpager.store.eviction.base import EVICTIONS
from kvpager.store.journal import DEPARTURES
from kvpager.store.metrics import METRICS
from kvpager.tiers.base import TIERS
from kvpager.traces.formats import FORMATS

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES: dict[str, Registry[Any]] = {
    "policies": POLICIES,
    "selectors": SELECTORS,
    "prefetchers": PREFETCHERS,
    "summaries": SUMMARIES,
    "tasks": TASKS,
    "tiers": TIERS,
    "models": MODELS,
    "formats": FORMATS,
    "request_policies": REQUEST_POLICIES,
    "prefix_policies": PREFIX_POLICIES,
    "evictions": EVICTIONS,
}
HEADS = {
    "policies": ("policy", "what it keeps", "source", "what differs"),
    "selectors": ("selector", "what it reads", "source", "what differs"),
    "prefetchers": ("prefetcher", "what it brings", "source", "what differs"),
    "summaries": ("key summary", "how it scores a block", "source", "what differs"),
    "tasks": ("task", "what it asks", "source", "what differs"),
    "tiers": ("tier", "what it does", "source", "what differs"),
    "models": ("family", "what it covers"),
    "formats": ("format", "what it reads"),
    "request_policies": ("policy", "what it keeps", "source", "what differs"),
    "prefix_policies": ("policy", "what it keeps", "source", "what differs"),
    "evictions": ("eviction", "what it keeps", "source", "what differs"),
}
LEDGER_HEADS = {
    "verdicts": ("verdict", "claims", "of note 000", "of note 004", "of both", "what the check says today"),
    "history": ("claim", "it says", "status", "entered", "why", "instead"),
    "reconstructed": ("claim", "it says", "fits if", "gives"),
    "uncalibrated": ("constant", "notes' value", "controls", "a larger value", "fitted by: value (95 % interval)", "claim"),
}
LEDGER_MARK = re.compile(r"(<!-- ledger: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COUNTED_HEADS = {"metrics": ("metric", "kind", "labels", "what it is"), "departures": ("cause", "why the block left")}
COUNTED_MARK = re.compile(r"(<!-- counted: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def prose(paragraph: str) -> str:
    """One paragraph of a docstring as one line of Markdown, its arXiv numbers as links."""
    line = re.sub(r"\s+", " ", paragraph).strip().replace("``", "`").replace("|", "\\|")
    return re.sub(r"arXiv[: ](\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", line)


def described(doc: str) -> tuple[str, str, str]:
    """Summary, source and difference of a plug-in, out of its docstring."""
    paragraphs = re.split(r"\n\s*\n", doc)
    text = next((prose(paragraph) for paragraph in paragraphs if re.search(r"\b(Source:|Based on)", paragraph)), "")
    source, _, differs = re.sub(r"^.*?\b(Source:|Based on) ", "", text).partition("Differs")
    differs = re.sub(r"^ (from the (note|paper) )?in:? ", "", differs)
    return prose(paragraphs[0]), source.strip(), differs.strip()


def rows(registry: Registry[Any]) -> Iterable[tuple[str, ...]]:
    """One row a name; a preset of a plug-in says of which, and with what settings."""
    names = {registry[name]: name for name in registry if not isinstance(registry[name], functools.partial)}
    for name in registry:
        plugin = registry[name]
        if isinstance(plugin, functools.partial):
            summary, source, differs = described(plugin.func.__doc__ or "")
            settings = ", ".join(f"{key} = {value!r}" for key, value in plugin.keywords.items())
            base = names.get(plugin.func)
            yield (
                (f"`{name}`", f"as `{base}`, with {settings}", "", "")
                if base
                else (f"`{name}`", f"{summary} {settings}", source, differs)
            )
        elif registry is MODELS:
            module = sys.modules[plugin.__module__]
            yield f"`{name}`", prose((module.__doc__ or "").split("\n\n")[0])
        elif registry is FORMATS:
            yield f"`{name}`", described(plugin.__doc__ or "")[0]
        else:
            yield f"`{name}`", *described(plugin.__doc__ or "")


def ledger_rows(kind: str) -> Iterable[tuple[str, ...]]:
    """Rows of a table of the claims ledger."""
    if kind == "verdicts":
        for verdict in VERDICTS:
            group = [one for one in claims().values() if one.verdict == verdict]
            notes = ["both" if "004" in one.note and "000" in one.note else one.note[:3] for one in group]
            found = Counter(outcome(one.id) for one in group)
            says = ", ".join(word if len(found) == 1 else f"{count} {word}" for word, count in found.items())
            yield verdict, str(len(group)), *(str(notes.count(which)) for which in ("000", "004", "both")), says
    elif kind == "history":
        for one in claims().values():
            for entry in history(one.id):
                if entry.claim == one.id:
                    yield f"`{one.id}`", one.says, entry.status, entry.date, entry.reason, entry.replacement
    elif kind == "reconstructed":
        for one in claims().values():
            if one.reconstructed:
                yield f"`{one.id}`", one.says, one.reconstructed, figures(row(one.id)["derived"])
    else:
        for constant in register():
            fitted, state = constant.fitted_text or "no run", status(constant.claim)
            claim = f"`{constant.claim}`" + ("" if state == "audited" else f" ({state})")
            yield f"`{constant.symbol}`", constant.text, constant.controls, constant.direction, fitted, claim


def counted_rows(kind: str) -> Iterable[tuple[str, ...]]:
    """Rows of a table of what a store counts."""
    if kind == "metrics":
        return ((f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.help) for one in METRICS)
    return ((f"`{cause}`", why) for cause, why in DEPARTURES.items())


def figures(quantity: dict[str, Any]) -> str:
    """Values and unit of a row's quantity."""
    values = quantity["value"] if isinstance(quantity["value"], list) else [quantity["value"]]
    return f"{' / '.join(f'{value:.5g}' for value in values)} {quantity['unit']}"


def table(heads: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, ("---",) * len(heads), *lines))


def filled(text: str) -> str:
    """`text` with every table as the registries and the ledger say."""
    text = MARK.sub(lambda found: f"{found[1]}{table(HEADS[found[2]], rows(REGISTRIES[found[2]]))}{found[3]}", text)
    text = LEDGER_MARK.sub(lambda found: f"{found[1]}{table(LEDGER_HEADS[found[2]], ledger_rows(found[2]))}{found[3]}", text)
    return COUNTED_MARK.sub(lambda found: f"{found[1]}{table(COUNTED_HEADS[found[2]], counted_rows(found[2]))}{found[3]}", text)


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` compare; return the exit code."""
    stale = []
    grafana = ROOT / "docs" / "grafana.json"
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")), grafana]:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if (new := json.dumps(dashboard(), indent=1) + "\n" if path == grafana else filled(text)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'stale' if '--check' in arguments else 'written'}: {', '.join(stale)}", file=sys.stderr)
        if "--check" in arguments:
            print("run: make tables", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
