"""Built-in models: every fact has source, date and label; names resolve; a directory of the user's is counted, not guessed."""

import json
import re
from datetime import date

import pytest

from kvpager import models
from kvpager.errors import ModelError, UnknownName
from kvpager.evidence import Evidence


@pytest.mark.parametrize("name", models.builtin_names())
def test_every_fact_has_source_date_and_label(name):
    facts = models.resolve(name)
    assert re.fullmatch(r"[a-z0-9.]+(-[a-z0-9.]+)*", name)
    assert facts.name == name == facts.geometry.name
    assert facts.title
    assert facts.source
    assert date(2026, 1, 1) <= date.fromisoformat(facts.date) <= date(2027, 1, 1)
    remembered = "from memory" in facts.source
    assert not remembered or facts.evidence <= Evidence.EXTERNAL_LITERATURE, "what is remembered is not the vendor's word"
    for params in filter(None, (facts.params_total, facts.params_active)):
        assert params.source
        assert params.labels
        assert params.evidence <= Evidence.ANALYTICAL
    if facts.params_total and facts.params_active:
        assert facts.params_active.value <= facts.params_total.value


@pytest.mark.parametrize("name", models.builtin_names())
def test_every_model_has_what_a_planner_needs(name):
    facts = models.resolve(name)
    assert facts.num_layers >= facts.num_attention_layers > 0
    assert all((facts.hidden_dim, facts.head_dim, facts.vocab_size, facts.max_context_tokens, facts.num_q_heads))


def test_there_are_about_forty_and_the_promised_ones_among_them():
    promised = "llama-3.1-8b llama-3.1-70b llama-3.1-405b qwen3-8b qwen3-32b deepseek-v3 gpt-oss-20b gemma-3-27b smollm2"
    assert set(promised.split()) <= set(models.builtin_names())
    assert len(models.builtin_names()) >= 40


def test_parameter_counts_that_are_widely_known():
    billions = {
        name: round(models.resolve(name).params_total.value / 1e9, 2)
        for name in ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b")
    }
    assert billions == {
        "llama-3.1-8b": 8.03, "llama-3.1-70b": 70.55, "llama-3.1-405b": 405.85, "mixtral-8x7b": 46.7, "deepseek-v3": 671.03,
        "gpt-oss-120b": 116.83,
    }  # fmt: skip
    assert round(models.resolve("deepseek-v3").params_active.value / 1e9) == 38  # 37 without the embedding table


def test_head_dim_of_latent_attention_is_what_its_projections_make():
    assert models.resolve("deepseek-v3").head_dim == (128 + 64 + 128) // 2
    assert models.resolve("mimo-v2-flash").head_dim == (192 + 128) // 2
    assert models.resolve("llama-3.1-8b").head_dim == 128


def test_a_config_with_null_keeps_it():
    assert models.builtin_config("mistral-small-24b")["sliding_window"] is None
    assert len(models.builtin("mistral-small-24b").full_layers) == 40


@pytest.mark.parametrize(
    ("text", "near"), [("llama-3.1-70", "llama-3.1-70b"), ("Qwen3-8B", "qwen3-8b"), ("no such thing", "built-in name")]
)
def test_unknown_names_list_near_ones(text, near):
    with pytest.raises(UnknownName, match=near):
        models.resolve(text)
    with pytest.raises(UnknownName):
        models.builtin(text)


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(ModelError, match="absent"):
        models.resolve(str(tmp_path / "absent.json"))


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "my-model"
    home.mkdir()
    (home / "config.json").write_text(
        json.dumps(models.builtin_config("mixtral-8x7b") | {"num_local_experts": 8, "num_experts_per_tok": 2})
    )
    return home


def safetensors(path, tensors):
    header = json.dumps({"__metadata__": {"format": "pt"}} | tensors).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def test_a_directory_or_its_config_resolves_alike(folder):
    facts = models.resolve(str(folder))
    assert facts == models.resolve(str(folder / "config.json"))
    assert facts.name == "my-model"
    assert facts.geometry.layers == models.builtin("mixtral-8x7b").layers
    assert facts.params_total is facts.params_active is None


def test_parameters_are_counted_in_the_headers(folder):
    safetensors(folder / "a.safetensors", {"embed": {"dtype": "BF16", "shape": [100, 10], "data_offsets": [0, 2000]}})
    safetensors(folder / "b.safetensors", {"mlp.experts.w": {"dtype": "F8_E4M3", "shape": [8, 50], "data_offsets": [0, 400]}})
    facts = models.resolve(str(folder))
    assert (facts.params_total.value, facts.params_active.value) == (1400, 1100)
    assert facts.params_total.evidence is Evidence.ANALYTICAL


def test_packed_weights_are_not_counted(folder):
    safetensors(folder / "a.safetensors", {"w": {"dtype": "U8", "shape": [100, 10], "data_offsets": [0, 1000]}})
    assert models.resolve(str(folder)).params_total is None


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, (2).to_bytes(8, "little") + b"[]"])
def test_a_damaged_weights_file_is_named(folder, content):
    (folder / "a.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"a\.safetensors"):
        models.resolve(str(folder))


def test_resolving_a_name_needs_nothing_heavy():
    import subprocess
    import sys

    heavy = "{'torch', 'numba', 'transformers', 'zarr'}"
    code = f"import sys; from kvpager import models; models.resolve('llama-3.1-8b'); print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


def test_rope_is_as_the_config_says_and_not_known_where_it_does_not(tmp_path):
    said = {name: (models.resolve(name).rope_base, models.resolve(name).rope_dim) for name in ("llama-3.1-70b", "deepseek-v3")}
    assert said == {"llama-3.1-70b": (500_000, None), "deepseek-v3": (10_000, 64)}
    assert models.resolve("gemma-3-27b").rope_base is None
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 100,
        "max_position_embeddings": 2048, "rope_parameters": {"rope_theta": 7e5, "partial_rotary_factor": 0.5},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (models.resolve(str(tmp_path)).rope_base, models.resolve(str(tmp_path)).rope_dim) == (700_000, 32)
