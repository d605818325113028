"""Define a policy, give it a name, and replay it beside the shipped ones.

    python examples/add_a_policy.py

In the package, the class alone is a new file in `src/kvpager/policies/`, and is found there (CONTRIBUTING.md).
"""

# ruff: noqa: D102 - an override inherits its docstring

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvpager.core import Ids, Tick, UnitTable
from kvpager.policies.base import POLICIES, Policy, fill_new
from kvpager.replay.row import Case, run_case
from kvpager.replay.stream import make_stream
from kvpager.selectors import SELECTORS
from kvpager.testing.recordings import synthetic_recording


@POLICIES.register("second-chance")
@dataclass
class SecondChance(Policy):
    """Keep by the last access but one: one access alone does not save a unit from a scan.

    Source: LRU-K, O'Neil et al., SIGMOD 1993, with K = 2. Differs in: creation counts as no access.
    """

    never: float = -1e9

    def reset(self, table: UnitTable, seed: int) -> None:
        self._table = table
        self._last = self._before = np.empty(0)

    def on_new(self, tick: Tick, units: Ids) -> None:
        self._last, self._before = (fill_new(times, self._table, self.never) for times in (self._last, self._before))

    def on_access(self, tick: Tick, units: Ids, asks: Ids) -> None:
        self._before[units] = self._last[units]
        self._last[units] = tick.step

    def keep_key(self, tick: Tick, units: Ids) -> NDArray[np.float64]:
        return self._before[units]


def main() -> None:
    stream = make_stream(synthetic_recording(num_layers=4, context_tokens=1024, steps=48), SELECTORS["topp_mass"]())
    for policy in ("lru", "second-chance", "second-chance+sink:16", "ema", "belady"):
        row = run_case(stream, Case(policy, hbm_fraction=0.10))
        print(f"{policy:24} block hits {row['block_hit_ratio']:6.1%} of at most {row['bound']:6.1%} (simulated)")


if __name__ == "__main__":
    main()
