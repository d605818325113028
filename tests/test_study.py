"""What the demo does to a recording, at a small scale and with everything on: the report takes it as it is."""

import contextlib

import orjson

from kvpager.demo import Scale, study
from kvpager.report.html import write_report
from kvpager.testing.recordings import synthetic_recording
from kvpager.traces.attention import AttentionWriter
from tests.traces.replayed import observation


def test_the_report_takes_a_study_with_everything_on(tmp_path):
    recording = synthetic_recording(num_layers=3, num_kv_heads=2, context_tokens=640, steps=24)
    path = tmp_path / "trace.zarr"
    with AttentionWriter(path, recording.header, steps=recording.steps, prefill_mass=recording.prefill_mass) as writer:
        for step in range(recording.steps):
            writer.append(observation(recording, step))
    bars = []

    @contextlib.contextmanager
    def stage(name):
        yield lambda done, total, what=name: bars.append((what, done, total))

    scale = Scale(640, 24, True, (0.15, 0.4), ("lru", "blend", "belady"), ("global", "layer", "equal"), 256, 4)
    document = study(path, scale=scale, stage=stage, command="kvpager demo", jobs=1)
    written = write_report(orjson.loads(orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)), tmp_path / "report.html")
    html = written.read_text()
    assert "contradicted" in html or "supported" in html
    assert {what for what, *_ in bars} >= {"ladder", "curves", "plan"}
    assert document["plan"]["answers"]["token_s"]["evidence"] == "assumption"
    assert "Plan: llama-3.1-70b on" in html
    for group in (document["ladder"], *document["ladder"]["others"]):
        for row in group["rungs"]:
            assert row["block_hit_ratio"] <= row["bound"] + 1e-9
