"""The driver over tiers that are small, busy or faulty: what was asked for is attended, or the call says that it is lost."""

import numpy as np
import pytest

from kvpager.core import DRAM, NVME, Budget, Demand, Done, Tick, UnitTable
from kvpager.driver import Driver
from kvpager.errors import TierBusy, UnitsLost
from kvpager.pager import Pager
from kvpager.policies import make_policy
from kvpager.prefetch import Prefetcher
from kvpager.tiers.modelled import ModelledTier

SIZE = 64


def make(hbm, staging, *, blocks=8, dram=0, policy="lru", prefetcher=None, lanes=1, tiers=None):
    """One layer, one head, `blocks` complete blocks that were admitted over tiers."""
    table = UnitTable(1, 1, 4, SIZE)
    units = table.open_many(table.new_sequence(), blocks)
    table.seal(units)
    budget = Budget((0, hbm * SIZE, dram * SIZE, 10**9), 0, staging * SIZE, SIZE)
    pager = Pager(table, budget, make_policy(policy), prefetcher, lanes=lanes)
    driver = Driver(pager, tiers or {DRAM: ModelledTier(DRAM, dram * SIZE, SIZE), NVME: ModelledTier(NVME, 0, SIZE)})
    driver.begin(Tick(-1, 0))
    driver.admit(Tick(-1, 0), units)
    return driver, units


def ask(driver, step, units):
    attended = []
    driver.begin(Tick(step, 0))
    driver.ask(Demand(Tick(step, 0), units, np.ones(len(units), np.int32)), lambda now: attended.extend(now.tolist()))
    driver.pager.check()
    return attended


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("policy", ["lru", "lfu", "random", "blend"])
def test_tier_2_keeps_what_a_later_round_reads_from_it(policy, lanes):
    """Planted by nature: units evicted in one round once pushed out of tier 2 what the next round was to read there."""
    driver, units = make(hbm=2, staging=lanes, dram=3, policy=policy, lanes=lanes)
    for step in range(12):
        wanted = units[np.random.default_rng(step).random(len(units)) < 0.7]
        assert sorted(ask(driver, step, wanted)) == wanted.tolist()
    assert driver.tiers[DRAM].read_units["demand"] > 0


def test_lost_units_are_not_prefetched():
    class Everything(Prefetcher):
        def propose(self, tick, candidates, max_units):
            return candidates[:max_units]

    driver, units = make(hbm=2, staging=4, prefetcher=Everything())
    lost = units[~driver.pager.resident(units)][:1]
    driver.recover(lost)
    for step in range(6):
        driver.begin(Tick(step, 0))
        driver.prefetch(Tick(step, 0))
        driver.pager.check()
    assert driver.tiers[NVME].read_units["prefetch"] > 0
    with pytest.raises(UnitsLost, match="1 units have no good copy in any tier, unit"):
        ask(driver, 9, lost)


def test_a_failed_read_that_was_answered_while_another_tier_was_busy_is_not_served():
    class Busy(ModelledTier):
        """Takes nothing before it was waited for."""

        refused = False

        def submit(self, move, slots):
            self.refused = not self.refused
            if self.refused:
                raise TierBusy("wait")
            super().submit(move, slots)

    class Faulty(ModelledTier):
        bad: tuple = ()

        def submit(self, move, slots):
            super().submit(move, slots)
            if move.why == "demand":
                self._answers[-1] = Done(move.id, ~np.isin(move.units, self.bad), 0)

    for place in range(5):
        tiers = {DRAM: Busy(DRAM, 0, SIZE), NVME: Faulty(NVME, 0, SIZE)}
        driver, units = make(hbm=2, staging=2, dram=1, lanes=2, tiers=tiers)
        away = units[driver.pager.pages.where[units] == NVME]
        tiers[NVME].bad = bad = (away[place],)
        attended = []
        driver.begin(Tick(0, 0))
        with pytest.raises(UnitsLost) as caught:
            driver.ask(Demand(Tick(0, 0), away, np.ones(len(away), np.int32)), attended.extend)
        assert caught.value.units.tolist() == list(bad)
        assert attended == away[:place].tolist()
