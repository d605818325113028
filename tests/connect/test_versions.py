"""The window of versions, told by one clear error."""

import importlib
import sys
import types

import pytest

from kvpager.connect.versions import VLLM, require
from kvpager.errors import BadInput


@pytest.fixture
def engine(monkeypatch):
    """An engine of any version; only its number is asked here."""

    def make(version):
        module = types.ModuleType("some_engine")
        if version is not None:
            module.__version__ = version
        monkeypatch.setitem(sys.modules, "some_engine", module)

    return make


@pytest.mark.parametrize(
    ("version", "numbers"), [("0.28.0", (0, 28)), ("0.32.1+cpu", (0, 32)), ("0.30.0rc1", (0, 30)), ("0.32", (0, 32))]
)
def test_versions_within_the_window(engine, version, numbers):
    engine(version)
    assert require("some_engine", "0.28", "0.32") == numbers


@pytest.mark.parametrize("version", ["0.27.9", "0.33.0", "1.0.0", "0.3.0", "0.280.1", "dev", None])
def test_other_versions_are_refused(engine, version):
    engine(version)
    with pytest.raises(BadInput, match=r"some_engine \S+ was not tested .*: use some_engine 0\.28 to 0\.32"):
        require("some_engine", "0.28", "0.32")


def test_an_engine_that_is_not_there():
    with pytest.raises(BadInput, match=r"no_such_engine.* cannot be imported .*: install no_such_engine 0\.28 to 0\.32"):
        require("no_such_engine", "0.28", "0.32")


@pytest.mark.parametrize("module", ["vllm", "vllm_policy", "vllm_cpu"])
def test_the_plug_ins_say_so(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"kvpager.connect.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "kvpager.connect.vllm", raising=False)
    with pytest.raises(BadInput, match=f"install vllm {VLLM[1]} to {VLLM[2]}"):
        importlib.import_module(f"kvpager.connect.{module}")
