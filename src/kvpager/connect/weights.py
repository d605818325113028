"""What tells one model's weights from another's, without loading them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kvpager.errors import ModelError

__all__ = ["weights_id"]

_ENDINGS = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}


def weights_id(path: Path) -> str:
    """Return SHA-256 of a file, or of the names and bytes of all weight files of a directory, as hexadecimal digits.

    Raises
    ------
    ModelError
        If there is none, or one cannot be read.
    """
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.suffix in _ENDINGS and one.is_file())
    if not files:
        raise ModelError(f"{str(path)!r} holds no weights ({', '.join(sorted(_ENDINGS))}): state what tells them from others")
    total = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256")
        except OSError as error:
            raise ModelError(f"weights {str(file)!r} cannot be read ({error.strerror}): check its owner and the disk") from error
        name = "" if file == path else str(file.relative_to(path))
        total.update(f"{len(name.encode())}:{name}:{digest.hexdigest()}".encode())
    return total.hexdigest()
