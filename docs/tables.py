"""Write the tables of plug-ins into README and docs, from the registries and the plug-ins' own docstrings.

A table stands between ``<!-- table: policies -->`` and ``<!-- end of table -->``. Nobody edits it by hand:

    python docs/tables.py            write
    python docs/tables.py --check    fail if a table is not what the registry says
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvpager.models.base import MODELS
from kvpager.policies import POLICIES
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import Registry
from kvpager.selectors import SELECTORS

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES: dict[str, Registry[Any]] = {
    "policies": POLICIES,
    "selectors": SELECTORS,
    "prefetchers": PREFETCHERS,
    "models": MODELS,
}
HEADS = {
    "policies": ("policy", "what it keeps", "source", "what differs"),
    "selectors": ("selector", "what it reads", "source", "what differs"),
    "prefetchers": ("prefetcher", "what it brings", "source", "what differs"),
    "models": ("family", "what it covers"),
}
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
        else:
            yield f"`{name}`", *described(plugin.__doc__ or "")


def table(kind: str) -> str:
    """The Markdown table of one registry."""
    heads = HEADS[kind]
    lines = [heads, ("---",) * len(heads), *rows(REGISTRIES[kind])]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(text: str) -> str:
    """`text` with every table as the registries say."""
    return MARK.sub(lambda found: f"{found[1]}{table(found[2])}{found[3]}", text)


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` compare; return the exit code."""
    stale = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
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
