"""Blocks in several tiers, in the words of `kvpager.replay.hierarchy`: slow, and obvious."""

from collections import Counter, OrderedDict


class SlowHierarchy:
    """One access, or one prompt, at a time.

    `rooms[tier]` maps a tenant to its room; the tenants that it does not name share ``rooms[tier][None]``. Blocks are
    (tenant, id) if tenants have quotas, else (None, id).
    """

    def __init__(self, rooms, lru, promote, inclusive, write):
        self.rooms, self.lru, self.promote, self.inclusive, self.write = rooms, lru, promote, inclusive, write
        self.lists = [{tenant: OrderedDict() for tenant in room} for room in rooms]  # old to new
        self.chain = range(len(rooms) - 1 if inclusive else len(rooms))
        self.asked = Counter()
        self.counts = [Counter() for _ in rooms]

    def list_of(self, tier, block):
        return self.lists[tier][block[0] if block[0] in self.rooms[tier] else None]

    def room_of(self, tier, block):
        return self.rooms[tier][block[0] if block[0] in self.rooms[tier] else None]

    def holds(self, tier, block):
        return block in self.list_of(tier, block)

    def find(self, block):
        return next((tier for tier in range(len(self.rooms)) if self.holds(tier, block)), -1)

    def touch(self, block):
        for tier in range(len(self.rooms)):
            if self.holds(tier, block) and self.lru[tier]:
                self.list_of(tier, block).move_to_end(block)

    def access(self, block, depth, source):
        self.asked[block] += 1
        if source >= 0:
            self.counts[source]["read"] += 1
        if self.inclusive and self.holds(-1, block) and self.lru[-1]:
            self.list_of(-1, block).move_to_end(block)
        if self.inclusive:
            new_in_store = not self.holds(-1, block) and (self.write == "second-hit" or (self.write == "through" and source < 0))
        here = next((tier for tier in self.chain if self.holds(tier, block)), None)
        wanted = next((tier for tier in self.chain if self.room_of(tier, block) > depth), None)
        stays = source >= 0 and not self.promote[source]
        fallen = None
        if here is not None and (stays or wanted is None or wanted >= here):
            if self.lru[here]:
                self.list_of(here, block).move_to_end(block)
        elif here is not None or not stays:
            if here is not None:
                del self.list_of(here, block)[block]
                self.counts[here]["moved up"] += 1
            fallen = self.enter(block, depth, "new" if source < 0 else "promoted")
        if self.inclusive:
            if new_in_store:
                self.store(block, depth, "new")
            if fallen:
                self.store(*fallen)

    def enter(self, block, depth, why):
        for tier in self.chain:
            last_and_refused = tier == len(self.rooms) - 1 and self.write == "second-hit" and self.asked[block] < 2
            if self.room_of(tier, block) <= depth or last_and_refused:
                continue
            mine = self.list_of(tier, block)
            victim = None
            if len(mine) == self.room_of(tier, block):
                victim = mine.popitem(last=False)[0]
                self.counts[tier]["evicted"] += 1
            mine[block] = None
            self.counts[tier][why] += 1
            if victim is None:
                return None
            block, depth, why = victim, 0, "demoted"
        return block, depth, why

    def store(self, block, depth, why):
        refused = self.write == "second-hit" and self.asked[block] < 2
        if self.holds(-1, block) or refused or self.room_of(-1, block) <= depth:
            return
        mine = self.list_of(-1, block)
        if len(mine) == self.room_of(-1, block):
            mine.popitem(last=False)
            self.counts[-1]["evicted"] += 1
        mine[block] = None
        self.counts[-1][why] += 1

    def prompt(self, blocks):
        found = [self.find(block) for block in blocks]
        run = next((depth for depth, source in enumerate(found) if source < 0), len(blocks))
        served = found[:run] + [-1] * (len(blocks) - run)
        for tier in [*range(len(self.rooms)), -1]:
            for depth in reversed(range(len(blocks))):
                if served[depth] == tier:
                    self.access(blocks[depth], depth, tier)
        for block in reversed(blocks[:run]):
            self.touch(block)
        return served

    def one_by_one(self, blocks):
        served = []
        for block in blocks:
            served.append(self.find(block))
            self.access(block, 0, served[-1])
        return served


def replay(requests, tenants, rooms, lru, promote, mode, write, semantics, separate):
    """Who serves each access, counts of each tier, and blocks in each at the end; tiers without any room are absent."""
    there = [tier for tier, room in enumerate(rooms) if any(room.values())]
    slow = SlowHierarchy(
        [rooms[tier] for tier in there], [lru[tier] for tier in there], [promote[tier] for tier in there],
        mode == "inclusive", write,
    )  # fmt: skip
    served = []
    for request, tenant in zip(requests, tenants, strict=True):
        blocks = [(tenant if separate else None, block) for block in request]
        if not there:
            served += [-1] * len(blocks)
        else:
            served += slow.prompt(blocks) if semantics == "prefix" else slow.one_by_one(blocks)
    counts, held = [Counter() for _ in rooms], [0] * len(rooms)
    for number, tier in enumerate(there):
        counts[tier], held[tier] = slow.counts[number], sum(map(len, slow.lists[number].values()))
    return [there[source] if source >= 0 else -1 for source in served], counts, held
