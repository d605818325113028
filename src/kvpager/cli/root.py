"""What all commands share: the app, how a run ends, progress on stderr, JSON on stdout."""

from __future__ import annotations

import copy
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import kvpager
from kvpager.errors import BadInput, InvariantError, KVPagerError

if TYPE_CHECKING:
    from rich.console import Console

    from kvpager.demo import Bar
    from kvpager.live.transformers import LoadedModel

__all__ = [
    "Device",
    "Jobs",
    "Json",
    "Seed",
    "app",
    "command_line",
    "load",
    "main",
    "print_json",
    "screen",
    "seconds",
    "split_names",
    "stage",
    "with_share",
]

app = typer.Typer(
    name="kvpager",
    help="Plan, prove and run tiered KV caches for LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_UsageError: Any = typer.BadParameter.__base__  # typer exports no other name for wrong options and missing arguments

_EXTRAS = {
    "altair": "report", "gguf": "record", "jinja2": "report", "joblib": "replay", "numba": "live",
    "prometheus_client": "metrics", "pyarrow": "requests", "safetensors": "record", "scipy": "replay", "streamlit": "explorer",
    "torch": "record", "transformers": "record", "vl_convert": "report", "xxhash": "live", "zarr": "trace",
}  # fmt: skip
"""The extra that brings a package which not every command needs."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Device = Annotated[str, typer.Option(help="Where the model and tiers 0 and 1 are: cpu, cuda, cuda:1.")]
Seed = Annotated[int, typer.Option(help="Seed of the hash that breaks ties.")]
Jobs = Annotated[int, typer.Option(min=0, help="Processes; 0 = one a core.")]


def main() -> None:
    """Run the command line; bad input ends in one line and exit code 2."""
    command = typer.main.get_command(_asked(sys.argv[1:2]))
    try:
        with command.make_context("kvpager", sys.argv[1:]) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except _UsageError as error:
        message = error.format_message().rstrip(".")  # none: help was shown
        _refuse(message and f"{message}: see '{error.ctx.command_path if error.ctx else 'kvpager'} --help'")
    except InvariantError:
        raise
    except KVPagerError as error:
        _refuse(str(getattr(error, "strerror", None) or error))
    except KeyboardInterrupt as interrupt:
        _refuse(f"interrupted{': ' if interrupt.args else ''}{interrupt}")
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        _refuse(f"this command needs the package {error.name!r}, which is not installed: pip install 'kvpager[{extra}]'")
    except BrokenPipeError:  # the reader of stdout has gone, and needs no message
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.filename is None:
            raise
        _refuse(f"{error.filename!r} cannot be used ({error.strerror}): choose another place")


def _asked(name: list[str]) -> typer.Typer:
    """Return the app with the one command that is asked for, if there is one: building all of them takes longer than a plan."""
    alone = copy.copy(app)
    alone.registered_commands = [
        one for one in app.registered_commands if [one.name or getattr(one.callback, "__name__", "")] == name
    ]
    return alone if alone.registered_commands else app


def _refuse(message: str) -> NoReturn:
    """End with `message` on one line of stderr, whatever a library put into it, and exit code 2."""
    if message:
        typer.echo(f"kvpager: {' '.join(message.split())}", err=True)
    sys.exit(2)


@contextmanager
def stage(name: str) -> Iterator[Bar]:
    """Show progress bars with the time left on stderr; lines at every tenth where stderr is no terminal."""
    if not sys.stderr.isatty():
        shown: dict[str, int] = {}

        def line(done: int, total: int, what: str = name) -> None:
            tenth = 10 * done // max(total, 1)
            if tenth > shown.get(what, -1):
                shown[what] = tenth
                typer.echo(f"{what}: {done}/{total}", err=True)

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def bar(done: int, total: int, what: str = name) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done, total=total)

        yield bar


def load(model: str, device: str = "cpu") -> LoadedModel:
    """Load a model, with a bar."""
    from kvpager.live.transformers import load_model

    with stage("load model") as bar:
        return load_model(model, device=device, progress=lambda what, done, total: bar(done, total, what))


def screen() -> Console:
    """Return the console for stdout: texts are printed as they are, so that ``[measured]`` is no markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False)


def command_line() -> str:
    """Return the command line as typed, without the directories of absolute paths: they tell who and where."""
    return shlex.join(["kvpager", *(re.sub(r"(^|=)/.*/", r"\1", argument) for argument in sys.argv[1:])])


def split_names(text: str) -> list[str]:
    """Split at commas, but not inside a plug-in's settings: ``placement:cuts=[0.3,0.6],scale=rank,lru`` is two."""
    parts: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        if parts and "=" in part and ":" not in part:
            parts[-1] += "," + part
        elif part.strip():
            parts.append(part.strip())
    if not parts:
        raise BadInput(f"{text!r} names nothing: give at least one, separated by commas")
    return parts


def with_share(selector: str, read: str) -> str:
    """Return the written form of `selector` with `read` as its read fraction; the last one written counts."""
    from kvpager.units import parse_share

    return f"{selector}{',' if ':' in selector else ':'}read_fraction={parse_share(read)}"


def seconds(text: str) -> float:
    """Parse a service level, the longest time of a token: ``"100ms"``."""
    from kvpager.units import parse_quantity

    try:
        value, unit = parse_quantity(text)
    except BadInput as error:
        raise BadInput(f"service level {text!r}: {error}; write for example 100ms") from error
    if unit != "s" or value <= 0:
        raise BadInput(f"service level {text!r} is no time: write for example 100ms")
    return value


def print_json(document: dict[str, Any]) -> None:
    """Print `document` as the one JSON document on stdout."""
    import orjson

    sys.stdout.write(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2).decode() + "\n")


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(kvpager.__version__)
        raise typer.Exit
