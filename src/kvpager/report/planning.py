"""The terminal's view of the planner: tables that fit its width, the label beside every number.

Plain text, by `kvpager.report.plain`: a library of tables takes longer to import than a plan to compute.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpager.evidence import Quantity
from kvpager.report.plain import listed, table, wrapped

__all__ = ["breakeven_lines", "comparison_lines", "plan_lines", "quantity_lines", "sweep_lines"]

_SUFFIXES = (" bytes per s", " bytes", " s", " usd", " w", " tokens")
_KEPT = ("context tokens", "sink tokens", "block tokens", "quantum tokens")
_CAPITALS = {"hbm": "HBM", "kv": "KV", "cxl": "CXL", "nvme": "NVMe", "dram": "DRAM", "slo": "SLO", "tco": "TCO"}
_CAPITALS |= {"capex": "CapEx", "mfu": "MFU"}
_MOST_ROWS = 30


def plan_lines(document: Mapping[str, Any]) -> list[str]:
    """Say a plan: answers first, then where they come from.

    Parameters
    ----------
    document : mapping
        From `kvpager.plan.plan`.

    Returns
    -------
    list of str
        Lines of text, as wide as the terminal at most.
    """
    answers = document["answers"]
    lines = [*wrapped(f"{document['model']} on {document['title']} ({document['strategy']})"), *_asked(document)]
    lines += quantity_lines("Answers", answers)
    for name, words in (("fits", "fits by capacity"), ("meets_slo", "meets the service level")):
        if name in answers:
            lines.append(f"  {words}: {'yes' if answers[name] else 'no'}")
    for name in ("binding_constraint", "users_at_slo", "token_s"):
        if isinstance(answers.get(name), str):
            lines += wrapped(f"{_words(name)}: {answers[name]}", "  ")
    limits = {f"users in {name}": limit for name, limit in document["capacity"]["users_by_constraint"].items()}
    lines += quantity_lines("Capacity", document["capacity"] | limits)
    for title, section in (("Step", "step"), ("Traffic", "traffic"), ("Context back", "prefill"), ("Cost", "cost")):
        lines += quantity_lines(title, document.get(section, {}))
    lines += [*listed("Mind", document["warnings"]), *listed("Not counted", document["left_out"])]
    return lines + quantity_lines("Assumed, not calibrated for your machine (--assume NAME=VALUE)", document["assumptions"])


def quantity_lines(title: str, section: Mapping[str, Any]) -> list[str]:
    """Tabulate the quantities of a section by name, value, range and label; no line if it has none."""
    rows = [
        (_words(name), _value(quantity), _range(quantity), quantity.evidence.label)
        for name, quantity in section.items()
        if isinstance(quantity, Quantity)
    ]
    return table(title, ("", "value", "range", "label"), "<>><", rows) if rows else []


def comparison_lines(document: Mapping[str, Any]) -> list[str]:
    """Say systems one after another: what one is and serves, what serving everybody takes, what is not counted."""
    lines = wrapped(document["model"]) + _asked(document)
    for row in document["rows"]:
        quantities = dict(row["memory"]) | dict(row["owning"])
        quantities |= {name: row["answers"].get(name) for name in ("users_by_capacity", "users_at_slo", "token_s")}
        serving = row["serving_all"]
        if not isinstance(serving, str):
            quantities |= {"systems for all users": serving["copies"]}
            quantities |= {f"all users: {_words(name)}": serving[name] for name in ("capex_usd", "tco_usd", "power_w")}
        lines += quantity_lines(f"{row['system']}: {row['title']}", quantities)
        if isinstance(serving, str):
            lines += wrapped(serving, "  ")
        for name, saving in row.get("saving_of_owning", {}).items():
            share = f"{abs(100 * saving.value):.1f} % {'less' if saving.value >= 0 else 'more'}"
            percent = f"{share} {_words(name)} than {document['rows'][0]['system']}"
            lines += wrapped(f"one against one: {percent}, whatever each serves [{saving.evidence.label}]", "  ")
    lines += ["", *wrapped(f"Cheapest at this service level: {document['cheapest']}")]
    for title, notes in (("Not counted for", "left_out"), ("Mind for", "warnings")):
        for system, texts in document[notes].items():
            lines += listed(f"{title} {system}", texts)
    return lines


def breakeven_lines(document: Mapping[str, Any]) -> list[str]:
    """Say the grids of recompute over fetch, then what they leave out."""
    block, place = document["block_bytes"], document["asked"]["position"]
    lines = wrapped(f"{document['model']} on {document['accelerator']}: a block of {block.text()} at {place.text()}")
    lines.append("Times longer to recompute a block than to fetch it:")
    here = document["here"]
    lines += _grid("Note 004's terms: 2 P T at 500 TFLOP/s (reconstructed)", document["note"])
    lines += _grid("The same formula at this accelerator's peak", here["note_formula"])
    lines += _grid("With attention and memory, in a pass of its own", here["alone"])
    lines += _grid("With attention and memory, piggybacked on a running batch", here["piggybacked"])
    lines += _grid("From one NVMe drive, note 004's terms", document["nvme"]["note"])
    floors = {"floor, note 000's rate": document["note"]["floor_s"], f"floor, {document['accelerator']}": here["floor_s"]}
    lines += quantity_lines("Least time of a pass of its own: it reads all weights", floors)
    shares = {f"at {at} tokens": share for at, share in document["attention_share"].items()}
    lines += quantity_lines("Attention over linear FLOPs, which the note leaves out", shares)
    lines += quantity_lines("Four readings of recomputing the block", document["modes"])
    found = document["breakeven"]
    positions = {f"from position, {rate}": quantity for rate, quantity in found["position_tokens"].items()}
    lines += quantity_lines("Fetching wins", {"above the rate": found["bandwidth_bytes_per_s"], **positions})
    return [*lines, "", *wrapped(f"Decision: {document['decision']}")]


def sweep_lines(columns: Mapping[str, Any]) -> list[str]:
    """Tabulate a sweep's points, the first ones if there are many."""
    shown = ("context_tokens", "users", "read_fraction", "hbm_share", "token_s", "tokens_per_s", "meets_slo")
    heads = ("context", "users", "read", "in HBM", "token", "tokens/s", "SLO", "$/M tokens")
    total, rows = len(columns["users"]), []
    for row in range(min(total, _MOST_ROWS)):
        context, users, read, hbm, token, rate, meets = (columns[name][row] for name in shown)
        time = Quantity(float(token), "s").text()
        cells = [f"{context:,.0f}", f"{users:.0f}", f"{read:.3g}", f"{hbm:.3g}", time, f"{rate:.4g}", "yes" if meets else "no"]
        rows.append([*cells, f"{columns['usd_per_million_tokens'][row]:,.2f}"])
    lines = table("Sweep (values at the assumptions' points; ranges: plan one of them)", heads, ">" * len(heads), rows)
    return lines + ([f"  … {total - _MOST_ROWS:,} more points: --json prints all"] if total > _MOST_ROWS else [])


def _asked(document: Mapping[str, Any]) -> list[str]:
    return wrapped(", ".join(f"{_words(name)} {quantity.text()}" for name, quantity in document["asked"].items()))


def _grid(title: str, grid: Mapping[str, Any]) -> list[str]:
    """One grid: rows are rates, columns shares of the peak; its extremes in orders of magnitude below."""
    shares = [f"{again.inputs[-1].name}\n{_value(again)}" for again in grid["recompute_s"]]
    rows = [
        [
            f"{fetch.inputs[1].name}: {_value(fetch)}",
            *(f"{_value(ratio)} x\n{_range(ratio)}".rstrip() for ratio in ratios),
            ratios[0].evidence.label,
        ]
        for fetch, ratios in zip(grid["fetch_s"], grid["ratios"], strict=True)
    ]
    orders = grid["orders_of_magnitude"]
    lines = table(title, ("\nrate", *shares, "\nlabel"), "<" + ">" * len(shares) + "<", rows)
    return [*lines, f"  {orders['low']:.2f} to {orders['high']:.2f} orders of magnitude"]


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
