"""Request-level policies as their papers tell them, with lists and dictionaries; slow, and obvious."""

import itertools
from collections import OrderedDict, deque

INFINITE = 1 << 60


def fifo(blocks, capacity):
    queue, hits = deque(), []
    for block in blocks:
        hits.append(block in queue)
        if block not in queue:
            if len(queue) == capacity:
                queue.popleft()
            queue.append(block)
    return hits


def lru(blocks, capacity):
    held, hits = OrderedDict(), []
    for block in blocks:
        hits.append(block in held)
        if block not in held and len(held) == capacity:
            held.popitem(last=False)
        held[block] = None
        held.move_to_end(block)
    return hits


def lfu(blocks, capacity):
    count, last, hits = {}, {}, []
    for now, block in enumerate(blocks):
        hits.append(block in count)
        if block not in count and len(count) == capacity:
            del count[min(count, key=lambda other: (count[other], last[other]))]
        count[block] = count.get(block, 0) + 1
        last[block] = now
    return hits


def sieve(blocks, capacity):
    queue, visited, hits = [], {}, []  # old to new
    hand = None
    for block in blocks:
        hits.append(block in visited)
        if block in visited:
            visited[block] = True
            continue
        if len(queue) == capacity:
            at = 0 if hand is None else queue.index(hand)
            while visited[queue[at]]:
                visited[queue[at]] = False
                at = (at + 1) % len(queue)
            hand = queue[at + 1] if at + 1 < len(queue) else None
            del visited[queue.pop(at)]
        queue.append(block)
        visited[block] = False
    return hits


def arc(blocks, capacity):
    once, again, once_gone, again_gone = OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict()
    target, hits = 0.0, []

    def replace(block):
        if once and (len(once) > target or (block in again_gone and len(once) == target)):
            once_gone[once.popitem(last=False)[0]] = None
        else:
            again_gone[again.popitem(last=False)[0]] = None

    for block in blocks:
        hits.append(block in once or block in again)
        if block in once or block in again:
            (once if block in once else again).pop(block)
        elif block in once_gone:
            target = min(float(capacity), target + max(len(again_gone) / len(once_gone), 1.0))
            replace(block)
            del once_gone[block]
        elif block in again_gone:
            target = max(0.0, target - max(len(once_gone) / len(again_gone), 1.0))
            replace(block)
            del again_gone[block]
        else:
            known = len(once) + len(once_gone)
            if known == capacity:
                if len(once) < capacity:
                    once_gone.popitem(last=False)
                    replace(block)
                else:
                    once.popitem(last=False)
            else:
                known += len(again) + len(again_gone)
                if known >= capacity:
                    if known == 2 * capacity:
                        again_gone.popitem(last=False)
                    replace(block)
            once[block] = None
            continue
        again[block] = None
    return hits


def s3_fifo(blocks, capacity, small_share=0.1, threshold=2):
    small, main, ghosts, count, hits = deque(), deque(), deque(), {}, []
    most_small, most_ghosts, dropped = max(int(capacity * small_share), 1), int(capacity * (1 - small_share)), False

    def drop():
        if len(main) > capacity - most_small or not small:
            while True:
                block = main.popleft()
                if not count[block]:
                    del count[block]
                    return
                count[block] -= 1
                main.append(block)
        while small:
            block = small.popleft()
            if count[block] >= threshold:
                count[block] = 0
                main.append(block)
                continue
            del count[block]
            if most_ghosts:
                if len(ghosts) == most_ghosts:
                    ghosts.popleft()
                ghosts.append(block)
            return

    for block in blocks:
        hits.append(block in count)
        if block in count:
            count[block] = min(count[block] + 1, 3)
            continue
        came_back = block in ghosts
        if came_back:
            ghosts.remove(block)
        while len(small) + len(main) >= capacity:
            dropped = True
            drop()
        (main if came_back or (not dropped and len(small) >= most_small) else small).append(block)
        count[block] = 0
    return hits


def two_q(blocks, capacity, queue_share=0.25, ghost_share=0.5):
    queue, ghosts, again, hits = deque(), deque(), OrderedDict(), []
    most, most_ghosts = max(int(capacity * queue_share), 1), max(int(capacity * ghost_share), 1)
    for block in blocks:
        hits.append(block in queue or block in again)
        if block in queue:
            continue
        if block in again:
            again.move_to_end(block)
            continue
        came_back = block in ghosts
        if came_back:
            ghosts.remove(block)
        if len(queue) + len(again) == capacity:
            if len(queue) > most or not again:
                if len(ghosts) == most_ghosts:
                    ghosts.popleft()
                ghosts.append(queue.popleft())
            else:
                again.popitem(last=False)
        if came_back:
            again[block] = None
        else:
            queue.append(block)
    return hits


