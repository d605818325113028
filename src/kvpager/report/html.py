"""One HTML file that holds a whole report: charts, tables, words and the code that draws them (`kvpager.report.frame`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvpager.claims.notes import closing_paragraph, judge
from kvpager.errors import BadInput
from kvpager.report.document import Document, check_document, percent
from kvpager.report.file import write_file
from kvpager.report.frame import VEGA_LITE, environment, page
from kvpager.report.text import live_sentence, plan_sentence

__all__ = ["write_pngs", "write_report"]

_TRACE = dict.fromkeys(("model", "text", "context_tokens", "steps", "layers", "kv_heads", "blocks", "block_size"), "")
"""Keys of a document's trace that the page names; a document may lack any."""


def write_report(doc: Document, path: str | Path) -> Path:
    """Write the report of a run as one self-contained HTML file.

    Parameters
    ----------
    doc : Document
        Demo or ladder document; sections that it lacks are left out.
    path : str or Path
        File to write; its folder is made if need be. It is replaced in one step, or left as it was.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    BadInput
        If the document cannot be reported on, or `path` is a folder or cannot be written.
    StorageFull
        If the disk is full.
    """
    check_document(doc)
    write_file(Path(path), _render(doc))
    return Path(path)


def write_pngs(doc: Document, directory: str | Path, *, width: int = 720, theme: str = "light") -> list[Path]:
    """Write each panel of each chart as a PNG picture.

    Parameters
    ----------
    doc : Document
        Demo or ladder document.
    directory : str or Path
        Folder; made if need be. Files are called ``<chart>-<panel>.png``.
    width : int
        Width of the drawing in CSS pixels; the picture has twice as many.
    theme : {"light", "dark"}
        Colours.

    Returns
    -------
    list of Path
        Files written, in the report's order.

    Raises
    ------
    BadInput
        If the document cannot be reported on, the theme is unknown, or a file cannot be written.
    StorageFull
        If the disk is full.
    """
    import vl_convert

    from kvpager.report.charts.style import THEMES

    check_document(doc)
    if theme not in THEMES:
        raise BadInput(f"unknown theme {theme!r}: choose {' or '.join(THEMES)}")
    paper = {"light": "#ffffff", "dark": "#0f1419"}[theme]
    written = []
    for name, chart in _charts(doc):
        words = chart.alternative(doc)
        for panel in chart.panels(doc):
            spec = panel.fixed(width, words) | {"padding": 16}
            config = THEMES[theme] | {"background": paper}
            picture = vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, config=config, scale=2)
            written.append(Path(directory) / f"{name}-{panel.name}.png")
            write_file(written[-1], picture)
    return written


def _charts(doc: Document) -> list[tuple[str, Any]]:
    """Charts that the document has data for, by name, in the report's order."""
    from kvpager.report.charts.base import CHARTS

    charts = [(name, CHARTS[name]()) for name in CHARTS]
    return sorted(((n, c) for n, c in charts if c.present(doc)), key=lambda pair: pair[1].order)


def _render(doc: Document) -> bytes:
    sections = []
    specs: dict[str, Any] = {}
    for name, chart in _charts(doc):
        panels = chart.panels(doc)
        words = chart.alternative(doc)
        specs |= {f"{name}-{panel.name}": panel.spec(f"{panel.title}. {words}") for panel in panels}
        sections.append({"name": name, "chart": chart, "panels": panels, "words": words, "table": chart.table(doc)})
    return page(
        environment(),
        "report.html",
        specs,
        doc=doc,
        trace=_TRACE | dict(doc.get("trace", {})),
        sections=sections,
        tiles=_tiles(doc),
        claims=judge(doc),
        closing=closing_paragraph(doc),
        live=live_sentence(doc["live"]) if "live" in doc else "",
        plan=plan_sentence(doc["plan"]) if "plan" in doc else "",
        provenance=_provenance(doc),
        repeat=_repeat(doc),
    )


def _tiles(doc: Document) -> list[tuple[str, str, str]]:
    """Key figures: name, value, evidence."""
    tiles = []
    if "ladder" in doc:
        ladder = doc["ladder"]
        size = percent(ladder["hbm_fraction"], 2)
        last = ladder["rungs"][-1]
        tiles.append(
            (f"block hits, last rung, {size} in HBM, {ladder['pool']} pool", percent(last["block_hit_ratio"]), last["evidence"])
        )
        most = max((rung["bound"] for rung in ladder["rungs"] if rung["name"] != "prefetch"), default=None)
        tiles.append(("the most that any demand-only policy could hit there", percent(most), last["evidence"]))
    if "dense" in doc.get("bounds", {}):
        tiles.append(("hits under dense attention, any policy", percent(doc["bounds"]["dense"]), "analytical"))
    if "locality" in doc:
        locality = doc["locality"]
        tiles.append(("of the attention mass on the newest 10 %", percent(locality["newest_10_percent"]), locality["evidence"]))
    return tiles


def _provenance(doc: Document) -> list[tuple[str, str]]:
    """Where the numbers come from: names and values, in reading order."""
    rows = [("kvpager", str(doc.get("kvpager", "not stated")))]
    rows += [(f"trace: {key.replace('_', ' ')}", _plain(value)) for key, value in doc.get("trace", {}).items()]
    for group in ("machine", "versions"):
        rows += [(f"{group}: {key.replace('_', ' ')}", _plain(value)) for key, value in doc.get(group, {}).items()]
    if "seed" in doc:
        rows.append(("seed", _plain(doc["seed"])))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _repeat(doc: Document) -> list[str]:
    """Shell lines that make the same report again."""
    version = doc.get("kvpager")
    lines = [f"pip install '.[all]'  # in a checkout of kvpager {version}"] if version else []
    return [*lines, str(doc["command"])] if doc.get("command") else [*lines, "kvpager demo"]
