"""The slow, obvious replay: Python sets, full histories, every key recomputed from scratch.

It is written from the design's words, not from the fast code, and shares nothing with it but the
stream's demand. Sizes must be small.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

MASK = (1 << 64) - 1


def slow_hash(unit: int, seed: int, step: int) -> int:
    """splitmix64 in plain integers."""
    x = (unit + seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


@dataclass
class History:
    """All that a causal policy may know of one unit."""

    layer: int
    head: int
    block: int
    created_step: float
    created_layer: int
    sealed_at: tuple[int, int]
    asked: list[tuple[int, int]] = field(default_factory=list)  # ticks
    seen: dict[int, float] = field(default_factory=dict)  # step → mass, float16


@dataclass
class World:
    """What every reference key may look at."""

    units: dict[int, History]
    layers: int
    heads: int
    block_size: int
    seed: int
    sealed: set[int]
    ticked: list[tuple[int, int]]  # ticks whose masses were observed, in order
    asked_ticks: list[tuple[int, int]]
    blocks_at: dict[int, int] = field(default_factory=dict)  # step → blocks of the sequence
    pool_of: Callable[[int], object] = lambda unit: 0
    room: int = 0  # of a pool, open units aside
    capacity: int = 0  # of all pools
    taken: list[list[int]] = field(default_factory=list)  # batches in the order in which a serial policy takes them
    scores: dict = field(default_factory=dict)  # memory of the serial references


def own_ticks(world, unit, ticks):
    """Ticks of the unit's layer (or of all layers at once), in order."""
    return [t for t in ticks if t[1] in (world.units[unit].layer, -1)]


def mass_ema(world, unit, alpha):
    """First mass whole, then one update or decay at each own tick."""
    history, score = world.units[unit], None
    for step, _ in own_ticks(world, unit, world.ticked):
        if step in history.seen:
            score = history.seen[step] if score is None else alpha * history.seen[step] + (1 - alpha) * score
        elif score is not None:
            score *= 1 - alpha
    return score or 0.0


def access_ema(world, unit, alpha):
    """1 while open; then one update or decay at each own tick."""
    history = world.units[unit]
    score = 1.0 if history.created_step >= 0 else 0.0
    for tick in own_ticks(world, unit, world.asked_ticks):
        aged = (1 - alpha) * score + (alpha if tick in history.asked else 0)
        score = 1.0 if tick < history.sealed_at else aged
    return score


def last_touch(world, unit):
    """Time of the last access or of creation, in steps."""
    history = world.units[unit]
    created = history.created_step + max(history.created_layer, 0) / world.layers
    return max([created, *(step + max(layer, 0) / world.layers for step, layer in history.asked)])


def placement(world, unit, now, ranked):
    """0.25 R + 0.55 E + 0.20 N."""
    history = world.units[unit]
    last = max([history.created_step, *(step for step, _ in history.asked)])
    score = mass_ema(world, unit, 0.2)
    if ranked:
        past = own_ticks(world, unit, world.ticked)[-1]  # ranks stand as of the layer's last tick
        peers = [
            u
            for u, h in world.units.items()
            if (h.layer, h.head) == (history.layer, history.head) and (h.created_step, h.created_layer) <= past
        ]
        below = sum(mass_ema(world, peer, 0.2) < score for peer in peers)
        score = below / max(len(peers) - 1, 1)
    return 0.25 * 2 ** ((last - now[0]) / 128) + 0.55 * score + 0.20 * (history.block * world.block_size < 100)


def h2o(world, unit):
    """The newest 64 tokens first; then the sum of all mass seen."""
    age = (max(h.block for h in world.units.values()) - world.units[unit].block) * world.block_size
    return 1e12 / 16 - age if age < 64 else sum(world.units[unit].seen.values())


def snapkv(world, unit):
    """Written while decoding first, newest first; then the votes of the prompt's end."""
    history = world.units[unit]
    return 1e12 / 32 + history.block * world.block_size if history.created_step >= 0 else history.seen.get(-1, 0.0)


def scissorhands(world, unit):
    """In how many of its layer's last 32 ticks it drew more than uniform attention over the blocks of then."""
    history = world.units[unit]
    return sum(
        step in history.seen and history.seen[step] > 1 / world.blocks_at[step]
        for step, _ in own_ticks(world, unit, world.ticked)[-32:]
    )


