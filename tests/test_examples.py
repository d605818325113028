"""Every example runs as written, says what kind of number it prints, and prints true ones."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvpager.testing.recordings import synthetic_recording
from tests.stored import save_recording

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments):
    """Run an example with warnings as errors; return its lines."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def ratios(line):
    return [float(found) for found in re.findall(r"([\d.]+)%", line)]


def test_these_are_all():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == ["add_a_policy", "compare_policies", "geometry", "run_tiered"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_to_run_it(path):
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8")


def test_compare_policies():
    lines = run("compare_policies")
    rows = {(cells[0], cells[1]): ratios(line) for line in lines[2:] if (cells := line.split())}
    assert len(rows) == 14
    for hits, bound, _dense, mass in rows.values():
        assert 0 <= hits <= bound <= 100
        assert mass <= 100
    for pool in ("global", "equal"):
        assert rows["belady", pool][0] == rows["belady", pool][1]
    assert "simulated" in lines[1]


def test_compare_policies_on_a_recording(tmp_path):
    recording = synthetic_recording(context_tokens=640, steps=32)
    lines = run("compare_policies", save_recording(recording, tmp_path / "t.zarr"))
    assert lines[0].startswith("synthetic: 32 steps, 42 blocks; access: ")


def test_add_a_policy():
    rows = {line.split()[0]: ratios(line) for line in run("add_a_policy")}
    assert rows["lru"][0] < rows["second-chance"][0] < rows["second-chance"][1]
    assert all(hits <= bound for hits, bound in rows.values())


def test_geometry(tmp_path):
    lines = run("geometry")
    assert "320 KiB" in lines[1]
    assert "40 GiB" in lines[4]
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3}'
    )
    assert "22.5 KiB" in run("geometry", tmp_path)[1]


def test_run_tiered():
    lines = run("run_tiered")
    assert "the same tokens as with DynamicCache: yes" in lines
    accesses = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+) accesses$", "\n".join(lines), re.MULTILINE)}
    assert accesses["nvme"] > accesses["hbm"] > 0
    assert "dense attention" in lines[-1]
    assert lines[-1].endswith("emulated")
