"""Publish results: ``python -m experiments publish`` (``--check``: fail if what is published is not what the results say).

Gathers ``results/*.json`` into the package's ledger of findings, and writes the page *What is true*.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from experiments.page import page
from experiments.pictures import picture_of
from kvpager.claims.findings import FILE
from kvpager.claims.ledger import claims

__all__ = ["publish"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "true.md"


def publish(results: Path, *, check: bool) -> int:
    """Write, or compare with, what `results` say; return 1 if something differs."""
    runs = [orjson.loads(file.read_bytes()) for file in sorted(results.glob("E*.json"), key=lambda file: int(file.stem[1:]))]
    document = gathered(runs)
    files = {FILE: orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n", PAGE: page(document)}
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is not what the results say: run 'python -m experiments publish'", file=sys.stderr)
        else:
            path.write_text(files[path], encoding="utf-8")
            print(path.relative_to(ROOT))
    return int(check and bool(stale))


def gathered(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All findings and results, each with its experiment; claims in the ledger's order."""
    about = ("question", "command", "date", "scale", "seeds", "versions", "machine")
    found = {one["claim"]: one | _source(run, one["claim"]) for run in runs for one in run["findings"]}
    told = [
        {"claim": one["name"], "outcome": ""}
        | {key: value for key, value in one.items() if key != "name"}
        | _source(run, one["name"])
        | {"command": run["command"]}
        for run in runs
        for one in run["results"]
    ]
    return {
        "claims": [found[id] for id in claims() if id in found],
        "results": told,
        "constants": {
            one["symbol"]: {key: value for key, value in one.items() if key != "symbol"} | {"experiment": run["experiment"]}
            for run in runs
            for one in run.get("constants", [])
        },
        "experiments": {run["experiment"]: {key: run[key] for key in about} for run in runs},
    }


def _source(run: dict[str, Any], name: str) -> dict[str, str]:
    return {"picture": picture_of(name), "experiment": run["experiment"], "date": run["date"][:10]}