def s3_fifo(world):
    """Algorithm 1 of the paper in plain lists, newest last, from the first access on; what it holds, and its ghosts."""
    held = defaultdict(lambda: ([], [], [], {}))
    for unit in (unit for batch in world.taken for unit in batch):
        small, main, ghosts, hits = held[world.pool_of(unit)]
        if unit in small + main:
            hits[unit] = min(hits[unit] + 1, 3)
            continue
        queue = main if unit in ghosts else small
        ghosts[:] = [ghost for ghost in ghosts if ghost != unit]
        while len(small) + len(main) >= world.room:
            if len(small) >= max(int(world.room * 0.1), 1) or not main:
                while small:
                    tail = small.pop(0)
                    if hits[tail] > 1:
                        main.append(tail)
                        hits[tail] = 0
                    else:
                        ghosts.append(tail)
                        break
            else:
                while hits[main[0]]:
                    hits[main[0]] -= 1
                    main.append(main.pop(0))
                main.pop(0)
            del ghosts[: -(world.room - max(int(world.room * 0.1), 1)) or len(ghosts)]
        queue.append(unit)
        hits[unit] = 0
    scores = defaultdict(float)
    for small, main, ghosts, _ in held.values():
        scores |= dict.fromkeys(ghosts, 1.0) | dict.fromkeys(small, 2.0) | dict.fromkeys(main, 3.0)
    return scores


