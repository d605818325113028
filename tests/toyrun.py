"""A live run without a model: sequences that begin, grow, fork, shrink and end, over the real driver and modelled tiers.

Every choice comes from one seed and none looks at what stands where, so that runs of one seed differ in policy and sizes only.
"""

import numpy as np

from kvpager.core import DRAM, HBM, NVME, STAGE, Budget, Demand, Done, KVGeometry, LayerKV, Seen, Tick
from kvpager.errors import CapacityError, StorageFull, TierBusy, UnitsLost
from kvpager.pager import Pager
from kvpager.policies import make_policy
from kvpager.prefetch import PREFETCHERS
from kvpager.registry import configure
from kvpager.runlog import LoggedDriver, LoggedTable
from kvpager.tiers.modelled import ModelledTier
from kvpager.traces.run import Packer, RunHeader, RunRecording
from kvpager.traces.runcounts import RunTally

LAYERS, HEADS, BLOCK, UNIT_BYTES = 2, 2, 4, 64
MOST_SEQUENCES = 3


def roomy(pool, each=0):
    """A size that holds all open and unconfirmed units of a toy run."""
    return {"global": 30 + each, "layer": 2 * (15 + each), "equal": 4 * (8 + each)}[pool]


class SlowTier(ModelledTier):
    """Answers when it likes; is busy or full, or fails, now and then."""

    def __init__(self, number, seed, faults):
        super().__init__(number, 0, UNIT_BYTES)
        self.rng, self.faults = np.random.default_rng(seed + number), faults

    def submit(self, move, slots):
        if self.rng.random() < 0.2 and self._answers:
            raise TierBusy("wait")
        chance = self.rng.random()
        if self.faults and move.why == "backup" and chance < 0.1:
            raise StorageFull("full")
        super().submit(move, slots)
        if self.faults and self.number == NVME and move.src != STAGE and chance > 0.9:
            self._answers[-1] = Done(move.id, self.rng.random(len(move.units)) < 0.5, 0)

    def poll(self):
        ready = self.rng.random(len(self._answers)) < 0.5
        found = [answer for answer, done in zip(self._answers, ready, strict=True) if done]
        self._answers = [answer for answer, done in zip(self._answers, ready, strict=True) if not done]
        return found


