"""``python -m experiments E1 E3 [--quick]``: run experiments; ``--list`` shows them; without names, all of them.

``python -m experiments publish`` writes what the results say into the ledger and the docs;
``python -m experiments pictures`` draws them.

Results go to ``experiments/results`` (what is published: committed) or, with ``--quick``, to the work folder, where the
signs are compared with those that are published: a difference that came out the other way fails the run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import orjson

from experiments.recordings import FULL, QUICK
from experiments.study import Study
from kvpager.errors import KVPagerError, UnknownName

__all__ = ["experiments", "main", "run"]

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def experiments() -> dict[str, ModuleType]:
    """All experiments by name: each file ``eNN_topic.py`` is one."""
    files = sorted(HERE.glob("e[0-9][0-9]_*.py"))
    return {f"E{int(file.stem[1:3])}": importlib.import_module(f"experiments.{file.stem}") for file in files}


def question(module: ModuleType) -> str:
    """The first line of an experiment's docstring."""
    return (module.__doc__ or "").strip().splitlines()[0]


def run(name: str, *, quick: bool, work: Path) -> bool:
    """Run one experiment and write its results.

    Returns
    -------
    bool
        False if the quick form's signs contradict those that are published.

    Raises
    ------
    UnknownName
        If there is no such experiment.
    """
    known = experiments()
    if name not in known:
        raise UnknownName(f"experiment {name!r} does not exist: choose among {', '.join(known)}")
    module = known[name]
    study = Study(name, question(module), QUICK if quick else FULL, work, lambda text: print(f"{name}: {text}", file=sys.stderr))
    module.run(study)
    written = study.write(work / "quick" if quick else RESULTS, f"python -m experiments {name}{' --quick' if quick else ''}")
    for found in study.findings:
        print(f"{name}  {found['claim']}: {found['outcome']}. {found['says']}")
    for found in study.results:
        print(f"{name}  {found['name']}: {found['says']}.")
    print(f"{name}  {written}")
    return not quick or _agrees(name, study.signs)


def _agrees(name: str, signs: dict[str, int]) -> bool:
    """Whether no sign is the opposite of the published one; what either side leaves open agrees with all."""
    published = RESULTS / f"{name}.json"
    if not published.is_file():
        return True
    theirs = orjson.loads(published.read_bytes())["signs"]
    wrong = [what for what, sign in signs.items() if sign * theirs.get(what, 0) < 0]
    for what in wrong:
        print(f"{name}: {what!r} came out with the sign {signs[what]:+d}, but {theirs[what]:+d} is published", file=sys.stderr)
    same = sum(sign == theirs.get(what) for what, sign in signs.items())
    print(f"{name}  {same} of {len(signs)} signs as published, {len(wrong)} the other way")
    return not wrong


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; 0, 1 if signs disagree, 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="E1", help="which; default all")
    parser.add_argument("--quick", action="store_true", help="1K tokens of context, minutes instead of hours")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(os.environ.get("KVPAGER_EXPERIMENTS", HERE / "work")),
        help="folder for recordings and parts",
    )
    parser.add_argument("--list", action="store_true", help="show all experiments")
    parser.add_argument("--check", action="store_true", help="with publish: only compare")
    asked = parser.parse_args(arguments)
    if asked.names == ["publish"]:
        from experiments.publish import publish

        return publish(RESULTS, check=asked.check)
    if asked.names == ["pictures"]:
        from experiments.pictures import draw

        print("\n".join(str(path) for path in draw(RESULTS, HERE.parent / "docs" / "img")))
        return 0
    if asked.list:
        for name, module in experiments().items():
            print(f"{name:<5} {question(module)}  [{', '.join(module.CLAIMS)}]")
        return 0
    try:
        agreed = [run(name, quick=asked.quick, work=asked.work) for name in asked.names or experiments()]
    except KVPagerError as error:
        print(f"experiments: {error}", file=sys.stderr)
        return 2
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main())