def w_tinylfu(world):
    """Window, probation and protected as plain lists, oldest first; exact counts, halved after ten capacities."""
    held = defaultdict(lambda: ([], [], []))
    counts, seen, room = defaultdict(int), 0, world.room
    most_window = max(int(room * 0.01), 1)
    for batch in world.taken:
        for unit in batch:
            counts[unit] = min(counts[unit] + 1, 15)
        seen += len(batch)
        for unit in batch:
            window, probation, protected = held[world.pool_of(unit)]
            segment = next((part for part in (window, probation, protected) if unit in part), None)
            if segment is None:
                window.append(unit)
                if len(window) > most_window:
                    comes = window.pop(0)
                    if len(window + probation + protected) >= room:
                        rivals = probation or protected
                        if not rivals or counts[comes] <= counts[rivals[0]]:
                            continue
                        rivals.pop(0)
                    probation.append(comes)
            else:
                segment.remove(unit)
                (window if segment is window else protected).append(unit)
                if len(protected) > int((room - most_window) * 0.8):
                    probation.append(protected.pop(0))
        if batch and seen >= 10 * world.capacity:
            counts = defaultdict(int, {unit: count // 2 for unit, count in counts.items()})
            seen //= 2
    inside = {unit for parts in held.values() for part in parts for unit in part}
    return {unit: 16.0 * (unit in inside) + counts[unit] for unit in world.units}


def serial(world, unit, replay):
    """A serial policy's score, from all that it has taken so far."""
    now = (replay, len(world.taken))
    if now not in world.scores:
        world.scores[now] = replay(world)
    return world.scores[now][unit]


KEYS = {
    "s3-fifo": lambda world, unit, now: serial(world, unit, s3_fifo),
    "w-tinylfu": lambda world, unit, now: serial(world, unit, w_tinylfu),
    "h2o": lambda world, unit, now: h2o(world, unit),
    "snapkv": lambda world, unit, now: snapkv(world, unit),
    "scissorhands": lambda world, unit, now: scissorhands(world, unit),
    "lru": lambda world, unit, now: last_touch(world, unit),
    "lfu": lambda world, unit, now: 1 + len(world.units[unit].asked),
    "ema": lambda world, unit, now: mass_ema(world, unit, 0.2),
    "last-step": lambda world, unit, now: mass_ema(world, unit, 1.0),
    "access-ema": lambda world, unit, now: access_ema(world, unit, 0.1),
    "blend": lambda world, unit, now: access_ema(world, unit, 0.1) + 10 * mass_ema(world, unit, 0.2),
    "placement": lambda world, unit, now: placement(world, unit, now, ranked=False),
    "placement-rank": lambda world, unit, now: placement(world, unit, now, ranked=True),
    "random": lambda world, unit, now: (slow_hash(unit, world.seed + 1, now[0] * world.layers + now[1]) >> 11) * 2.0**-53,
    "sink-recent": lambda world, unit, now: (
        1e12 - world.units[unit].block * world.block_size
        if world.units[unit].block * world.block_size < 16
        else world.units[unit].block * world.block_size
    ),
}
KEYS["placement-cuts"] = lambda world, unit, now: key if (key := placement(world, unit, now, ranked=False)) >= 0.3 else -math.inf
KEYS["placement-rank-cuts"] = lambda world, unit, now: (
    key if (key := placement(world, unit, now, ranked=True)) >= 0.3 else -math.inf
)
BONUS = defaultdict(float, {"blend": 0.05, "future-rate": 0.5, "future-rate:ticks=5": 0.5})


def with_belady(stream, warmup):
    """Key by the next counted use strictly after now; the whole future is in `stream`."""
    uses = defaultdict(list)
    for serial, ask in enumerate(stream.asks):
        for unit in ask.units.tolist():
            if ask.tick.step >= warmup:
                uses[unit].append(serial)
    serial_of = {tuple(ask.tick): serial for serial, ask in enumerate(stream.asks)}

    def key(world, unit, now):
        after = serial_of[world.asked_ticks[-1]] if world.asked_ticks else -1
        later = [use for use in uses[unit] if use > after]
        return -float(later[0]) if later else -1e18

    return key


def with_next_mass(stream):
    """Key by the mass at the first tick of the unit's layer after now; the whole recording is in `stream`."""
    mass = stream.recording.mass.astype(np.float32)

    def key(world, unit, now):
        history = world.units[unit]
        step = len(own_ticks(world, unit, world.asked_ticks))
        if step == len(mass):
            return 0.0
        heads = mass[step, history.layer, :, history.block]
        return float(heads[history.head]) if world.heads > 1 else float(heads.mean())

    return key


def with_future_rate(stream, ticks):
    """Key by the number of ticks, out of the next ones, that ask for the unit; the whole future is in `stream`."""

    def key(world, unit, now):
        soon = stream.asks[len(world.asked_ticks) :][:ticks]
        return float(sum(unit in ask.units for ask in soon))

    return key


class SlowReplay:
    """Replays a stream over one policy's reference key.

    Attributes
    ----------
    log : list of (tick, hits, kept)
        The hits judged at each tick, and what was resident after it.
    """

    def __init__(self, stream, name, capacity, pool, seed=0, warmup=0, sink_tokens=0):
        header = stream.recording.header
        self.stream, self.seed, self.pool = stream, seed, pool
        self.layers, self.heads = len(header.layers), stream.heads_per_layer
        self.world = World({}, self.layers, self.heads, header.block_size, seed, set(), [], [])
        clairvoyant = {
            "belady": lambda: with_belady(stream, warmup),
            "next-mass": lambda: with_next_mass(stream),
            "future-rate": lambda: with_future_rate(stream, 480),
            "future-rate:ticks=5": lambda: with_future_rate(stream, 5),
        }
        base = clairvoyant[name]() if name in clairvoyant else KEYS[name]
        self.bonus = BONUS[name]

        def key(world, unit, now):
            first = world.units[unit].block * world.block_size
            return 1e12 - first if first < sink_tokens else base(world, unit, now)

        self.key = key
        pools = {"global": 1, "layer": self.layers, "equal": self.layers * self.heads}[pool]
        self.capacity = capacity // pools
        self.world.pool_of, self.world.capacity = self.pool_of, self.capacity * pools
        self.world.room = max(self.capacity - self.layers * self.heads // pools, 1)
        self.resident: set[int] = set()
        self.held: set[int] = set()  # open, or sealed but not yet acknowledged
        self.unacknowledged: set[int] = set()
        self.turned: list[int] = []  # sealed, and not yet known to a serial policy
        self.log: list[tuple] = []

    def pool_of(self, unit):
        history = self.world.units[unit]
        return {"global": 0, "layer": history.layer, "equal": (history.layer, history.head)}[self.pool]

    def create(self, layer, block, step, created_layer, sealed):
        for head in range(self.heads):
            unit = (block * self.layers + layer) * self.heads + head
            sealed_at = (-(10**9), 0) if sealed else (10**9, 0)
            self.world.units[unit] = History(layer, head, block, step, created_layer, sealed_at)
            if sealed:
                self.world.sealed.add(unit)
            yield unit

    def choose(self, now, pool, incoming, room):
        """Keep the best `room` of evictable residents and incoming; ties by hash."""
        evictable = [u for u in self.resident if self.pool_of(u) == pool and u not in self.held]
        ranked = []
        for unit in evictable + incoming:
            key = self.key(self.world, unit, now)
            key += self.bonus if unit in self.resident and key < 1e12 / 8 else 0  # no bonus among pins
            if key > -math.inf:
                ranked.append((-key, slow_hash(unit, self.seed, now[0]), unit))
        keep = {unit for *_, unit in sorted(ranked)[: max(room, 0)]}
        self.resident -= set(evictable) - keep
        self.resident |= keep & set(incoming)

    def place(self, now, staged):
        if not staged:
            return
        touched = {self.pool_of(u) for u in self.world.units if now[1] in (self.world.units[u].layer, -1)}
        for pool in touched:
            held = sum(self.pool_of(u) == pool for u in self.held & self.resident)
            self.choose(now, pool, [u for u in staged if self.pool_of(u) == pool], self.capacity - held)

    def hold_open(self, now, units):
        """Open units enter HBM; the worst residents make room."""
        for pool in {self.pool_of(u) for u in units}:
            mine = [u for u in units if self.pool_of(u) == pool]
            full = sum(self.pool_of(u) == pool for u in self.resident)
            held = sum(self.pool_of(u) == pool for u in self.held & self.resident)
            if full + len(mine) > self.capacity:
                self.choose(now, pool, [], self.capacity - held - len(mine))
        self.resident |= set(units)
        self.held |= set(units)

    def observe(self, seen):
        self.world.ticked.append(tuple(seen.tick))
        for unit, mass in zip(seen.units.tolist(), seen.mass.tolist(), strict=True):
            self.world.units[unit].seen[seen.tick.step] = mass

    def run(self):
        header = self.stream.recording.header
        size = header.block_size
        complete, rest = divmod(header.context_tokens, size)
        self.world.blocks_at[-1] = complete + bool(rest)
        for seen in self.stream.prefill:
            layers = range(self.layers) if seen.tick.layer < 0 else [seen.tick.layer]
            staged = []
            for layer in layers:
                for block in range(complete):
                    staged += self.create(layer, block, -1 - (complete - 1 - block), seen.tick.layer, sealed=True)
            if rest:
                opened = [u for layer in layers for u in self.create(layer, complete, -1, seen.tick.layer, sealed=False)]
                self.hold_open(tuple(seen.tick), opened)
            self.world.taken.append(sorted(staged))
            self.observe(seen)
            self.place(tuple(seen.tick), staged)
        for ask in self.stream.asks:
            self.tick(ask, header.context_tokens + ask.tick.step, size)
        return self.log

    def tick(self, ask, position, size):
        now = tuple(ask.tick)
        self.world.blocks_at[now[0]] = position // size + 1
        self.held -= self.unacknowledged  # acknowledged at this tick's start
        self.unacknowledged = set()
        if position % size == 0:
            block = position // size
            if now[1] <= 0 and block:
                full = [u for u, h in self.world.units.items() if h.block == block - 1 and u not in self.world.sealed]
                for unit in full:
                    self.world.units[unit].sealed_at = now
                self.world.sealed |= set(full)
                self.unacknowledged = set(full)
                self.turned = sorted(full)
            layers = range(self.layers) if now[1] < 0 else [now[1]]
            opened = [u for layer in layers for u in self.create(layer, block, now[0], now[1], sealed=False)]
            self.hold_open(now, opened)
        asked = ask.units.tolist()
        self.world.taken.append(self.turned)
        self.turned = []
        self.world.taken.append(sorted(asked, key=lambda u: slow_hash(u, self.seed, now[0])))
        hits = [u for u in asked if u in self.resident]
        self.world.asked_ticks.append(now)
        for unit in asked:
            self.world.units[unit].asked.append(now)
        self.observe(ask.seen)
        self.place(now, [u for u in asked if u not in hits])
        self.log.append((now, sorted(hits), sorted(self.resident)))
