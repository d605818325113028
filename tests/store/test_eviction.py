"""Which block leaves: the fast choice equals one that looks at everything anew each time."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvpager.errors import BadInput, UnknownName
from kvpager.store.catalogue import Catalogue
from kvpager.store.entry import Entry
from kvpager.store.eviction.base import EVICTIONS
from kvpager.store.eviction.ema import Ema

HALF_LIFE = 3.0
POLICIES = {"lru": EVICTIONS["lru"], "ema": lambda: Ema(HALF_LIFE), "s3-fifo": EVICTIONS["s3-fifo"]}


class Slow:
    """Everything about every block in one list, and no cleverness."""

    def __init__(self, policy):
        self.policy, self.now, self.uses = policy, 0, 0
        self.blocks, self.small, self.main, self.ghosts = {}, [], [], []

    def put(self, name, parent, tenant, length):
        self.uses += 1
        self.blocks[name] = {"parent": parent, "tenant": tenant, "bytes": length, "uses": [self.uses], "pin": 0, "hits": 0}
        (self.main if name in self.ghosts else self.small).append(name)
        self.ghosts = [ghost for ghost in self.ghosts if ghost != name]

    def read(self, name):
        self.uses += 1
        self.blocks[name]["uses"].append(self.uses)
        self.blocks[name]["hits"] = min(self.blocks[name]["hits"] + 1, 3)

    def gone(self, name, evicted):
        if evicted and name in self.small:
            self.ghosts.append(name)
        self.small, self.main = ([one for one in queue if one != name] for queue in (self.small, self.main))
        del self.blocks[name]
        self.ghosts = self.ghosts[-(len(self.blocks) + 1) :]

    def may_leave(self, name, tenant):
        block = self.blocks[name]
        if tenant not in (None, block["tenant"]) or block["pin"] > self.now:
            return False
        return not any(other["parent"] == name for other in self.blocks.values())

    def victim(self, tenant):
        leaves = [name for name in self.blocks if self.may_leave(name, tenant)]
        if not leaves:
            return None
        if self.policy == "lru":
            return min(leaves, key=lambda name: self.blocks[name]["uses"][-1])
        if self.policy == "ema":
            rate = math.log(2) / HALF_LIFE

            def score(name):
                uses = self.blocks[name]["uses"]
                return (sum(math.exp(-rate * (self.uses - use)) for use in uses), uses[-1])

            return min(leaves, key=score)
        while True:
            total = {queue: sum(self.blocks[name]["bytes"] for name in queue) for queue in (tuple(self.small), tuple(self.main))}
            small, main = (next((name for name in queue if name in leaves), None) for queue in (self.small, self.main))
            on_probation = 10 * total[tuple(self.small)] >= sum(self.blocks[name]["bytes"] for name in self.blocks)
            name = small if small is not None and (on_probation or main is None) else main
            hits = self.blocks[name]["hits"]
            if name in self.small and hits >= 2:
                self.small.remove(name)
                self.main.append(name)
                self.blocks[name]["hits"] = 0
            elif name in self.main and hits >= 1:
                self.main.remove(name)
                self.main.append(name)
                self.blocks[name]["hits"] -= 1
            else:
                return name


NAME = st.integers(0, 6)
PUT = st.tuples(
    st.just("put"), NAME, st.sampled_from([None, 1, 1, 2]), st.sampled_from([0, 0, 1]), st.sampled_from([0, 5000, 70_000])
)
EVICT = st.tuples(st.just("evict"), st.sampled_from([None, None, 0, 1]))
OPERATIONS = st.lists(
    st.one_of(
        PUT,
        PUT,
        EVICT,
        st.tuples(st.just("read"), NAME),
        st.tuples(st.just("remove"), NAME),
        st.tuples(st.just("pin"), NAME, st.sampled_from([0, 2, 5])),
        st.tuples(st.just("tick")),
    ),
    min_size=5,
    max_size=60,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS)
@example([("put", 2, None, 0, 0), ("put", 1, 1, 0, 0), ("evict", None), ("evict", None)])
@example([("put", 1, None, 0, 0), ("pin", 1, 2), ("evict", None), ("tick",), ("tick",), ("evict", None)])
@example([("put", 2, None, 0, 0), ("put", 1, 1, 0, 0), ("pin", 2, 5), ("evict", None), ("evict", None)])
@example([("put", 5, 1, 0, 0), ("put", 6, None, 0, 0), ("put", 4, 1, 1, 0), ("evict", 0)])  # what is behind is another's: no ring
def test_victims_are_those_of_brute_force(policy, operations):
    slow = Slow(policy)
    catalogue = Catalogue(POLICIES[policy](), lambda: slow.now)

    def digest(name):
        return b"%032d" % name

    for operation, *what in operations:
        if operation == "put":
            name, step, tenant, length = what
            if name in slow.blocks:
                continue
            parent = None if step is None else name + step  # a higher number: no rings here
            slow.put(name, parent, tenant, Entry(b"", b"", b"", b"", length, 0).disk_bytes)
            behind = b"" if parent is None else digest(parent)
            catalogue.add(Entry(digest(name), behind, b"%d" % tenant, b"", length, 1))
        elif operation == "tick":
            slow.now += 1
        elif operation == "evict":
            expected = slow.victim(what[0])
            found = catalogue.victim(None if what[0] is None else b"%d" % what[0])
            assert (None if found is None else int(found.digest)) == expected
            if found is not None:
                slow.gone(expected, True)
                catalogue.remove(found, "place")
        elif what[0] in slow.blocks:
            entry = catalogue.get(digest(what[0]))
            if operation == "read":
                slow.read(what[0])
                catalogue.touch(entry)
            elif operation == "remove":
                slow.gone(what[0], False)
                catalogue.remove(entry)
            else:
                slow.blocks[what[0]]["pin"] = slow.now + what[1] if what[1] else 0
                catalogue.pin(entry, what[1])
        assert catalogue.used_bytes == sum(block["bytes"] for block in slow.blocks.values())
        assert sum(catalogue.tenant_bytes.values()) == catalogue.used_bytes


def entry(name, parent=None):
    return Entry(b"%032d" % name, b"" if parent is None else b"%032d" % parent, b"", b"", 1, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_in_a_ring_leave_all_the_same_but_not_for_a_pin(policy):
    catalogue = Catalogue(POLICIES[policy]())
    for one in (entry(1, 2), entry(2, 3), entry(3, 1)):
        catalogue.add(one)
    catalogue.pin(catalogue.get(b"%032d" % 2), 100)
    assert catalogue.victim() is None
    catalogue.pin(catalogue.get(b"%032d" % 2), 0)
    for _ in range(3):
        catalogue.remove(catalogue.victim(), "place")
    assert len(catalogue) == 0


def test_all_behind_come_last_first():
    catalogue = Catalogue(POLICIES["lru"]())
    parents = {1: None, 2: 1, 3: 1, 4: 2, 5: 4, 6: None}
    for name, parent in parents.items():
        catalogue.add(entry(name, parent))
    order = [int(one.digest) for one in catalogue.with_all_behind([catalogue.get(b"%032d" % name) for name in (1, 4)])]
    assert sorted(order) == [1, 2, 3, 4, 5]
    for name in order:
        assert parents[name] is None or order.index(name) < order.index(parents[name])
    catalogue.pin(catalogue.get(b"%032d" % 5), 10)
    assert catalogue.with_all_behind([catalogue.get(b"%032d" % 1)]) is None


def test_an_outdated_rank_never_comes_back():
    """The heap is compacted while it is in use."""
    policy = POLICIES["lru"]()
    for name in range(3):
        policy.taken(b"%d" % name, b"", 1)
        policy.offer(b"%d" % name)
    for _ in range(500):
        policy.read(b"0")
    assert len(policy._offers._heaps[b""]) < 100
    assert policy.victim() == b"1"


def test_policies_are_known_by_name():
    assert list(EVICTIONS) == ["ema", "lru", "s3-fifo"]
    with pytest.raises(UnknownName, match="lru"):
        EVICTIONS["lrv"]
    with pytest.raises(BadInput, match="half_life"):
        Ema(0)
