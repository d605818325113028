"""The command that judges output quality: what a way of reading loses of what dense attention gets right."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Device, Json, app, command_line, load, print_json, screen, split_names, stage, with_share
from kvpager.errors import BadInput

if TYPE_CHECKING:
    from kvpager.evaluate import Runner
    from kvpager.live.transformers import LoadedModel

__all__ = ["evaluate"]

RECOMMENDED = "key_bound:rerank=4"
"""It lost fewest needles; see docs/live.md."""
ROOM_TOKENS = 512
"""Of a question and its answer, or of a sequel, beside the context."""


@app.command(epilog="Example: kvpager evaluate --read 10% --selector outlier_mean --selector key_bound --tasks needle,perplexity")
def evaluate(
    model: Annotated[str, typer.Option(help="smollm2, a model directory, or a hub id.")] = "smollm2",
    device: Device = "cpu",
    mode: Annotated[str, typer.Option(help="selective: steps read what a selector chooses. exact: everything.")] = "selective",
    read: Annotated[str, typer.Option(help="Read fraction of a selective step.")] = "10%",
    selector: Annotated[
        list[str] | None, typer.Option(help="To judge; give it again for more.", show_default=RECOMMENDED)
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="Comma-separated, with settings as in needle:trials=2.")
    ] = "needle,multikey,copy,perplexity",
    hbm: Annotated[
        str | None, typer.Option(help="A share of all KV, or bytes; default 20 %, or 60 % where re-ranking keeps the keys there.")
    ] = None,
    dram: Annotated[str, typer.Option("--dram", "--cxl", help="Tier 2, a share or bytes; 0 = none.")] = "0",
    policy: Annotated[str, typer.Option(help="Ranks what stays in HBM; changes no output.")] = "blend",
    store: Annotated[Path | None, typer.Option(help="Directory of the backing stores; default a temporary one.")] = None,
    measure_every: Annotated[int, typer.Option(min=0, help="Measure the mass of what was read every so many steps.")] = 4,
    question: Annotated[
        str, typer.Option(help="turn: read in one call, densely, as generate does; steps: token by token, like the answer.")
    ] = "turn",
    keep: Annotated[
        Path | None, typer.Option(help="Folder for finished trials: an interrupted evaluation goes on from there.")
    ] = None,
    json: Json = False,
) -> None:
    """Judge output quality against dense attention, in paired trials after contexts that are read exactly."""
    chosen = _chosen(mode, selector, read)
    from kvpager.evaluate import TASKS
    from kvpager.evaluate import evaluate as judge
    from kvpager.live.store import make_selector
    from kvpager.registry import configure
    from kvpager.traces.provenance import now, this_machine, versions_of

    names = split_names(tasks)
    contexts = max((getattr(configure(TASKS, name), "tokens", 0) for name in names), default=0)
    access = {text: make_selector(text).describe() for text in chosen}
    from kvpager.evaluate.dense import DenseRunner, ModelLanguage
    from kvpager.evaluate.outcome import Kept

    loaded = load(model, device)
    versions = versions_of(["numpy", "torch", "transformers"])
    kept = None if keep is None else Kept(keep, f"{loaded.weights_sha256} {versions} measured every {measure_every}")
    with ExitStack() as stack:
        folder = store or Path(stack.enter_context(_temporary()))
        sizes = {"context_tokens": contexts + ROOM_TOKENS, "hbm": hbm, "dram": dram, "rows": 2}
        runners: dict[str, Runner] = {
            text or "exact": _runner(stack, loaded, folder / f"{number}", text, sizes, policy, measure_every)
            for number, text in enumerate(chosen or [None])
        }
        with stage("evaluate") as bar:
            found = judge(
                DenseRunner(loaded), runners, names, ModelLanguage(loaded),
                lambda what, done, total: bar(done, total, _plain(what)), question, kept,
            )  # fmt: skip
    document = found | {
        "model": loaded.name, "mode": mode, "read": read if chosen else None, "access": access, "hbm": hbm, "dram": dram,
        "policy": policy, "block_size": 16, "weights_sha256": loaded.weights_sha256, "evidence": "measured",
        "machine": this_machine(), "versions": versions, "command": command_line(), "date": now(),
    }  # fmt: skip
    (print_json if json else _print)(document)


def _chosen(mode: str, selectors: list[str] | None, read: str) -> list[str]:
    """Written forms of the selectors to judge, each with its read fraction; none for exact attention."""
    if mode not in ("exact", "selective"):
        raise BadInput(f"mode {mode!r} is unknown: choose exact or selective")
    if mode == "exact" and selectors:
        raise BadInput("--selector is for --mode selective: exact attention reads everything")
    asked = (selectors or [RECOMMENDED]) if mode == "selective" else []
    return [text if "read_fraction=" in text else with_share(text, read) for text in asked]


def _plain(what: str) -> str:
    """Name a progress bar in letters and digits."""
    return " ".join(re.findall(r"[a-z0-9]+", what))


def _temporary() -> Any:
    from tempfile import TemporaryDirectory

    return TemporaryDirectory(prefix="kvpager-evaluate-")


def _runner(
    stack: ExitStack, loaded: LoadedModel, folder: Path, selector: str | None, sizes: dict[str, Any], policy: str, every: int
) -> Runner:
    """Open a store of its own for a selector, and run over it."""
    from kvpager.live.opening import open_store, plan_budget
    from kvpager.live.store import make_selector
    from kvpager.live.transformers.runner import TieredRunner

    folder.parent.mkdir(parents=True, exist_ok=True)
    keeps_keys = selector is not None and bool(vars(make_selector(selector)).get("rerank"))
    sizes = sizes | {"hbm": sizes["hbm"] or ("60%" if keeps_keys else "20%")}
    budget = plan_budget(loaded.geometry, selector=selector, **sizes)
    tiers = stack.enter_context(open_store(loaded, folder, budget, policy=policy, selector=selector))
    return TieredRunner(loaded, tiers, selective=selector is not None, measure_every=every if selector else 0)


def _print(document: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = screen()
    for task in document["tasks"]:
        dense = task["dense"]
        about = f"{task['task']}: {task['contexts']} contexts of {task['context_tokens']:.0f} tokens"
        asked = "right" in dense
        heads = ("right", "lost of dense's", "95 % interval") if asked else ("perplexity", "change", "same next token")
        table = Table("selector", *heads, "KL", "mass read", box=SIMPLE_HEAD, title=about, title_justify="left")
        plain = f"{dense['right']} of {task['trials']}" if asked else f"{dense['perplexity']:.2f}"
        table.add_row("dense", plain, "", "", "", "")
        for name, row in task["runners"].items():
            mass = f"{row['read_mass']:.3f}" if "read_mass" in row else ""
            if asked:
                span = f"{row['lost_low']:.1%} to {row['lost_high']:.1%}"
                told = (f"{row['right']} of {task['trials']}", f"{row['lost']} of {row['of']}", span)
            else:
                told = (f"{row['perplexity']:.2f}", f"{row['perplexity_change']:+.1%}", f"{row['same_next_token']:.1%}")
            table.add_row(name, *told, f"{row['kl_mean']:.3f}", mass)
        console.print(table)
    console.print(f"questions: read {document['question']}")
    for left_out in document["dropped"]:
        console.print(f"dropped {left_out['task']}: {left_out['why']}")
    for name, access in document["access"].items():
        console.print(f"{name}: {access}")
    console.print(f"evidence: {document['evidence']}")