class ToyRun:
    """Runs `steps` steps; `events` are its log, `tally` its counts."""

    def __init__(
        self, seed, policy, hbm, pool="global", *, prefetcher=None, dram=0, staging=3, lanes=1, lockstep=True, slow=False,
        faults=False, forks=True, sink=None,
    ):  # fmt: skip
        self.events, self.tally, self.sink, self.forks = [], RunTally(), sink, forks
        self.table = LoggedTable(LAYERS, HEADS, BLOCK, UNIT_BYTES, sink=self.told)
        payload = (0, hbm * UNIT_BYTES, dram * UNIT_BYTES, 10**9)
        budget = Budget(payload, 0, staging * lanes * UNIT_BYTES, 2.5 * UNIT_BYTES)
        wanted = configure(PREFETCHERS, prefetcher) if prefetcher else None
        self.pager = Pager(self.table, budget, make_policy(policy), wanted, pool=pool, seed=5, lanes=lanes)
        self.tiers = {
            number: SlowTier(number, seed, faults) if slow else ModelledTier(number, 0, UNIT_BYTES) for number in (DRAM, NVME)
        }
        self.driver = LoggedDriver(self.pager, self.tiers, lockstep=lockstep, sink=self.told)
        layer = LayerKV(HEADS, 4, 4)
        self.header = RunHeader(
            model="toy", weights_sha256="0" * 64, geometry=KVGeometry("toy", "llama", HEADS, 2, (layer,) * LAYERS),
            layers=tuple(range(LAYERS)), num_kv_heads=HEADS, block_size=BLOCK, granularity="head", unit_bytes=UNIT_BYTES,
            mode="selective", selector="random", policy=policy, budget=budget, pool=pool, seed=5, lanes=lanes, lockstep=lockstep,
            prefetcher=prefetcher,
        )  # fmt: skip
        self.rng = np.random.default_rng(seed)
        self.tokens = {}
        self.step = 0

    def told(self, event):
        self.events.append(event)
        self.tally(event)
        if self.sink is not None:
            self.sink(event)

    def run(self, steps=8):
        for self.step in range(steps):
            for chance, act in (
                (0.5, self.begin),
                (0.15, self.resume),
                (0.2, self.fork),
                (0.25, self.truncate),
                (0.1, self.free),
            ):
                if self.rng.random() < chance:
                    act()
            self.decode()
        return self

    @property
    def document(self):
        return self.tally.counts.document(self.tiers, UNIT_BYTES)

    @property
    def recording(self):
        return recording_of(self.events, self.header, self.document)

    # ── what can happen ──────────────────────────────────────────────────────────────────────────

    def begin(self):
        """A prefill in two parts: the second reads the first's blocks."""
        if len(self.tokens) >= MOST_SEQUENCES:
            return
        seq = self.table.new_sequence()
        self.tokens[seq] = 0
        for _ in range(2):
            blocks, rest = divmod(int(self.rng.integers(0, 22)), BLOCK)
            old = self.units_of(seq)
            new = self.table.open_many(seq, blocks)
            self.table.seal(new)
            self.tokens[seq] += blocks * BLOCK
            if not self.survives(seq, lambda old=old, new=new: self.prefill(old, new)):
                return
        if rest:
            self.table.open(seq, len(self.table.blocks(seq)))
            self.tokens[seq] += rest
            self.survives(seq, lambda: self.append_open([seq], Tick(self.step, -1)))

    def prefill(self, old, new):
        for layer in range(LAYERS):
            tick = Tick(self.step, layer)
            self.driver.begin(tick)
            here, before = self.of_layer(new, layer), self.of_layer(old, layer)
            if len(here):
                self.driver.admit(tick, here, seen=self.seen(tick, here) if self.rng.random() < 0.7 else None)
            if len(before):
                self.driver.stream(tick, before)
            self.verify()

    def resume(self):
        """A session whose blocks the backing store holds already."""
        if len(self.tokens) >= MOST_SEQUENCES:
            return
        seq = self.table.new_sequence()
        units = self.table.open_many(seq, int(self.rng.integers(1, 4)))
        self.table.seal(units)
        self.tiers[NVME].hold(units)
        self.driver.adopt(Tick(self.step, -1), units)
        self.tokens[seq] = len(self.table.blocks(seq)) * BLOCK

    def fork(self):
        if self.tokens and self.forks and len(self.tokens) < MOST_SEQUENCES:
            seq = self.any_sequence()
            twin = self.table.fork(seq)
            self.tokens[twin] = self.tokens[seq]
            self.survives(twin, lambda: self.append_open([twin], Tick(self.step, -1)))

    def truncate(self):
        if self.tokens:
            seq = self.any_sequence()
            self.tokens[seq] = int(self.rng.integers(0, self.tokens[seq] + 1))
            self.driver.release(Tick(self.step, -1), self.table.truncate(seq, self.tokens[seq]))
            self.survives(seq, lambda: self.append_open([seq], Tick(self.step, -1)))

    def free(self, seq=None):
        if self.tokens:
            seq = self.any_sequence() if seq is None else seq
            del self.tokens[seq]
            self.driver.release(Tick(self.step, -1), self.table.free(seq))
            self.verify()

    def decode(self):
        """One token of every sequence."""
        if not self.tokens:
            return
        for seq in list(self.tokens):
            if self.tokens[seq] % BLOCK == 0:
                self.seal(seq)
                self.table.open(seq, len(self.table.blocks(seq)))
            self.tokens[seq] += 1
        for layer in range(LAYERS):
            tick = Tick(self.step, layer)
            self.driver.begin(tick)
            for seq in list(self.tokens):
                self.survives(seq, lambda seq=seq, tick=tick: self.append_open([seq], tick))
            demand, read = self.demand(tick)
            try:
                self.driver.ask(
                    demand, seen=(lambda read=read, tick=tick: self.seen(tick, read)) if self.rng.random() < 0.9 else None
                )
            except UnitsLost:
                self.verify()
            if layer == 0 and self.rng.random() < 0.2:
                self.driver.observe(self.seen(tick, read))
            self.driver.prefetch(tick)
            self.verify()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def seal(self, seq):
        units = self.units_of(seq)
        full = units[~self.table.sealed[units]]
        if len(full):
            self.table.seal(full)
            self.driver.seal(Tick(self.step, -1), full)

    def survives(self, seq, act):
        """Whether `act` succeeds; a sequence that HBM or the disk cannot hold is dropped."""
        try:
            act()
        except (CapacityError, StorageFull, UnitsLost) as error:
            if not isinstance(error, CapacityError | UnitsLost):
                self.driver.recover()
            self.free(seq)
            return False
        self.verify()
        return True

    def append_open(self, sequences, tick):
        """Append what is open and not yet in HBM."""
        units = np.concatenate([self.units_of(seq) for seq in sequences])
        self.pager.pages.grow()
        new = units[~self.table.sealed[units] & ~self.pager.pages.open[units]]
        new = new if tick.layer < 0 else self.of_layer(new, tick.layer)
        if len(new):
            self.driver.append(tick, new)

    def demand(self, tick):
        asked = {}
        read = []
        for seq in self.tokens:
            units = self.of_layer(self.units_of(seq), tick.layer)
            units = units[(self.table.sealed[units]) | self.pager.pages.open[units]]
            sealed = units[self.table.sealed[units]]
            for unit in sealed[self.rng.random(len(sealed)) < 0.4].tolist():
                asked[unit] = asked.get(unit, 0) + 1
            read += units[~self.table.sealed[units]].tolist()
        units = np.array(sorted(asked), np.int32)
        return Demand(tick, units, np.array([asked[unit] for unit in units.tolist()], np.int32)), np.unique(
            np.array([*asked, *read], np.int32)
        )

    def seen(self, tick, units):
        return Seen(tick, units, np.random.default_rng(units.sum() + tick.step).random(len(units)).astype(np.float16))

    def any_sequence(self):
        return sorted(self.tokens)[int(self.rng.integers(len(self.tokens)))]

    def units_of(self, seq):
        bases = np.array(self.table.blocks(seq), np.int32)
        return (bases[:, None] + np.arange(LAYERS * HEADS, dtype=np.int32)).ravel()

    def of_layer(self, units, layer):
        return units[self.table.layer[units] == layer]

    def verify(self):
        self.pager.check()


def recording_of(events, header, counts=None):
    """The recording that a writer would make of `events`."""
    packer = Packer()
    for event in events:
        packer.add(event)
    return RunRecording(header, packer.take(), counts)


def plain(events):
    """What came of each call, as values that can be compared."""
    return [
        (event.kind, event.raised, [(m.id, m.src, m.dst, m.why, m.units.tolist()) for m in event.moves], hits_of(event))
        for event in events
    ]


def hits_of(event):
    if event.grant is None:
        return None
    return event.grant.tier.tolist(), event.grant.late.tolist(), event.grant.early.tolist(), (event.grant.tier <= HBM).sum()
