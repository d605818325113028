"""Pictures of the published results, for the docs: ``python -m experiments pictures``.

Each file ``eNN_topic.py`` here draws ``true-topic.png`` from the rows of experiment NN: ``CLAIMS`` names the claims and
results that show it, ``draw(rows)`` makes chart, title and subtitle.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

import vl_convert
from pyarrow import parquet

from experiments.pictures.marks import Picture
from kvpager.report.charts.base import wrapped
from kvpager.report.charts.style import THEMES

__all__ = ["draw", "drawn_by", "picture_of"]

WIDTH = 720


@cache
def drawn_by() -> dict[str, ModuleType]:
    """Module of each picture, by the picture's file name."""
    files = sorted(Path(__file__).parent.glob("e[0-9][0-9]_*.py"))
    return {f"true-{file.stem[4:]}.png": importlib.import_module(f"experiments.pictures.{file.stem}") for file in files}


def picture_of(name: str) -> str:
    """File name of the picture that a claim or result shows, or ""."""
    return next((file for file, module in drawn_by().items() if name in module.CLAIMS), "")


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw every picture whose experiment has results; return the files."""
    written = []
    for name, module in drawn_by().items():
        experiment = int(module.__name__.rpartition(".e")[2][:2])
        file = results / f"E{experiment}.parquet"
        if file.is_file():
            path = folder / name
            path.write_bytes(_png(module.draw(parquet.read_table(file).to_pylist())))
            written.append(path)
    return written


def _png(picture: Picture) -> bytes:
    chart, title, subtitle = picture
    spec = chart.properties(width=WIDTH - 220).to_dict()
    spec.pop("config", None)
    told = {"text": title, "subtitle": wrapped(subtitle, WIDTH // 6), "anchor": "start", "offset": 12}
    look = THEMES["light"] | {"background": "#ffffff"}
    found: bytes = vl_convert.vegalite_to_png(spec | {"title": told, "padding": 16}, vl_version="6.4", config=look, scale=2)
    return found
