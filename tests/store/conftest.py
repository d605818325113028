"""Small block stores, closed at the end."""

import pytest
from tests.stores import GatedFiles

from kvpager import store as block_store


@pytest.fixture
def made(tmp_path):
    """Open block stores in the test's folder."""
    opened, gated = [], []

    def make(name="store", capacity=1 << 20, **settings):
        if isinstance(settings.get("files"), GatedFiles):
            gated.append(settings["files"])
        opened.append(block_store.open(tmp_path / name, capacity, **settings))
        return opened[-1]

    yield make
    for files in gated:
        files.open_gates()  # a test that failed must not hang
    for one in opened:
        one.close()
