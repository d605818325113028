"""The command line: thin, one file a group of commands.

Progress and logs go to stderr; with ``--json``, stdout holds one JSON document.
"""

from kvpager.cli import calibrate, claims, evaluate, explore, live, look, planner, prove, requests, store
from kvpager.cli.root import app, main

__all__ = ["app", "calibrate", "claims", "evaluate", "explore", "live", "look", "main", "planner", "prove", "requests", "store"]
