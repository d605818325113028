"""Serving engines: kvpager's block store as a tier of theirs. One thin file an engine, loaded by the engine itself."""
