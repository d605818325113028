"""Recorded traces: how they are written, read and checked."""
