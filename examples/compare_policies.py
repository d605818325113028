"""Compare policies at one size on a recording, each beside the bound that no policy can exceed.

python examples/compare_policies.py trace.zarr     a recording of `kvpager record`
python examples/compare_policies.py                a made-up one: good for trying things, evidence of nothing
"""

import sys

from kvpager.replay.row import Case, run_case
from kvpager.replay.stream import make_stream
from kvpager.selectors import SELECTORS
from kvpager.testing.recordings import synthetic_recording
from kvpager.traces.recording import Recording

POLICIES = ("random", "lru", "lru+sink:16", "lfu", "ema", "blend", "belady")


def recording_of(arguments: list[str]) -> Recording:
    if not arguments:
        return synthetic_recording(num_layers=4, context_tokens=1024, steps=48)
    from kvpager.traces.attention import read_recording

    return read_recording(arguments[0])


def main() -> None:
    recording = recording_of(sys.argv[1:])
    selector = SELECTORS["topp_mass"](p=0.95)
    stream = make_stream(recording, selector)
    print(f"{recording.header.model}: {recording.steps} steps, {recording.blocks} blocks; access: {selector.describe()}")
    print(f"{'policy':14}{'pool':8}{'block hits':>12}{'its bound':>11}{'dense bound':>13}{'mass hit':>10}   simulated")
    for pool in ("global", "equal"):
        for policy in POLICIES:
            row = run_case(stream, Case(policy, hbm_fraction=0.10, pool=pool))
            ratios = (row["block_hit_ratio"], row["bound"], row["dense_bound"], row["mass_hit_ratio"])
            print(f"{policy:14}{pool:8}{ratios[0]:12.1%}{ratios[1]:11.1%}{ratios[2]:13.1%}{ratios[3]:10.1%}")


if __name__ == "__main__":
    main()
