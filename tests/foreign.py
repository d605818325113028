"""Public traces that are not part of this project: where they are, or why a test of them did not run."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "traces"


def foreign_trace(name: str) -> Path:
    """Path of a public trace; without it, the test is skipped and the end of the run says so."""
    folders = [Path(os.environ["KVPAGER_TRACES"])] if "KVPAGER_TRACES" in os.environ else [BESIDE]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    pytest.skip(
        f"NOT RUN: {name} is not in {folders[0]}: set KVPAGER_TRACES to the folder with the public traces (see its README)"
    )
