"""Small stores, closed at the end."""

import shutil
import tempfile
from pathlib import Path

import pytest
from tests.stores import GatedFiles, Rig


@pytest.fixture
def rig(tmp_path):
    """Make rigs in the test's folder."""
    made = []

    def make(name="store", **settings):
        made.append(Rig(tmp_path / name, **settings))
        return made[-1]

    yield make
    for one in made:
        if isinstance(one.settings.get("files"), GatedFiles):
            one.settings["files"].open_gates()  # a test that failed must not hang
        one.store.close()


@pytest.fixture
def memory_folder(tmp_path):
    """A folder on tmpfs, where there is one: fast, and often without O_DIRECT."""
    shared = Path("/dev/shm")
    if not shared.is_dir():
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="kvpager-test-", dir=shared))
    yield folder
    shutil.rmtree(folder)
