"""Commands that run: generate over tiers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Device, Json, Seed, app, command_line, load, print_json, stage, with_share
from kvpager.errors import BadInput, CapacityError
from kvpager.units import parse_bytes, parse_tokens

if TYPE_CHECKING:
    from kvpager.live.store import TieredStore
    from kvpager.live.transformers import LoadedModel, Session

__all__ = ["generate"]

MODES = ("exact", "selective")
HbmOption = Annotated[
    str, typer.Option(help="A share of all KV (its payload), or bytes (payload, metadata and staging together).")
]
PolicyOption = Annotated[str, typer.Option(help="Ranks what stays in HBM; see 'kvpager list policies'.")]


@app.command(epilog="Example: kvpager generate --prompt-file book.txt --mode exact --hbm 5% --store kv --max-new-tokens 64")
def generate(
    store: Annotated[Path, typer.Option(help="Directory of the backing store; made if need be.", show_default=False)],
    prompt_file: Annotated[
        Path | None, typer.Option(help="The prompt, UTF-8; needed unless a session is resumed.", show_default=False)
    ] = None,
    model: Annotated[str, typer.Option(help="smollm2, a model directory, or a hub id.")] = "smollm2",
    device: Device = "cpu",
    mode: Annotated[
        str, typer.Option(help="exact: every block is attended to. selective: a step reads what the selector chooses.")
    ] = "exact",
    hbm: HbmOption = "10%",
    dram: Annotated[str, typer.Option("--dram", "--cxl", help="Tier 2, a share or bytes; 0 = none.")] = "0",
    read: Annotated[str | None, typer.Option(help="Read fraction of a selective step, e.g. 10%.")] = None,
    selector: Annotated[str, typer.Option(help="Of a selective step; see 'kvpager list selectors'.")] = "outlier_mean",
    policy: PolicyOption = "blend",
    pool: Annotated[str, typer.Option(help="Who shares HBM: global, layer, equal.")] = "global",
    keys: Annotated[
        str | None, typer.Option(help="tiered: keys come and go with values. fast: they stay in HBM, which re-ranking needs.")
    ] = None,
    prefetch: Annotated[str | None, typer.Option(help="A prefetcher; see 'kvpager list prefetchers'.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, help="Tokens to generate; 0 = only take in the prompt.")] = 64,
    context: Annotated[str | None, typer.Option(help="Longest context to plan for; default prompt and new tokens.")] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens that go through the model at once.")] = 512,
    disk: Annotated[str | None, typer.Option(help="Most bytes of the backing store; default twice the KV.")] = None,
    resume: Annotated[str | None, typer.Option(help="Go on with a parked session, by its id.")] = None,
    session: Annotated[str | None, typer.Option(help="Id to park the session under; default random.")] = None,
    record: Annotated[Path | None, typer.Option(help="Log every call of the Pager, for 'kvpager replay'.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a log at that path.")] = False,
    lockstep: Annotated[bool, typer.Option("--lockstep", help="Wait for all I/O at each tick: repeatable to the move.")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the most likely.")] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Of --sample.")] = 1.0,
    measure_every: Annotated[
        int, typer.Option(min=0, help="Every so many selective steps, read the rest too and measure the mass of what was read.")
    ] = 0,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Generate with a KV cache in tiers, and park it as a session that a later run can go on with."""
    _check(mode, read, prompt_file, resume, session)
    from kvpager.traces.recorder import read_text

    text = None if prompt_file is None else read_text(prompt_file)
    chosen = None if mode == "exact" else selector if read is None else with_share(selector, read)
    from kvpager.live.opening import open_store, plan_budget

    loaded = load(model, device)
    prompt = [] if text is None else loaded.tokenize(text)
    needed = _needed(loaded, 0 if resume is None else _parked_tokens(store, resume), len(prompt), max_new_tokens, context)
    budget = plan_budget(loaded.geometry, context_tokens=needed, hbm=hbm, dram=dram, selector=chosen, keys=keys)
    if not json:
        typer.echo(budget.describe(), err=True)
    options = {"do_sample": sample, "temperature": temperature, "top_p": top_p, "seed": seed if sample else None}
    with open_store(
        loaded, store, budget, policy=policy, pool=pool, prefetcher=prefetch, selector=chosen, seed=seed, lockstep=lockstep,
        disk_bytes=None if disk is None else parse_bytes(disk), record=record, overwrite=overwrite, command=command_line(),
    ) as tiers:  # fmt: skip
        made = _session(loaded, tiers, resume, session, chunk, selective=mode == "selective", measure_every=measure_every)
        document = _run(made, loaded, prompt, max_new_tokens, options, quiet=json)
    if json:
        print_json(document)


