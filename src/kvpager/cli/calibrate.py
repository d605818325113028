"""The command that fits the placement score's constants to recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from kvpager.cli.root import Jobs, Json, Seed, app, command_line, print_json, split_names, stage
from kvpager.units import parse_share

__all__ = ["calibrate"]


class _Calibrate(TyperCommand):
    """Takes several recordings after one ``--test``, as it does before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        spread: list[str] = []
        testing = False
        for argument in args:
            testing = argument == "--test" or (testing and not argument.startswith("-"))
            if testing and argument != "--test" and spread[-1] != "--test":
                spread.append("--test")
            spread.append(argument)
        return super().parse_args(ctx, spread)


@app.command(cls=_Calibrate, epilog="Example: kvpager calibrate novel.zarr library.zarr --test code.zarr docs.zarr")
def calibrate(
    train: Annotated[
        list[Path] | None,
        typer.Argument(metavar="T.zarr...", help="Attention traces to fit on, from 'kvpager record'.", show_default=False),
    ] = None,
    test: Annotated[
        list[Path] | None, typer.Option(help="Attention traces of other texts, which judge the fit.", show_default=False)
    ] = None,
    hbm: Annotated[str, typer.Option(help="HBM's payload, as a share of all KV or in bytes.")] = "6.84%",
    scale: Annotated[
        str, typer.Option(help="Scales of the EMA to choose among: raw, rank, max, uniform.")
    ] = "raw,rank,max,uniform",
    horizon: Annotated[int, typer.Option(help="Steps ahead in which an access counts, for the logistic fit.")] = 16,
    selector: Annotated[str, typer.Option(help="What counts as an access; see 'kvpager list selectors'.")] = "topp_mass",
    quick: Annotated[bool, typer.Option("--quick", help="Weights in steps of 0.1, not 0.05, and fewer resamplings.")] = False,
    seed: Seed = 0,
    jobs: Jobs = 0,
    json: Json = False,
) -> None:
    """Fit the placement score's weights, cuts and constants at a fixed HBM size; other texts say what that gains.

    The JSON document has: train (what the recordings are), setting, fit (scales, sweep, grids, sweep_again, logistic, horizons,
    cuts, policies) and, with --test, held_out (means, gains in points of block_hit_ratio with 95 % intervals over texts, rows).
    """
    from kvpager.claims.uncalibrated import printed
    from kvpager.replay.calibrate import calibrate as run
    from kvpager.replay.provenance import provenance
    from kvpager.traces.attention import read_recording

    paths = train or []
    whole = read_recording(paths[0]).kv_bytes if paths else 1
    with stage("calibrate") as bar:
        found = run(
            paths, test or [], hbm_fraction=parse_share(hbm, whole_bytes=whole), scales=split_names(scale), selector=selector,
            horizon=horizon, quick=quick, seed=seed, jobs=jobs, progress=bar,
        )  # fmt: skip
    document = {**provenance(command_line(), seed), **found, "uncalibrated": printed("policy placement", "policy placement-cuts")}
    if json:
        print_json(document)
        return
    from kvpager.report.calibration import print_calibration

    typer.echo("\n".join(print_calibration(document)))
