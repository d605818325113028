"""The terminal's view of a run: tables that fit 80 columns, then what the numbers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvpager.claims.notes import LADDER_RUNGS, closing_paragraph
from kvpager.report.document import Document, check_document, ladders, percent
from kvpager.units import format_bytes, format_count, format_quantity

__all__ = ["live_sentence", "plan_sentence", "print_context", "print_document", "print_ladder", "print_others", "print_rows"]


def print_document(doc: Document, console: Console) -> None:
    """Print everything that the document holds for a terminal: ladder, other sizes, references, context, claims.

    Parameters
    ----------
    doc : Document
        Demo or ladder document.
    console : rich.console.Console
        Where to; tables are made for 80 columns and use more if there are more.

    Raises
    ------
    BadInput
        If the document cannot be reported on.
    """
    check_document(doc)
    if "ladder" in doc:
        print_ladder(doc, console)
        print_others(doc, console)
        references = doc["ladder"].get("references", [])
        if references:
            print_rows(references, console, title="References on the same recording")
        print_context(doc["ladder"]["rungs"][0], console)
    console.print(Padding(Text(closing_paragraph(doc)), (1, 0, 0, 0)))
    if "live" in doc:
        console.print(Padding(Text(live_sentence(doc["live"])), (1, 0, 0, 0)))
    if "plan" in doc:
        console.print(Padding(Text(plan_sentence(doc["plan"])), (1, 0, 0, 0)))


def live_sentence(live: Mapping[str, Any]) -> str:
    """Say what a run over real tiers showed: whether exact is exact, and whether the replay predicted it."""
    parity, exact, selective = live["parity"], live["exact"], live["selective"]
    same = "the same tokens as" if live["tokens_identical"] else "OTHER TOKENS than"
    counts = [parity[name] for name in ("simulated_loads", "live_loads", "backing_store_reads")]
    verdict = "Parity: predicted exactly" if len(set(counts)) == 1 else "NO PARITY"
    mass = selective["read_mass"]
    return (
        f"Live ({live['evidence']}: on a CPU, HBM and DRAM are one memory): {live['context_tokens']:,} tokens of context, "
        f"{live['new_tokens']} new. Exact mode with {percent(exact['hbm_fraction'])} of the KV in HBM gives {same} dense "
        f"attention. Selective mode reads: {selective['access']}; "
        f"{'' if mass is None else f'{percent(mass)} of the attention mass; '}"
        f"block_hit_ratio {percent(selective['block_hit_ratio'])} with {parity['policy']} at "
        f"{percent(selective['hbm_fraction'])}. {verdict}, from the log of another policy and size: "
        f"{format_count(counts[0])} loads simulated, {format_count(counts[1])} counted by the tiers, "
        f"{format_count(counts[2])} served by the backing store."
    )


def plan_sentence(plan: Mapping[str, Any]) -> str:
    """Say in one sentence what a plan answers, with ranges and labels."""
    asked, answers = plan["asked"], plan["answers"]

    def words(name: str) -> str:
        found = answers.get(name)
        if not isinstance(found, Mapping):
            return f"not derivable ({found})" if found else "not derivable"
        spread = [format_quantity(found[end], found["unit"]) for end in ("low", "high") if end in found]
        span = f", range {spread[0]} to {spread[1]}" if len(spread) == 2 and spread[0] != spread[1] else ""
        return f"{format_quantity(found['value'], found['unit'])} ({found['evidence']}{span})"

    return (
        f"Plan: {plan['model']} on {plan['title']}, {asked['context_tokens']['value']:,} tokens, "
        f"{asked['users']['value']:g} users, with this recording's hit curve: a token takes {words('token_s')}; users at "
        f"{format_quantity(asked['slo_s']['value'], 's')} a token: {words('users_at_slo')}. "
        f"'kvpager plan --model {plan['model']} --system {plan['system']} --users {asked['users']['value']:g} "
        f"--read {asked['read_fraction']['value']:g} --trace attention.zarr --explain' shows every step of it."
    )


def print_ladder(doc: Document, console: Console) -> None:
    """Print the five rungs at the main size and pool beside the note's claims and each rung's bound."""
    ladder = doc["ladder"]
    shared = f"{percent(ladder['hbm_fraction'], 2)} of the KV in HBM, {ladder['pool']} pool, {ladder['rungs'][0]['evidence']}"
    table = _table(f"Ladder: {shared}")
    table.add_column("rung", no_wrap=True)
    for name in ("block\nhits", "its\nbound", "note\nclaims", "mass\nhit", "p5 head\nmass", "fetched\na step"):
        table.add_column(name, justify="right", no_wrap=True)
    for rung in ladder["rungs"]:
        claim = LADDER_RUNGS[rung["name"]][1] if rung["name"] in LADDER_RUNGS else None
        table.add_row(
            str(rung.get("label", rung["name"])),
            Text(percent(rung["block_hit_ratio"]), style="bold"),
            percent(rung["bound"]),
            percent(claim, 0),
            percent(rung["mass_hit_ratio"]),
            percent(rung.get("p5_head_mass")),
            _bytes(rung),
        )
    console.print(table)
    console.print(
        Text(
            "note: modelled by the source note (analytical), withdrawn by its author. bound: no policy can hit more on that "
            "rung. mass: attention mass resident. p5 head: mass of the 5th-percentile KV head.",
            style="dim",
        )
    )


def print_others(doc: Document, console: Console) -> None:
    """Print block hits of the five rungs at every size and pool, with the largest bound of rungs without prefetch."""
    table = _table("Block hits at every size and pool (simulated)")
    for name in ("pool", "HBM"):
        table.add_column(name, justify="right" if name == "HBM" else "left", no_wrap=True)
    for name in [label.replace("RoPE ", "RoPE\n") for label, _ in LADDER_RUNGS.values()] + ["bound"]:
        table.add_column(name, justify="right")
    for ladder in sorted(ladders(doc), key=lambda one: (one["pool"] != doc["ladder"]["pool"], one["pool"], one["hbm_fraction"])):
        hits = {rung["name"]: rung["block_hit_ratio"] for rung in ladder["rungs"]}
        bounds = [rung["bound"] for rung in ladder["rungs"] if rung["name"] != "prefetch"]
        cells = [percent(hits.get(name)) for name in LADDER_RUNGS]
        table.add_row(ladder["pool"], percent(ladder["hbm_fraction"], 2), *cells, percent(max(bounds, default=None)))
    console.print(table)


def print_rows(rows: Iterable[Mapping[str, Any]], console: Console, title: str = "Replay") -> None:
    """Print replay rows, one line each; pool, size and evidence stand in the title where all rows share them.

    Parameters
    ----------
    rows : iterable of mapping
        As a document's ``curves`` or ``references`` hold them.
    console : rich.console.Console
        Where to.
    title : str
        Heading.
    """
    rows = list(rows)
    keys: dict[str, Callable[[Any], str]] = {
        "pool": str,
        "hbm_fraction": lambda size: f"{percent(size, 2)} in HBM",
        "evidence": str,
    }
    shared = [key for key in keys if len({row[key] for row in rows}) == 1]
    table = _table(", ".join([title, *(keys[key](rows[0][key]) for key in shared)]))
    apart = [key for key in keys if key not in shared]
    table.add_column("policy")
    for key in apart:
        table.add_column({"hbm_fraction": "size"}.get(key, key), no_wrap=True)
    figures_of = {"block_hit_ratio": "block\nhits", "bound": "its\nbound", "dense_bound": "dense\nbound"}
    figures_of |= {"mass_hit_ratio": "mass\nhit", "p5_head_mass": "p5 head\nmass"}
    if len({row.get("dense_bound") for row in rows}) == 1:  # then it stands in the context
        del figures_of["dense_bound"]
    for name in (*figures_of.values(), "fetched\na step"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        figures = [percent(row.get(key)) for key in figures_of]
        name = str(row.get("label", row["policy"]))
        table.add_row(name, *(keys[key](row[key]) for key in apart), *figures, _bytes(row))
    console.print(table)


def print_context(row: Mapping[str, Any], console: Console) -> None:
    """Print what a row's ratios count and under which rules: no ratio means anything without it."""
    said = {
        "access": row.get("access"),
        "selector": row.get("selector"),
        "unit": _with(row.get("granularity"), f"{row['units']:,} units" if "units" in row else None),
        "pool": row.get("pool"),
        "clock": row.get("clock"),
        "observe": row.get("observe"),
        "steps": _with(row.get("steps"), f"after {row['warmup_steps']} of warm-up" if "warmup_steps" in row else None),
        "dense bound": _share(row, "dense_bound"),
        "top-mass oracle": _share(row, "top_mass_oracle"),
        "read mass": _share(row, "read_mass"),
        "staging": _share(row, "staging_fraction", " of the KV, on top"),
        "metadata": _share(row, "metadata_fraction", " of the KV, on top"),
    }
    text = Text()
    for name, value in said.items():
        if value not in (None, ""):
            text.append(f"{name} ", style="dim")
            text.append(f"{value}; ")
    text.right_crop(2)
    console.print(Padding(text, (1, 0, 0, 0)))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _share(row: Mapping[str, Any], key: str, after: str = "") -> str | None:
    return percent(row[key]) + after if key in row else None


def _with(first: object, second: str | None) -> str:
    return ", ".join(str(part) for part in (first, second) if part is not None)


def _bytes(row: Mapping[str, Any]) -> str:
    if "fetched_bytes_per_step" in row:
        return format_bytes(float(f"{row['fetched_bytes_per_step']:.3g}"), binary=False)
    return f"{format_count(row['fetched_units_per_step'])} units" if "fetched_units_per_step" in row else "–"
