"""The terminal's view of the planner: tables that fit 80 columns, the label beside every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvpager.evidence import Quantity

__all__ = ["print_breakeven", "print_comparison", "print_plan", "print_quantities", "print_sweep"]

_SUFFIXES = (" bytes per s", " bytes", " s", " usd", " w", " tokens")
_KEPT = ("context tokens", "sink tokens", "block tokens", "quantum tokens")
_CAPITALS = {"hbm": "HBM", "kv": "KV", "cxl": "CXL", "nvme": "NVMe", "dram": "DRAM", "slo": "SLO", "tco": "TCO"}
_CAPITALS |= {"capex": "CapEx", "mfu": "MFU"}
_MOST_ROWS = 30


def print_plan(document: Mapping[str, Any], console: Console) -> None:
    """Print a plan: answers first, then where they come from.

    Parameters
    ----------
    document : mapping
        From `kvpager.plan.plan`.
    console : rich.console.Console
        Where to; tables are made for 80 columns.
    """
    asked = ", ".join(f"{_words(name)} {quantity.text()}" for name, quantity in document["asked"].items())
    _line(console, f"{document['model']} on {document['title']} ({document['strategy']})", "bold")
    _line(console, asked)
    answers = document["answers"]
    print_quantities("Answers", answers, console)
    for name, words in (("fits", "fits by capacity"), ("meets_slo", "meets the service level")):
        if name in answers:
            _line(console, f"  {words}: {'yes' if answers[name] else 'no'}")
    for name in ("binding_constraint", "users_at_slo", "token_s"):
        if isinstance(answers.get(name), str):
            _line(console, f"  {_words(name)}: {answers[name]}")
    limits = {f"users in {name}": limit for name, limit in document["capacity"]["users_by_constraint"].items()}
    print_quantities("Capacity", document["capacity"] | limits, console)
    for title, section in (("Step", "step"), ("Traffic", "traffic"), ("Context back", "prefill"), ("Cost", "cost")):
        print_quantities(title, document.get(section, {}), console)
    _notes(console, "Mind", document["warnings"])
    _notes(console, "Not counted", document["left_out"])
    print_quantities("Assumed, not calibrated for your machine (--assume NAME=VALUE)", document["assumptions"], console)


def print_quantities(title: str, section: Mapping[str, Any], console: Console) -> None:
    """Print the quantities of a section as a table of name, value, range and label; nothing if it has none."""
    rows = {name: value for name, value in section.items() if isinstance(value, Quantity)}
    if not rows:
        return
    table = _table(title)
    table.add_column("", max_width=30)
    for name in ("value", "range"):
        table.add_column(name, justify="right")
    table.add_column("label", no_wrap=True, style="dim")
    for name, quantity in rows.items():
        table.add_row(_words(name), Text(_value(quantity), style="bold"), _range(quantity), quantity.evidence.label)
    console.print(table)


def print_comparison(document: Mapping[str, Any], console: Console) -> None:
    """Print systems one after another: what one is and serves, what serving everybody takes, what is not counted."""
    asked = ", ".join(f"{_words(name)} {quantity.text()}" for name, quantity in document["asked"].items())
    _line(console, f"{document['model']}: {asked}", "bold")
    for row in document["rows"]:
        table_of = dict(row["memory"]) | dict(row["owning"])
        table_of |= {name: row["answers"].get(name) for name in ("users_by_capacity", "users_at_slo", "token_s")}
        serving = row["serving_all"]
        if not isinstance(serving, str):
            table_of |= {"systems for all users": serving["copies"]}
            table_of |= {f"all users: {_words(name)}": serving[name] for name in ("capex_usd", "tco_usd", "power_w")}
        print_quantities(f"{row['system']}: {row['title']}", table_of, console)
        if isinstance(serving, str):
            _line(console, f"  {serving}")
        for name, saving in row.get("saving_of_owning", {}).items():
            percent = f"{100 * saving.value:.1f} % less {_words(name)} than {document['rows'][0]['system']}"
            _line(console, f"  one against one: {percent}, whatever each serves [{saving.evidence.label}]")
    _line(console, f"Cheapest at this service level: {document['cheapest']}", "bold")
    for system, left in document["left_out"].items():
        _notes(console, f"Not counted for {system}", left)
    for system, warnings in document["warnings"].items():
        _notes(console, f"Mind for {system}", warnings)


def print_breakeven(document: Mapping[str, Any], console: Console) -> None:
    """Print the grids of recompute over fetch, then what they leave out."""
    block, place = document["block_bytes"], document["asked"]["position"]
    _line(console, f"{document['model']} on {document['accelerator']}: a block of {block.text()} at {place.text()}", "bold")
    _line(console, "Times longer to recompute a block than to fetch it:")
    here = document["here"]
    _grid(console, "Note 004's terms: 2 P T at 500 TFLOP/s (reconstructed)", document["note"])
    _grid(console, "The same formula at this accelerator's peak", here["note_formula"])
    _grid(console, "With attention and memory, in a pass of its own", here["alone"])
    _grid(console, "With attention and memory, piggybacked on a running batch", here["piggybacked"])
    _grid(console, "From one NVMe drive, note 004's terms", document["nvme"]["note"])
    floors = {"floor, note 000's rate": document["note"]["floor_s"], f"floor, {document['accelerator']}": here["floor_s"]}
    print_quantities("Least time of a pass of its own: it reads all weights", floors, console)
    shares = {f"at {at} tokens": share for at, share in document["attention_share"].items()}
    print_quantities("Attention over linear FLOPs, which the note leaves out", shares, console)
    print_quantities("Four readings of recomputing the block", document["modes"], console)
    found = document["breakeven"]
    positions = {f"from position, {rate}": quantity for rate, quantity in found["position_tokens"].items()}
    print_quantities("Fetching wins", {"above the rate": found["bandwidth_bytes_per_s"], **positions}, console)
    _line(console, f"Decision: {document['decision']}", "bold")


def _grid(console: Console, title: str, grid: Mapping[str, Any]) -> None:
    """One grid: rows are rates, columns shares of the peak; its extremes in orders of magnitude below."""
    table = _table(title)
    table.add_column("rate", no_wrap=True)
    for again in grid["recompute_s"]:
        table.add_column(f"{again.inputs[-1].name}\n{_value(again)}", justify="right")
    table.add_column("label", no_wrap=True, style="dim")
    for fetch, ratios in zip(grid["fetch_s"], grid["ratios"], strict=True):
        cells = [f"{_value(ratio)} x{_newline(_range(ratio))}" for ratio in ratios]
        table.add_row(f"{fetch.inputs[1].name}: {_value(fetch)}", *cells, ratios[0].evidence.label)
    console.print(table)
    orders = grid["orders_of_magnitude"]
    _line(console, f"  {orders['low']:.2f} to {orders['high']:.2f} orders of magnitude")


def print_sweep(columns: Mapping[str, Any], console: Console) -> None:
    """Print a sweep's points, the first ones if there are many."""
    shown = ("context_tokens", "users", "read_fraction", "hbm_share", "token_s", "tokens_per_s", "meets_slo")
    heads = ("context", "users", "read", "in HBM", "token", "tokens/s", "SLO", "$/M tokens")
    table = _table("Sweep (values at the assumptions' points; ranges: plan one of them)")
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    total = len(columns["users"])
    for row in range(min(total, _MOST_ROWS)):
        context, users, read, hbm, token, rate, meets = (columns[name][row] for name in shown)
        time = Quantity(float(token), "s").text()
        cells = [f"{context:,.0f}", f"{users:.0f}", f"{read:.3g}", f"{hbm:.3g}", time, f"{rate:.4g}", "yes" if meets else "no"]
        table.add_row(*cells, f"{columns['usd_per_million_tokens'][row]:,.2f}")
    console.print(table)
    if total > _MOST_ROWS:
        _line(console, f"  … {total - _MOST_ROWS:,} more points: --json prints all")


def _words(name: str) -> str:
    """A name as a reader's words: no unit suffix where the value has its unit, abbreviations in capitals."""
    words = name.replace("_", " ")
    if words.startswith("usd per"):
        words = words.replace("usd", "cost")
    elif not words.endswith((" per s", *_KEPT)) or words.endswith(" bytes per s"):
        words = next((words.removesuffix(suffix) for suffix in _SUFFIXES if words.endswith(suffix)), words)
    return " ".join(_CAPITALS.get(word, word) for word in words.split(" "))


def _value(quantity: Quantity) -> str:
    return Quantity(quantity.value, quantity.unit).text()


def _range(quantity: Quantity) -> str:
    if not quantity.is_range:
        return ""
    low, high = (Quantity(end, quantity.unit).text() for end in quantity.ends)
    return f"{low} to {high}"


def _newline(text: str) -> str:
    return f"\n{text}" if text else ""


def _notes(console: Console, title: str, lines: Iterable[str]) -> None:
    lines = list(lines)
    if lines:
        _line(console, f"{title}:")
        for line in lines:
            console.print(Padding(Text(f"- {line}"), (0, 0, 0, 2)))


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def _table(title: str) -> Table:
    return Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
