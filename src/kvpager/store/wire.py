"""How processes talk about a store: over a Unix socket in its directory, one message there and one back.

A message is two numbers (``<IQ``: bytes of the head, bytes of the body), a head in JSON and a body: blocks, one after another.
Digests are hexadecimal. Both ends are of one machine and one version; a head says which.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvpager.errors import BadInput, KVPagerError, StorageFull, StoreError

__all__ = ["VERSION", "connect", "cut", "error_from", "listen", "receive", "said_error", "send"]

VERSION = 1
_FRAME = struct.Struct("<IQ")
_MOST_BYTES = 256 << 20
_ERRORS: dict[str, type[Exception]] = {"BadInput": BadInput, "StoreError": StoreError, "StorageFull": StorageFull}

Bytes = NDArray[np.uint8]


def listen(folder: Path) -> socket.socket:
    """Return a listening socket in `folder`, in place of one that a killed process left. The caller holds the lock."""
    door = socket.socket(socket.AF_UNIX)
    (folder / "socket").unlink(missing_ok=True)
    _by_short_name(folder, door.bind)
    os.chmod(folder / "socket", 0o600)
    door.listen(64)
    return door


def connect(folder: Path, seconds: float) -> socket.socket:
    """Return a connection to the owner of the store in `folder`; raise `OSError` if it does not listen."""
    link = socket.socket(socket.AF_UNIX)
    try:
        link.settimeout(seconds)
        _by_short_name(folder, link.connect)
    except BaseException:
        link.close()
        raise
    return link


def _by_short_name(folder: Path, do: Any) -> None:
    """A socket's name has 107 bytes at most, a directory's may be longer: go through its descriptor."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        do(f"/proc/self/fd/{fd}/socket")
    finally:
        os.close(fd)


def send(link: socket.socket, head: dict[str, Any], body: Sequence[Bytes] = ()) -> None:
    """Send a message."""
    text = json.dumps({"version": VERSION, **head}).encode()
    link.sendall(_FRAME.pack(len(text), sum(len(part) for part in body)) + text)
    for part in body:
        if len(part):
            link.sendall(part.data)


def receive(link: socket.socket) -> tuple[dict[str, Any], Bytes] | None:
    """Receive a message; None if the other end has gone between two of them.

    Raises
    ------
    OSError
        If it has gone within one.
    """
    frame = bytearray(_FRAME.size)
    if not _fill(link, memoryview(frame), may_end=True):
        return None
    head_bytes, body_bytes = _FRAME.unpack(frame)
    if head_bytes > _MOST_BYTES or body_bytes > _MOST_BYTES:
        raise ConnectionError("this is no message of a block store")
    head = bytearray(head_bytes)
    _fill(link, memoryview(head))
    body = np.empty(body_bytes, np.uint8)
    _fill(link, body.data)
    said = json.loads(head)
    if not isinstance(said, dict):
        raise ConnectionError("this is no message of a block store")
    if said.get("version") != VERSION:
        raise StoreError(f"the store's owner speaks version {said.get('version')}, this is {VERSION}: use one version of kvpager")
    return said, body


def _fill(link: socket.socket, room: memoryview, *, may_end: bool = False) -> bool:
    done = 0
    while done < len(room):
        got = link.recv_into(room[done:])
        if not got:
            if may_end and not done:
                return False
            raise ConnectionError("the other process has gone")
        done += got
    return True


def cut(body: Bytes, lengths: list[int]) -> list[Bytes]:
    """Return the blocks of a body."""
    ends = np.cumsum([0, *lengths])
    return [body[first:end] for first, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def said_error(error: Exception) -> dict[str, Any]:
    """Return the head that tells of `error`."""
    kind = next((name for name, kind in _ERRORS.items() if type(error) is kind), "KVPagerError")
    return {"error": [kind, str(error)]}


def error_from(said: list[str]) -> Exception:
    """Return the error that a head tells of."""
    kind, text = said
    return _ERRORS.get(kind, KVPagerError)(text)
