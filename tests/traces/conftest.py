"""Fixtures of the trace tests."""

import importlib.util
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("replayed", Path(__file__).with_name("replayed.py"))
replayed = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(replayed)


@pytest.fixture(scope="session")
def decoder_class():
    return replayed.ReplayedDecoder
