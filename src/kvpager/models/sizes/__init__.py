"""Bytes of a sequence's cache: architectural, engine-reserved, by KV dtype, and by rank of a parallel engine."""

from kvpager.models.sizes.architectural import Growth, architectural_bytes, growth
from kvpager.models.sizes.dtypes import KV_DTYPES, KVDtype, kv_dtype
from kvpager.models.sizes.ranks import rank_geometries, stage_layers
from kvpager.models.sizes.reserved import RULES, engine_reserved_bytes, rule_of

__all__ = [
    "KV_DTYPES",
    "RULES",
    "Growth",
    "KVDtype",
    "architectural_bytes",
    "engine_reserved_bytes",
    "growth",
    "kv_dtype",
    "rank_geometries",
    "rule_of",
    "stage_layers",
]
