import pytest

from kvpager.hardware import load
from kvpager.models import resolve


@pytest.fixture(scope="session")
def catalogue():
    return load()


@pytest.fixture(scope="session")
def llama():
    return resolve("llama-3.1-70b")
