"""Public traces that are not part of this project: where they are, or why a test of them fails."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "traces"


def foreign_trace(name: str) -> Path:
    """Path of a public trace; a test that needs one fails, and is not skipped, where it is missing."""
    folders = [Path(os.environ["KVPAGER_TRACES"])] if "KVPAGER_TRACES" in os.environ else [BESIDE]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    pytest.fail(f"{name} is not in {folders[0]}: set KVPAGER_TRACES to the folder with the public traces (see its README)")
