"""Recording: let a decoder run over a text and write what its attention reads. No torch in here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kvpager.errors import BadInput, ModelError, TextError
from kvpager.traces.attention import AttentionWriter, check_target
from kvpager.traces.decoder import Decoder, Progress
from kvpager.traces.provenance import now, this_machine, versions_of
from kvpager.traces.recording import Header

__all__ = ["MODES", "header_of", "read_text", "record"]

MODES = ("forced", "free")


def read_text(path: str | Path) -> str:
    """Read a text to record on.

    Raises
    ------
    TextError
        If it is missing, empty or not UTF-8.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise TextError(f"text {str(path)!r} cannot be read ({error.strerror}): give a text file") from error
    except UnicodeDecodeError as error:
        raise TextError(f"text {str(path)!r} is not UTF-8 (byte {error.start}): convert it first") from error
    if not text.strip():
        raise TextError(f"text {str(path)!r} is empty: give a text file with something in it")
    return text


def record(
    decoder: Decoder,
    tokens: Sequence[int],
    *,
    out: str | Path,
    steps: int,
    context_tokens: int | None = None,
    mode: str = "forced",
    text_name: str = "",
    command: str = "",
    progress: Progress | None = None,
    overwrite: bool = False,
) -> Path:
    """Prefill, decode `steps` steps, and write each one's attention to a Zarr store.

    Parameters
    ----------
    decoder : Decoder
        The model.
    tokens : sequence of int
        The text's tokens, from its start.
    out : path
        Directory to create.
    steps : int
        Decode steps, > 0.
    context_tokens : int, optional
        Tokens to prefill; default all that the steps leave over (``"forced"``) or all (``"free"``).
    mode : {"forced", "free"}
        Whether a step's input is the text's own continuation or the model's choice.
    text_name, command : str
        For the header.
    progress : callable, optional
        Told about the prefill and every step.
    overwrite : bool
        Replace a recording at `out`.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    TextError
        If the text is shorter than asked; nothing is written.
    ModelError
        If the model's context is too small, or its attention becomes NaN.
    TraceError
        If `out` cannot be created.
    StorageFull
        If the disk runs full; the complete steps stay readable.
    KeyboardInterrupt
        Passed on after the steps so far have been written.
    """
    path = Path(out)
    report = progress or (lambda what, done, total: None)
    context = _context(decoder, len(tokens), steps, context_tokens, mode, text_name)
    check_target(path, overwrite=overwrite)
    inputs = [int(token) for token in tokens[: context + (steps if mode == "forced" else 0)]]
    prefill_mass, chosen = decoder.prefill(inputs[:context], report)
    header = header_of(decoder, inputs, context, mode=mode, text_name=text_name, command=command)
    writer = AttentionWriter(path, header, steps=steps, prefill_mass=prefill_mass, overwrite=overwrite)
    try:
        with writer:
            for step in range(steps):
                seen, chosen = decoder.step(inputs[context + step] if mode == "forced" else chosen)
                if np.isnan(seen.mass).any():
                    layer = int(np.isnan(seen.mass).any((1, 2)).argmax())
                    raise ModelError(
                        f"model {decoder.model!r}: attention became NaN at step {step}, layer {header.layers[layer]}; "
                        f"check its weights and the text {text_name!r}"
                    )
                writer.append(seen)
                report("decode", step + 1, steps)
    except KeyboardInterrupt:
        kept = f"keeps its {writer.steps_done} complete steps" if writer.steps_done else "had no complete step and is removed"
        raise KeyboardInterrupt(f"recording {str(path)!r} {kept}; record again for all {steps}") from None
    return path


def _context(decoder: Decoder, available: int, steps: int, context_tokens: int | None, mode: str, text_name: str) -> int:
    """Number of tokens to prefill, after checking that text and model have room for it and the steps."""
    if mode not in MODES:
        raise BadInput(f"mode {mode!r} is unknown: choose {' or '.join(MODES)}")
    if steps < 1 or (context_tokens is not None and context_tokens < 1):
        after = "" if context_tokens is None else f" after {context_tokens} tokens"
        raise BadInput(f"{steps} steps{after} cannot be recorded: ask for at least 1 of each")
    taken = steps if mode == "forced" else 0
    needed = taken + (context_tokens or 1)
    if available < needed:
        most = available - taken
        remedy = f"record at most {most} context tokens or " if most > 0 else "record fewer steps or "
        raise TextError(
            f"text {text_name!r} has {available} tokens, but {context_tokens or 1} context tokens and {steps} steps "
            f"need {needed}: {remedy}give a longer text"
        )
    context = context_tokens or available - taken
    longest = decoder.geometry.max_context_tokens
    if longest is not None and context + steps > longest:
        most = longest - steps
        remedy = f"record at most {most} context tokens" if most > 0 else f"record fewer than {longest} steps"
        raise ModelError(
            f"model {decoder.model!r} takes {longest} tokens, but {context} context tokens and {steps} steps are "
            f"{context + steps}: {remedy}"
        )
    return context


def header_of(decoder: Decoder, inputs: Sequence[int], context: int, *, mode: str, text_name: str, command: str) -> Header:
    """Return the header of a recording that starts now, of `inputs` whose first `context` tokens are prefilled."""
    geometry = decoder.geometry
    return Header(
        model=decoder.model, weights_sha256=decoder.weights_sha256, geometry=geometry, layers=geometry.full_layers,
        num_q_heads=geometry.num_q_heads, num_kv_heads=geometry.layers[geometry.full_layers[0]].num_kv_heads,
        block_size=decoder.block_size, context_tokens=context, mode=mode, fold="mean", text=text_name,
        tokens_sha256=hashlib.sha256(np.asarray(inputs, "<i8").tobytes()).hexdigest(),
        versions=versions_of(["numpy", "zarr"]) | dict(decoder.versions), machine=this_machine(), command=command, recorded=now(),
    )  # fmt: skip
