"""Parts that follow from model and system: the same numbers as the command line's on every kind of both, and what is drawn."""

import functools
import math
import shlex

import orjson
import pytest
from typer.testing import CliRunner

from kvpager.cli.root import app
from kvpager.explorer.choices import Choices
from kvpager.explorer.part import PARTS
from kvpager.explorer.sources import system

PLANNED = ("geometry", "size", "phases", "topology")
CASES = [
    ("llama-3.1-70b", "note-000-cxl", 131_072),
    ("llama-3.1-70b", "b200x4-tp", 131_072),
    ("deepseek-v3.2", "b200x8-tp", 65_536),
    ("gemma-3-27b", "b200-fp8", 4096),
    ("qwen3-8b", "note-000-offload", 32_768),
    ("qwen3-next-80b-a3b", "rtx-4090-nvme", 8192),
]


def rows(panel):
    spec = panel.spec()
    inside = [layer.get("data", {}).get("values", []) for layer in spec.get("layer", [spec])]
    return [
        row for values in [*spec.get("datasets", {}).values(), *inside, spec.get("data", {}).get("values", [])] for row in values
    ]


@functools.cache
def asked(command):
    found = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    assert found.exit_code == 0, found.output
    return orjson.loads(found.stdout)


@pytest.mark.parametrize("part", PLANNED)
@pytest.mark.parametrize(("model", "machine", "context"), CASES)
def test_figures_are_the_command_line_s_for_any_model_and_system(part, model, machine, context):
    shown = PARTS[part]().screen(Choices(model=model, system=machine, context=context, users=7, read=0.1))
    assert shown.figures
    for figure in shown.figures:
        printed = asked(figure.command)
        for step in figure.key.split("."):
            printed = printed[step]
        value = printed["value"] if isinstance(printed, dict) else printed
        expected = math.inf if value == "never" else value
        assert figure.quantity.value == pytest.approx(expected, rel=1e-12), figure.key
        if isinstance(printed, dict):
            assert (figure.quantity.unit, figure.quantity.evidence.label) == (printed["unit"], printed["evidence"])
    assert b"NaN" not in orjson.dumps([panel.spec() for panel in shown.panels])
    numbers = [v for panel in shown.panels for row in rows(panel) for v in row.values() if isinstance(v, float)]
    assert all(map(math.isfinite, numbers))


def test_every_layer_is_drawn_once_as_what_it_is():
    shown = PARTS["geometry"]().screen(Choices(model="gemma-3-27b"))
    drawn = {row["layer"]: row["kind"] for row in rows(shown.panels[0])}
    assert sorted(drawn) == list(range(62))
    assert [layer for layer, kind in drawn.items() if kind == "full attention"] == [5, 11, 17, 23, 29, 35, 41, 47, 53, 59]
    assert "52 × window of 1,024 tokens; 10 × full attention" in shown.words


def test_eight_neighbouring_query_heads_read_one_kv_head():
    heads = {row["head"]: row["read"] for row in rows(PARTS["geometry"]().screen(Choices()).panels[1])}
    assert heads == {query: query // 8 for query in range(64)}


def test_sizes_of_the_note_s_model():
    words = PARTS["size"]().screen(Choices()).words
    for size in (
        "KV head 512 B",
        "8 KV heads 4 KiB",
        "layer and KV head 8 KiB",
        "80 layers 320 KiB",
        "80 layers 5 MiB",
        "40 GiB",
    ):
        assert size in words


@pytest.mark.parametrize("machine", ["b200-host-cxl", "b200x8-tp"])
def test_the_point_on_the_curve_is_what_all_ranks_keep(machine):
    choices = Choices(model="deepseek-v3.2", system=machine, context=65_536)
    shown = PARTS["size"]().screen(choices)
    point = next(row for row in rows(shown.panels[0]) if set(row) == {"low", "GB"})
    assert point["GB"] == pytest.approx(system(machine).tp * shown.figures[0].quantity.value / 1e9, rel=1e-3)


def test_a_bound_path_is_the_upstream_link_not_the_sum_of_the_endpoints():
    shown = PARTS["topology"]().screen(Choices(system="note-000-cxl", users=20, read=0.5))
    cxl = {row["rate"]: row["bound"] for row in rows(shown.panels[0]) if row["tier"] == "cxl"}
    assert cxl == {"64 GB/s": "sets the pace of its tier", "256 GB/s": "could carry more"}
    fetched = next(figure.quantity.value for figure in shown.figures if figure.key.endswith("cxl_miss_bytes"))
    times = [row["value"] for row in rows(shown.panels[1]) if row.get("kind") == "sets the pace of its tier"]
    assert times[0] == pytest.approx(fetched / 64e9, rel=1e-3)


def test_a_system_without_tiers_fetches_nothing():
    shown = PARTS["topology"]().screen(Choices(system="b200x4-tp"))
    assert len(shown.panels) == 1
    assert "There is no tier below HBM. A step fetches nothing" in shown.words


def test_a_step_is_its_longer_half_and_what_is_not_hidden():
    found = {figure.key: figure.quantity.value for figure in PARTS["phases"]().screen(Choices()).figures}
    half = max(found["step.compute_s"], found["step.memory_s"])
    assert found["step.step_s"] == pytest.approx(half + found["step.exposed_s"])


@pytest.mark.parametrize(("model", "weights"), [("llama-3.1-70b", "weights_bytes"), ("gpt-oss-20b", "weights_read_bytes")])
def test_bytes_of_a_step_are_the_weights_it_reads_and_the_kv(model, weights):
    shown = PARTS["phases"]().screen(Choices(model=model))
    keys = {figure.label: figure.key for figure in shown.figures}
    assert keys["weights read in a step"] == f"step.memory_s.inputs.{weights}"
    assert keys["KV and scores moved in HBM in a step"] == "step.memory_s.inputs.kv_read_bytes"
