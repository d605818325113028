"""What a tier counts, by name: for an engine's own metrics. docs/engines.md has the same in a table."""

from __future__ import annotations

__all__ = ["COUNTERS", "GATE_GAUGES", "GAUGES", "STORE_GAUGES"]

_CHOICES = {
    "fetch": "all blocks are fetched",
    "split": "the first ones are",
    "decline": "none is, since computing them is expected to be sooner",
    "explore": "as many are as teach most, against the estimate",
    "unknown": "a few are, to measure the first fetch",
}
COUNTERS = {
    "blocks_asked": "Blocks that were looked up: found, missing or late.",
    "blocks_found": "Of those, blocks that the store has.",
    "blocks_missing": "Of those, blocks that it has not.",
    "blocks_late": "Of those, blocks about which it did not answer by the deadline. They count as missing.",
    "blocks_loaded": "Blocks that were read, and whose checksum was right.",
    "blocks_not_loaded": "Blocks that were to be read and were not served: damaged, gone or late. They are computed again.",
    "blocks_stored": "Blocks that were written and acknowledged.",
    "blocks_already_stored": "Blocks that were to be written and were there.",
    "blocks_not_stored": "Blocks that were to be written and were not: no room, the disk refused, or late.",
    **{f"gate_decided_{choice}": f"Prefixes of which the gate decided: {what}." for choice, what in _CHOICES.items()},
    "gate_blocks_fetched": "Blocks of those prefixes that the gate let be fetched.",
    "gate_blocks_declined": "Blocks of those prefixes that it had computed again.",
    "gate_explored_seconds": "What was expected to be lost to learn.",
    "gate_regret_seconds": "By how much choices took longer, as measured, than the other was expected to.",
}
STORE_GAUGES = {
    "store_blocks": "Blocks that the store holds.",
    "store_used_bytes": "Bytes of places that hold blocks.",
    "store_disk_bytes": "Bytes of slab files.",
    "store_capacity_bytes": "Bytes of slab files at most.",
    "store_evicted": "Blocks that left to make room, since the store was opened, of all its processes.",
    "store_quarantined": "Blocks that did not match their checksum or could not be read, since then.",
    "store_checksum_failures": "Records that did not match their checksum, since then.",
    "store_io_errors": "Reads and writes that the disk refused, since then.",
}
GATE_GAUGES = {
    "gate_saved_estimate_seconds": "What the gate's choices saved against the other ones, as expected, since the start.",
    "gate_saved_measured_seconds": "The same where a fetch was made, by how long it took; below 0, it lost.",
}
GAUGES = STORE_GAUGES | GATE_GAUGES
