"""Model families: a Hugging Face config becomes a KVGeometry; one file each. Well-known models are facts in facts/."""

from kvpager.models.facts import ModelFacts, builtin, builtin_config, builtin_names, resolve

__all__ = ["ModelFacts", "builtin", "builtin_config", "builtin_names", "resolve"]
