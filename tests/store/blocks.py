"""Contents of blocks, and shorter words for what tests do with a block store."""

import numpy as np


def block_of(length, seed=0):
    """Random bytes."""
    return np.random.default_rng([length, seed]).bytes(length)


def read(store, key, **settings):
    """The block's bytes; None if it is not served."""
    length = store.length(key)
    if length is None:
        return None
    buffer = bytearray(length)
    return bytes(buffer) if store.get(key, buffer, **settings) else None


def crash(store):
    """Let the store go as a killed process would: nothing more is synced, no index is written."""
    engine = store._backend
    engine._core.flush = lambda: None
    for shelf in engine._rack.shelves.values():
        shelf.store.sync = lambda: None
    store.close()


def conserved(store):
    """Whether the counts of what was asked add up, and the bytes of what came and went."""
    stats = store.stats()
    journal, held = stats["journal"], sum(one.length for one in store.scan(everyone=True))
    return (
        stats["asked"] == stats["hits"] + stats["misses"] + stats["failed"]
        and stats["put"] == stats["stored"] + stats["refused"] + stats["unwritten"]
        and journal["found_bytes"] + journal["stored_bytes"] - sum(journal["left_bytes"].values()) == held
        and stats["unaccounted"] == {"reads": 0, "writes": 0, "bytes": 0}
    )


def flip(path, byte):
    """Change one bit."""
    with open(path, "r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ 4]))
