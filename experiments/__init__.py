"""The experiments that settle the notes' empirical claims, one file each. ``python -m experiments --help``."""