def ema(blocks, capacity, half_life=2.0):
    held, score, hits = set(), {}, []
    decay = 0.5 ** (1 / (half_life * capacity))
    for block in blocks:
        hits.append(block in held)
        score = {other: value * decay for other, value in score.items()}
        score[block] = score.get(block, 0.0) + 1.0
        if block not in held:
            if len(held) == capacity:
                held.remove(min(held, key=score.get))
            held.add(block)
    return hits


def w_tinylfu(blocks, capacity, window_share=0.01, protected_share=0.8, sample=10):
    most_window = max(int(capacity * window_share), 1)
    most_protected = int((capacity - most_window) * protected_share)
    width, seen = 1 << max(capacity.bit_length(), 4), 0
    sketch = [[0] * width for _ in range(4)]
    window, probation, protected, hits = OrderedDict(), OrderedDict(), OrderedDict(), []

    def cells(block):
        for row in range(4):
            mixed = (block + 0x9E3779B97F4A7C15 * (row + 1)) % 2**64
            mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
            yield row, (mixed ^ (mixed >> 31)) % width

    def frequency(block):
        return min(sketch[row][cell] for row, cell in cells(block))

    for block in blocks:
        hits.append(block in window or block in probation or block in protected)
        for row, cell in cells(block):
            sketch[row][cell] = min(sketch[row][cell] + 1, 15)
        seen += 1
        if seen == sample * capacity:
            sketch = [[value // 2 for value in row] for row in sketch]
            seen //= 2
        if block in window or block in protected:
            (window if block in window else protected).move_to_end(block)
        elif block in probation:
            del probation[block]
            protected[block] = None
            if len(protected) > most_protected:
                probation[protected.popitem(last=False)[0]] = None
        else:
            window[block] = None
            if len(window) > most_window:
                comes = window.popitem(last=False)[0]
                if len(window) + len(probation) + len(protected) < capacity:
                    probation[comes] = None
                    continue
                rivals = probation or protected
                if rivals and frequency(comes) > frequency(next(iter(rivals))):
                    rivals.popitem(last=False)
                    probation[comes] = None
    return hits


def belady(blocks, capacity):
    held, hits = set(), []
    for now, block in enumerate(blocks):
        hits.append(block in held)
        if block not in held:
            if len(held) == capacity:
                uses = {other: next((at for at in range(now, len(blocks)) if blocks[at] == other), INFINITE) for other in held}
                held.remove(max(held, key=uses.get))
            held.add(block)
    return hits


def prefix(requests, capacity, rule, half_life=2.0):
    """Leading hits of each request; `rule` is ``"lru"``, ``"fifo"``, ``"ema"`` or ``"opt"``."""
    held, taken, used, asked, runs = set(), {}, {}, {}, []  # taken: serial of coming in; used: (request, minus depth)
    parents = {block: parent for request in requests for parent, block in itertools.pairwise([None, *request])}
    serial = accesses = 0
    for number, request in enumerate(requests):
        run = 0
        while run < len(request) and request[run] in held:
            run += 1
        runs.append(run)
        for block in request:
            asked.setdefault(block, []).append(accesses)

        def farness(block, number=number):
            ahead = next((later for later in range(number + 1, len(requests)) if block in requests[later]), INFINITE)
            return ahead, block

        def average(block, now=accesses):
            return sum(0.5 ** ((now - then) / (half_life * capacity)) for then in asked[block])

        stop = run
        for block in request[run:]:
            if rule == "fifo" and block in held:
                continue
            if len(held) == capacity:
                others = held - set(request[:stop])
                if rule == "fifo":
                    held.remove(min(held, key=taken.get))
                elif rule == "opt":
                    worst = max(held, key=farness)
                    if farness(worst) <= farness(block):
                        break
                    held.remove(worst)
                elif not others:
                    break
                elif rule == "lru":
                    held.remove(min(others, key=used.get))
                else:
                    held.remove(min(others - {parents[other] for other in held}, key=average))
            held.add(block)
            taken[block] = serial = serial + 1
            stop += 1
        for depth, block in enumerate(request[:stop]):
            used[block] = (number, -depth)
        accesses += len(request)
    return runs