def _check(mode: str, read: str | None, prompt_file: Path | None, resume: str | None, session: str | None) -> None:
    """Refuse options that contradict each other."""
    if mode not in MODES:
        raise BadInput(f"mode {mode!r} is unknown: choose {' or '.join(MODES)}")
    if mode == "exact" and read is not None:
        raise BadInput("--read is for --mode selective: exact attention reads everything")
    if prompt_file is None and resume is None:
        raise BadInput("nothing to go on from: give --prompt-file, or --resume with a session's id")
    if resume is not None and session not in (None, resume):
        raise BadInput(f"session {resume!r} keeps its id when it is resumed: leave out --session")


def _needed(loaded: LoadedModel, parked: int, prompt: int, new: int, context: str | None) -> int:
    """Tokens to plan for; refuse more than the model takes."""
    needed, longest = parked + prompt + new, loaded.geometry.max_context_tokens
    if longest is not None and needed > longest:
        raise CapacityError(
            f"model {loaded.name!r} takes {longest} tokens, but {parked + prompt} of context and {new} new ones are {needed}: "
            "give a shorter prompt or fewer new tokens"
        )
    return max(needed, 0 if context is None else parse_tokens(context))


def _session(
    loaded: LoadedModel, tiers: TieredStore, resume: str | None, id: str | None, chunk: int, *, selective: bool,
    measure_every: int,
) -> Session:  # fmt: skip
    from kvpager.live.transformers import Session

    if resume is None:
        made = Session(loaded, tiers, id=id, selective=selective, chunk=chunk)
    else:
        made = Session.resume(loaded, tiers, resume, selective=selective, chunk=chunk)
    made.cache.batch.measure_every = measure_every
    return made


def _parked_tokens(store: Path, id: str) -> int:
    """How long a parked session is: HBM is sized before the store is opened."""
    from kvpager.slab.sessions import sessions_in

    for found in sessions_in(store):
        if found.id == id:
            return found.tokens or 0
    raise BadInput(f"store {str(store)!r} has no parked session {id!r}: 'kvpager store info {store}' lists them")


def _run(
    session: Session, loaded: LoadedModel, prompt: list[int], max_new_tokens: int, options: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    """Feed the prompt, generate with live progress, park; return the document."""
    tiers, ends = session.store, loaded.tokenizer.eos_token_id
    with stage("prefill") as bar:
        begin = time.perf_counter()
        session.run(0, prompt, on_fed=lambda done, total: bar(done, total))
        prefill_s = time.perf_counter() - begin
    with _progress(tiers, max_new_tokens) as show:
        begin = time.perf_counter()
        new = session.run(max_new_tokens, on_token=lambda token: show(), stop=() if ends is None else (ends,), **options)
        decode_s = time.perf_counter() - begin
    id = session.park()
    rate = len(new) / decode_s if new else None
    document = {
        "tokens": new,
        "text": loaded.tokenizer.decode(new, skip_special_tokens=True),
        "tokens_per_s": rate,
        "prefill_s": prefill_s,
        "session": {"id": id, "tokens": len(session.tokens)},
        **tiers.document(),
        "notices": [*session.notices, *tiers.slabs.stats.notices],
    }
    session.close()
    if not quiet:
        _print(document)
    return document


@contextmanager
def _progress(tiers: TieredStore, total: int) -> Iterator[Callable[[], None]]:
    """Show tokens, how full the tiers are, and the ratios so far, on stderr."""
    done, begin, last = 0, time.perf_counter(), -1

    def line() -> str:
        ratio = tiers.counts.block_hit_ratio
        hits = "" if ratio is None else f", block_hit_ratio {100 * ratio:.1f} %"
        used = ", ".join(f"{name} {100 * share:.0f} %" for name, share in tiers.fill().items())
        return (
            f"generate: {done}/{total} tokens, {done / max(time.perf_counter() - begin, 1e-9):.1f} a second{hits}; full: {used}"
        )

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True, markup=False), refresh_per_second=4, get_renderable=line):

            def count() -> None:
                nonlocal done
                done += 1

            yield count
        return

    def tell() -> None:
        nonlocal done, last
        done += 1
        if 10 * done // max(total, 1) > last:
            last = 10 * done // max(total, 1)
            typer.echo(line(), err=True)

    yield tell


def _print(document: dict[str, Any]) -> None:
    typer.echo(document["text"])
    rate, ratio = document["tokens_per_s"], document["block_hit_ratio"]
    parts = [
        f"session {document['session']['id']}, {document['session']['tokens']} tokens, parked",
        f"prefill {document['prefill_s']:.1f} s",
        "" if rate is None else f"{rate:.1f} tokens/s",
        "" if ratio is None else f"block_hit_ratio {100 * ratio:.1f} % ({document['access']})",
        "" if document["read_mass"] is None else f"mass of what was read {100 * document['read_mass']:.1f} %",
        "; ".join(f"{name} {tier['accesses']} accesses" for name, tier in document["per_tier"].items() if tier["accesses"]),
        f"evidence: {document['evidence']}",
        *document["notices"],
    ]
    typer.echo("\n".join(part for part in parts if part), err=True)
