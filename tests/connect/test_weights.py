"""What tells one model's weights from another's."""

import hashlib

import pytest

from kvpager.connect.weights import weights_id
from kvpager.errors import ModelError


@pytest.fixture
def model(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"one")
    (tmp_path / "b.safetensors").write_bytes(b"two")
    (tmp_path / "README.md").write_text("a model")
    return tmp_path


def test_names_and_bytes_of_all_weight_files_decide(model):
    before = weights_id(model)
    (model / "README.md").write_text("the same model")
    assert weights_id(model) == before
    (model / "b.safetensors").write_bytes(b"twp")
    assert weights_id(model) != before
    (model / "b.safetensors").write_bytes(b"two")
    assert weights_id(model) == before
    (model / "b.safetensors").rename(model / "c.safetensors")
    assert weights_id(model) != before


def test_bytes_do_not_move_between_files_unnoticed(model):
    before = weights_id(model)
    (model / "a.safetensors").write_bytes(b"onet")
    (model / "b.safetensors").write_bytes(b"wo")
    assert weights_id(model) != before


def test_the_rule_is_fixed(model):
    said = "".join(
        f"{len(name)}:{name}:{hashlib.sha256(data).hexdigest()}"
        for name, data in [("a.safetensors", b"one"), ("b.safetensors", b"two")]
    )
    assert weights_id(model) == hashlib.sha256(said.encode()).hexdigest()


def test_one_file(model):
    assert weights_id(model / "a.safetensors") != weights_id(model / "b.safetensors")


def test_a_directory_without_weights(tmp_path):
    with pytest.raises(ModelError, match="holds no weights"):
        weights_id(tmp_path)
