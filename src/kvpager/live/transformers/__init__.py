"""All that kvpager knows of transformers: loading a model, watching its attention, and running it over tiers.

Nothing is patched. An attention function and its mask function are registered under one name through transformers'
own interfaces; a watcher travels to it as a keyword argument of the model's forward, a tiered cache as a tag on the
keys that it hands out.
"""

from kvpager.live.transformers.attending import ATTENTION
from kvpager.live.transformers.cache import TieredCache
from kvpager.live.transformers.loading import SMOLLM2, LoadedModel, load_model
from kvpager.live.transformers.recording import GrowingLayer, RecordingDecoder, new_cache
from kvpager.live.transformers.session import Session

__all__ = [
    "ATTENTION",
    "SMOLLM2",
    "GrowingLayer",
    "LoadedModel",
    "RecordingDecoder",
    "Session",
    "TieredCache",
    "load_model",
    "new_cache",
]
