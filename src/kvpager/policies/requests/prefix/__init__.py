"""Request-level policies of prompt prefixes, one file each: what a serving engine keeps. See `base` for the contract."""
