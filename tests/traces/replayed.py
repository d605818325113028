"""A decoder without a model: it plays a synthetic recording back, and does something rash at a chosen step."""

from collections.abc import Callable

import numpy as np

from kvpager.testing.recordings import synthetic_recording
from kvpager.traces.decoder import Observation


class ReplayedDecoder:
    """Fulfils the recorder's protocol with the steps of a recording."""

    model, weights_sha256, block_size, versions = "replayed", "0" * 64, 16, {"nothing": "1"}

    def __init__(self, *, context_tokens: int = 100, steps: int = 40, rash: Callable[[int], object] = lambda step: None) -> None:
        self.recording = synthetic_recording(context_tokens=context_tokens, steps=steps)
        self.geometry = self.recording.header.geometry
        self.rash = rash
        self.inputs: list[int] = []

    def prefill(self, tokens, progress):
        self.step_number = 0
        self.prefilled = list(tokens)
        progress("prefill", len(tokens), len(tokens))
        return self.recording.prefill_mass[..., : -(-len(tokens) // 16)], 1000

    def step(self, token):
        step, self.step_number = self.step_number, self.step_number + 1
        self.inputs.append(token)
        self.rash(step)
        return observation(self.recording, step), 1001 + step


def observation(recording, step):
    """One step of a recording as the decoder would give it: blocks up to the open one only."""
    blocks = recording.open_block(step) + 1
    locality = np.concatenate([recording.special[step], recording.relative[step], recording.absolute[step]], axis=-1)
    return Observation(
        recording.mass[step, ..., :blocks], recording.bound[step, ..., :blocks], recording.query_cosine[step], locality
    )
