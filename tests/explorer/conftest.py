"""A small recording and what a run of the demo would say of it."""

import pytest

from kvpager.explorer.choices import Choices


@pytest.fixture(scope="session")
def chosen(tmp_path_factory):
    raise NotImplementedError
