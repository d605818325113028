"""A small recording and what a run of the demo would say of it."""

import orjson
import pytest
from tests.stored import save_recording

from kvpager.cli.root import stage
from kvpager.demo import Scale, study
from kvpager.explorer.choices import Choices
from kvpager.testing.recordings import synthetic_recording

SCALE = Scale(640, 32, True, (0.0684, 0.25), ("lru", "ema", "blend", "belady"), ("global", "equal"), 0, 0)


@pytest.fixture(scope="session")
def chosen(tmp_path_factory):
    """All choices at their defaults, with a made-up recording and the study that ``kvpager demo`` makes of one; no live run."""
    folder = tmp_path_factory.mktemp("chosen")
    trace = save_recording(synthetic_recording(context_tokens=640, steps=32), folder / "attention.zarr")
    document = study(trace, scale=SCALE, stage=stage, command="kvpager demo", seed=0, jobs=1)
    (folder / "report.json").write_bytes(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY))
    return Choices(trace=str(trace), run=str(folder / "report.json"))
