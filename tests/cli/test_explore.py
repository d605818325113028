"""The explore command: what it refuses before a server starts, and what it exports."""

import shutil

import orjson
import pytest
import zarr

from kvpager.explorer import serve as server

REFUSED = [
    (["--model", "lama"], ["'lama'", "kvpager list models"]),
    (["--system", "b200-cxl"], ["'b200-cxl'", "did you mean"]),
    (["--context", "17"], ["context = 17", "1,024 to 1,048,576"]),
    (["--users", "1000"], ["users = 1000", "1 to 256"]),
    (["--read", "0.1%"], ["read = 0.001", "0.01 to 1"]),
    (["--slo", "3GB"], ["'3GB'", "100ms"]),
    (["--trace", "gone.zarr"], ["gone.zarr", "does not exist", "kvpager record"]),
    (["--run", "gone.json"], ["'gone.json'", "kvpager demo"]),
    (["--export", "walk.txt"], ["walk.txt", ".html"]),
    (["--json"], ["--export"]),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_refused_before_anything_starts(refused, arguments, words, monkeypatch):
    monkeypatch.setattr(server, "serve", lambda *a, **k: pytest.fail("a server was started"))
    refused("explore", *arguments, words=words)


def test_a_foreign_and_a_newer_recording_are_refused(refused, here, store):
    zarr.open_group(here / "foreign.zarr", mode="w")
    refused("explore", "--trace", "foreign.zarr", words=["foreign.zarr", "another program"])
    zarr.open_group(store).attrs["version"] = 99
    refused("explore", "--trace", store, words=["t.zarr", "99"])


def test_a_run_that_is_no_document_is_refused(refused, here):
    (here / "run.json").write_text("{}", encoding="utf-8")
    refused("explore", "--run", "run.json", words=["kvpager demo --json"])
    (here / "run.json").write_text("no", encoding="utf-8")
    refused("explore", "--run", "run.json", words=["'run.json'", "no JSON"])


def test_without_streamlit_the_extra_is_named(refused, monkeypatch):
    monkeypatch.setattr(server.importlib.util, "find_spec", lambda name: None)
    refused("explore", words=["'streamlit'", "kvpager[explorer]"])


def test_what_was_given_reaches_the_page(kvpager, here, recorded, monkeypatch):
    started = []
    monkeypatch.setattr(server, "serve", lambda choices, **how: started.append((choices, how)))
    line = ["--model", "qwen3-8b", "--system", "b200-hbm", "--context", "64K", "--users", "3", "--read", "10%", "--slo", "57ms"]
    assert kvpager("explore", *line, "--trace", recorded, "--port", "0", "--no-browser").code == 0
    ((choices, how),) = started
    assert (choices.model, choices.system, choices.context, choices.users) == ("qwen3-8b", "b200-hbm", 65536, 3)
    assert (choices.read, choices.slo_ms, choices.trace, choices.run) == (0.1, 57.0, str(recorded), "")
    assert (how["port"], how["browser"]) == (0, False)


def test_the_demo_s_recording_is_taken_if_it_is_there(kvpager, here, recorded, monkeypatch):
    started = []
    monkeypatch.setattr(server, "serve", lambda choices, **how: started.append(choices))
    shutil.copytree(recorded, here / "kvpager-demo" / "attention.zarr")
    assert kvpager("explore").code == 0
    assert started[0].trace == "kvpager-demo/attention.zarr"


def test_the_export_says_what_it_wrote(well, here):
    answer = well("explore", "--export", "walk.html", "--json")
    document = orjson.loads(answer.out)
    assert document["export"] == "walk.html"
    assert "Scores that follow attention: the EMA" in document["without"]
    assert (here / "walk.html").stat().st_size > 500_000
