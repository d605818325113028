"""Parameters of a model on disk, counted in the headers of its safetensors files: no tensor is read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvpager.errors import ModelError
from kvpager.evidence import Evidence, Quantity

__all__ = ["count_parameters"]

_ONE_NUMBER = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
_EXPERTS = (
    ("num_experts_per_tok", "top_k_experts", "num_experts_per_token"),
    ("num_experts", "num_local_experts", "n_routed_experts"),
)


def count_parameters(directory: Path, config: Mapping[str, Any]) -> tuple[Quantity, Quantity] | None:
    """Parameters that the files hold, and those that one token uses.

    Parameters
    ----------
    directory : Path
        Where ``*.safetensors`` are.
    config : mapping
        Keys of the text config; says how many experts a token is sent to.

    Returns
    -------
    tuple of Quantity, or None
        Total and active. None without such files, or where packed numbers hide how many there are.

    Raises
    ------
    ModelError
        If a file is damaged.
    """
    total = routed = 0
    for name, tensor in _tensors(directory):
        if tensor["dtype"] not in _ONE_NUMBER:
            return None
        count = math.prod(tensor["shape"])
        total += count
        routed += count if ".experts." in name else 0
    if not total:
        return None
    chosen, among = (
        next((config[key] for key in keys if isinstance(config.get(key), int) and config[key] > 0), 1) for keys in _EXPERTS
    )
    active = total - routed + routed * chosen // among
    labels, source = frozenset({Evidence.ANALYTICAL}), "counted in the headers of the model's safetensors files"
    return Quantity(total, "parameters", labels, source=source), Quantity(active, "parameters", labels, source=source)


def _tensors(directory: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            tensors = [(name, tensor) for name, tensor in header.items() if name != "__metadata__"]
            yield from [(name, {"dtype": tensor["dtype"], "shape": tensor["shape"]}) for name, tensor in tensors]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
            raise ModelError(f"weights file {str(path)!r} has a damaged header ({error}): fetch the file again") from error
