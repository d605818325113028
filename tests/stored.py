"""A recording that is in memory, put on disk as the recorder would."""

import numpy as np

from kvpager.traces.attention import AttentionWriter
from kvpager.traces.decoder import Observation


def save_recording(recording, path):
    """Write a recording that is in memory, and return `path`."""
    with AttentionWriter(path, recording.header, steps=recording.steps, prefill_mass=recording.prefill_mass) as writer:
        for step in range(recording.steps):
            blocks = recording.open_block(step) + 1
            mass, bound = recording.mass[step, ..., :blocks], recording.bound[step, ..., :blocks]
            locality = [getattr(recording, name)[step] for name in ("special", "relative", "absolute")]
            writer.append(Observation(mass, bound, recording.query_cosine[step], np.concatenate(locality, axis=-1)))
    return path
