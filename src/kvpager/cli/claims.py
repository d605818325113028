"""The command that asks the ledger what is true of a claim."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpager.cli.root import Json, app, print_json
from kvpager.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from kvpager.claims.uncalibrated import Constant

__all__ = ["claims"]


@app.command(epilog="Example: kvpager claims softmax-example\n\nExample: kvpager claims ladder-values --run --quick")
def claims(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Claims to explain; all, if none is named.")] = None,
    verdict: Annotated[str | None, typer.Option(help="Only claims with this verdict, e.g. inconsistent.")] = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="The constants that the notes set without calibration, instead.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="Run the experiment that settles the claim, anew; hours, but resumable.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --run: its reduced form, in minutes, beside what is published.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the source notes' claims: what is stated, what follows, and what settles the rest."""
    from kvpager.claims import ledger
    from kvpager.claims.uncalibrated import register

    if quick and not run:
        raise BadInput("--quick is the reduced form of an experiment: give --run too")
    if run:
        raise typer.Exit(_run([ledger.claim(id).id for id in ids or []], quick))
    if uncalibrated:
        _show_register(register(), json)
        return
    from kvpager.claims.check import explain, row

    if verdict is not None and verdict not in ledger.VERDICTS:
        raise UnknownName(f"verdict {verdict!r} is unknown: use one of {', '.join(ledger.VERDICTS)}")
    chosen = [ledger.claim(id) for id in ids] if ids else [*ledger.claims().values()]
    kept = [one.id for one in chosen if verdict in (None, one.verdict)]
    if ids and not json:
        typer.echo("\n\n".join("\n".join(explain(id)) for id in kept) or f"none of them is {verdict}")
        return
    rows: Any = [row(id) for id in kept]
    if json:
        print_json(rows)
    else:
        _show(rows)


def _run(ids: list[str], quick: bool) -> int:
    """Run the experiments that settle `ids`, from a checkout; return their exit status."""
    from kvpager.claims.findings import finding

    if not ids:
        raise BadInput("--run needs claims: name them, as in 'kvpager claims ladder-values --run', or use 'make experiments'")
    found = {id: finding(id) for id in ids}
    for id, one in found.items():
        if one is None:
            raise BadInput(f"claim {id!r} is settled by no experiment: 'kvpager claims {id}' shows its check")
    root = Path(__file__).resolve().parents[3]
    if not (root / "experiments" / "__main__.py").is_file():
        raise BadInput(
            "experiments are in the source repository, not in the installed package: clone it, 'make demo', and run there"
        )
    names = dict.fromkeys(one.experiment for one in found.values() if one is not None)
    return subprocess.run(
        [sys.executable, "-m", "experiments", *names, *(["--quick"] if quick else [])], cwd=root, check=False
    ).returncode


def _show(rows: list[dict[str, Any]]) -> None:
    """One line a claim, then how many came out how."""
    for one in rows:
        fallen = "" if one["status"] == "audited" else f"  [{one['status']}]"
        values = f"stated {_text(one['stated'])}, derived {_text(one['derived'])}"
        typer.echo(f"{one['id']:<26} {one['outcome']:<19} {one['verdict']:<32} {values}{fallen}")
    counts = Counter(one["outcome"] for one in rows)
    fallen = sum(one["status"] != "audited" for one in rows)
    typer.echo(
        f"\n{len(rows)} claims: {', '.join(f'{count} {word}' for word, count in counts.items())}; {fallen} withdrawn or demoted."
    )
    typer.echo("One with its numbers: kvpager claims softmax-example")


def _text(quantity: dict[str, Any] | None) -> str:
    if quantity is None:
        return "-"
    values = quantity["value"] if isinstance(quantity["value"], list) else [quantity["value"]]
    numbers = " / ".join(f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}" for value in values)
    return numbers if quantity["unit"] == "1" else f"{numbers} {quantity['unit']}"


def _show_register(constants: Sequence[Constant], json: bool) -> None:
    if json:
        document: Any = [one.to_json() for one in constants]
        print_json(document)
        return
    for one in constants:
        typer.echo(f"{one.symbol} = {one.text}  ({one.claim}): {one.controls}")
        typer.echo(f"    {one.direction}")
        typer.echo(f"    fitted by {one.fitted_text or 'no run'}; used by {', '.join(one.used_by)}")
