"""Prefill beside decode: what each computes, moves and takes."""

from __future__ import annotations

from kvpager.evidence import Quantity
from kvpager.explorer.choices import Choices
from kvpager.explorer.commands import plan_command
from kvpager.explorer.dots import Dot, dots
from kvpager.explorer.part import PARTS, Figure, Part, Screen
from kvpager.explorer.sources import plan
from kvpager.report.charts.base import Panel
from kvpager.units import format_quantity

__all__ = ["Phases"]

_PREFILL, _DECODE = "prefill of one context", "one decode step of all users"


@PARTS.register("phases")
class Phases(Part):
    """Seconds and bytes of a prompt's computation and of one step."""

    number = 4
    title = "Prefill against decode"
    shows = "How long computing a prompt takes beside one decode step, what fills the step, and the bytes behind both."
    known = "Analytical, from data sheets and from assumed efficiencies, whose ranges are drawn; not measured on this hardware."
    claims = (
        "prefill-decode-bound",
        "decode-total-reads",
        "naive-bw",
        "step-50ms",
        "step-50-vs-100",
        "selective-attention",
        "capacity-driven",
    )
    sliders = ("context", "users", "read")

    def command(self, choices: Choices) -> str:
        return plan_command(choices)

    def screen(self, choices: Choices) -> Screen:
        answer = plan(choices)
        step, prefill = answer["step"], answer["prefill"]["prefill_s"]
        weights, kv = step["memory_s"].inputs[:2]
        times = [
            Dot("prefill, computed once", prefill, _PREFILL),
            Dot("decode, compute", step["compute_s"], _DECODE),
            Dot("decode, read HBM", step["memory_s"], _DECODE),
            Dot("decode, fetch from below", step["transfer_s"], _DECODE),
            Dot("decode, the whole step", step["step_s"], _DECODE),
        ]
        sizes = [
            Dot("prefill, weights read at least once", answer["capacity"]["weights_bytes"], _PREFILL),
            Dot("prefill, KV written", answer["capacity"]["kv_bytes_per_user"], _PREFILL),
            Dot("decode, weights read", weights, _DECODE),
            Dot("decode, KV read from HBM", kv, _DECODE),
            Dot("decode, of it fetched from below", step["miss_bytes"], _DECODE),
        ]
        labels = f"lines: ranges; {step['step_s'].evidence.label}"
        return Screen(
            (
                Panel("time", "Time", f"seconds (log scale); {labels}", dots(times, "time (log scale)")),
                Panel("bytes", "Bytes", f"bytes (log scale); {labels}", dots(sizes, "bytes (log scale)")),
            ),
            _figures(answer["step"], prefill, weights, kv, self.command(choices)),
            f"Computing {choices.context:,} tokens takes {_text(prefill)}; one step of {choices.users} users takes "
            f"{_text(step['step_s'])}: {_text(step['compute_s'])} of compute or {_text(step['memory_s'])} of reading HBM, "
            f"whichever is longer, and {_text(step['exposed_s'])} of waiting for {_text(step['miss_bytes'])} from below.",
        )


def _figures(step: dict[str, Quantity], prefill: Quantity, weights: Quantity, kv: Quantity, command: str) -> tuple[Figure, ...]:
    labels = {
        "compute_s": "compute of a step",
        "memory_s": "reading HBM in a step",
        "transfer_s": "fetching in a step",
        "exposed_s": "of it not hidden",
        "step_s": "a whole step",
        "read_bytes": "KV that attention reads in a step",
        "miss_bytes": "of it not in HBM",
    }
    inputs = "step.memory_s.inputs"
    return (
        Figure("prefill of one context", prefill, command, "prefill.prefill_s"),
        *(Figure(label, step[key], command, f"step.{key}") for key, label in labels.items()),
        Figure("weights read in a step", weights, command, f"{inputs}.{weights.name}"),
        Figure("KV and scores moved in HBM in a step", kv, command, f"{inputs}.{kv.name}"),
    )


def _text(quantity: Quantity) -> str:
    return format_quantity(quantity.value, quantity.unit)
