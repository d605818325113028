"""What the reference does not see of policies that take one access at a time: units that cease to exist, and bad settings."""

import numpy as np
import pytest

from kvpager.core import Tick, UnitTable
from kvpager.errors import BadInput
from kvpager.policies import make_policy
from kvpager.pool import Pools


@pytest.mark.parametrize("name", ["s3-fifo", "w-tinylfu"])
@pytest.mark.parametrize("pool", ["global", "equal"])
def test_a_freed_unit_leaves_its_place_to_others(name, pool):
    """A directory of two units a head: what was freed is known no more, and takes no room."""
    table, policy = UnitTable(1, 1, 4, 64), make_policy(name)
    pools = Pools(table, pool, 3)
    policy.reset(table, 0)
    policy.set_pools(pools)
    first = table.open_many(table.new_sequence(), 2)
    table.seal(first)
    pools.grow()
    policy.on_new(Tick(-1, 0), first)
    for step in range(3):
        policy.on_access(Tick(step, 0), first, np.ones(2, np.int32))
    held = policy.keep_key(Tick(3, 0), first)
    policy.on_gone(first, freed=True)
    assert (policy.keep_key(Tick(3, 0), first) < held).all()
    second = table.open_many(table.new_sequence(), 2)
    table.seal(second)
    pools.grow()
    policy.on_new(Tick(3, 0), second)
    new, old = policy.keep_key(Tick(3, 0), second), policy.keep_key(Tick(3, 0), first)
    assert new.min() > old.max(), "both new units have a place, although they were asked for less than the old ones"


def test_an_open_unit_that_is_freed_never_enters():
    table, policy = UnitTable(1, 1, 4, 64), make_policy("s3-fifo")
    pools = Pools(table, "global", 3)
    policy.reset(table, 0)
    policy.set_pools(pools)
    opened = table.open(table.new_sequence(), 0)
    pools.grow()
    policy.on_new(Tick(0, 0), opened)
    policy.on_gone(opened, freed=True)
    table.seal(opened)
    policy.on_access(Tick(1, 0), opened[:0], opened[:0])
    assert policy.keep_key(Tick(1, 0), opened).tolist() == [0.0]


@pytest.mark.parametrize(
    "text", ["s3-fifo:small=0", "s3-fifo:threshold=4", "w-tinylfu:window=1", "w-tinylfu:protected=0", "w-tinylfu:sample=0"]
)
def test_impossible_settings_are_refused(text):
    with pytest.raises(BadInput, match="give"):
        make_policy(text)
