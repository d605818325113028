"""What every JSON answer of a replay begins with: who made it, with what, from which recording."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kvpager
from kvpager.evidence import Evidence
from kvpager.traces.provenance import this_machine, versions_of
from kvpager.traces.recording import Recording

__all__ = ["describe_recording", "provenance"]


def provenance(command: str, seed: int) -> dict[str, Any]:
    """Return version, command, evidence, machine, versions and seed of a document that is made now.

    Parameters
    ----------
    command : str
        The command whose answer it is.
    seed : int
        Of the ties.
    """
    return {
        "kvpager": kvpager.__version__,
        "command": command,
        "evidence": Evidence.SIMULATED.label,
        "machine": this_machine(),
        "versions": versions_of(["numpy", "torch", "transformers", "zarr"]),
        "seed": seed,
    }


def describe_recording(recording: Recording, path: Path) -> dict[str, Any]:
    """Return where a recording comes from and its shape, for a document's ``trace``.

    Parameters
    ----------
    recording : Recording
        As read from `path`.
    path : Path
        Only its name is told.
    """
    header = recording.header
    return {
        "path": path.name,
        "model": header.model,
        "text": header.text,
        "mode": header.mode,
        "context_tokens": header.context_tokens,
        "steps": recording.steps,
        "blocks": recording.blocks,
        "block_size": header.block_size,
        "layers": len(header.layers),
        "kv_heads": header.num_kv_heads,
        "q_heads": header.num_q_heads,
        "fold": header.fold,
        "tokens_sha256": header.tokens_sha256,
        "weights_sha256": header.weights_sha256,
        "kv_bytes": recording.kv_bytes,
        "recorded": header.recorded,
    }
