"""What prefetch is worth: by which sign units are brought, how many, how many of them in vain, and what that is in time.

Under the recommended placement, on units that are not in HBM; then distance against content as a ranking of what to keep.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

from experiments.study import Interval, Study, interval
from experiments.texts import TEST
from kvpager.analysis import steptime
from kvpager.claims.ledger import CONTRADICTED, INCONCLUSIVE, SUPPORTED
from kvpager.evidence import Evidence
from kvpager.hardware import load
from kvpager.models import resolve
from kvpager.plan.single import plan
from kvpager.replay.row import Case
from kvpager.replay.sweep import Source, sweep

CLAIMS = ("rope-locality-geometric", "prefetch-never")
TEXTS = TEST
SIZES = (0.054, 0.10, 0.25)
MAIN = 0.10
SMALL = 0.01
"""The notes' volume: of the pool, a step."""
VOLUMES = (0.05, 0.10, 0.25)
ENVELOPE = "envelope:when=layer,rope_base=100000,head_dim=64"
"""With the rotation of SmolLM2."""
EVERYWHERE = ("blend", "previous", "history")
ONCE = ("blend-layer", "distance", "ema", ENVELOPE, "previous-layer", "key-summary")
QUICK = ("blend", "blend-layer", "previous", "history")
NEAR, FIRST_AND_NEAR = "sink-recent:sink_tokens=0", "sink-recent"
RANKINGS = [(policy, pool) for policy in (NEAR, FIRST_AND_NEAR, "ema") for pool in ("equal", "global")]
MODEL, SYSTEM, CONTEXT = "llama-3.1-70b", "note-000-cxl", 131_072
SIMULATED = (Evidence.SIMULATED, Evidence.MEASURED)
IN_TIME = (Evidence.ASSUMPTION, Evidence.ANALYTICAL, *SIMULATED)
Rows = list[dict[str, Any]]


def run(study: Study) -> None:
    """Replay each text with each prefetcher; compare with no prefetch, text by text."""
    texts = TEXTS[:2] if study.quick else TEXTS
    found = {text: study.once(f"{text} by prefetcher at {SIZES}", partial(_prefetch, study, text)) for text in texts}
    ranked = {text: study.once(f"{text} by ranking", partial(_rank, study, text)) for text in texts}
    _geometric(study, ranked)
    _small(study, found)
    _volume(study, found)
    _time(study, found)


def _names(study: Study, size: float) -> tuple[str, ...]:
    return QUICK if study.quick else EVERYWHERE + (ONCE if size == MAIN else ())


def _volumes(study: Study) -> tuple[float, ...]:
    return VOLUMES[-1:] if study.quick else VOLUMES


def _cases(study: Study) -> list[Case]:
    """No prefetch, then each prefetcher at the notes' volume, then more volume for two of them."""
    made = partial(Case, "blend", bound=False)
    cases = []
    for size in (MAIN,) if study.quick else SIZES:
        names = (None, *_names(study, size))
        cases += [made(hbm_fraction=size, prefetcher=name, prefetch_share=SMALL) for name in names]
    for name in ("previous", "history"):
        cases += [made(hbm_fraction=MAIN, prefetcher=name, prefetch_share=volume) for volume in _volumes(study)]
    return cases


def _prefetch(study: Study, text: str) -> Rows:
    cases = _cases(study)
    keys = ("hbm_fraction", "steps", "units", "accesses", "block_hit_ratio", "byte_hit_ratio", "demand_only_hit_ratio")
    rows = sweep(Source(study.recording(text)), cases, jobs=1)
    return [
        {"text": text, "prefetcher": (case.prefetcher or "none").partition(":")[0], "volume": case.prefetch_share}
        | {key: row[key] for key in (*keys, "mass_hit_ratio")}
        | {"capacity_units": row["capacity_units"]}
        | row.get("prefetch", {})
        for case, row in zip(cases, rows, strict=True)
    ]


def _rank(study: Study, text: str) -> Rows:
    cases = [Case(policy, MAIN, pool, bound=False) for policy, pool in RANKINGS]
    keys = ("policy", "pool", "hbm_fraction", "block_hit_ratio", "mass_hit_ratio", "top_mass_oracle")
    return [{"text": text} | {key: row[key] for key in keys} for row in sweep(Source(study.recording(text)), cases, jobs=1)]


def _geometric(study: Study, ranked: dict[str, Rows]) -> None:
    def of(rows: Rows, policy: str, key: str, pool: str = "equal") -> float:
        return 100 * next(float(row[key]) for row in rows if (row["policy"], row["pool"]) == (policy, pool))

    def mean(policy: str, key: str) -> float:
        return interval(of(rows, policy, key) for rows in ranked.values()).value

    gain = interval(of(rows, "ema", "block_hit_ratio") - of(rows, FIRST_AND_NEAR, "block_hit_ratio") for rows in ranked.values())
    pooled = interval(
        of(rows, "ema", "block_hit_ratio", "global") - of(rows, FIRST_AND_NEAR, "block_hit_ratio", "global")
        for rows in ranked.values()
    )
    oracle = mean(NEAR, "top_mass_oracle")
    study.find(
        "rope-locality-geometric",
        CONTRADICTED if gain.low > 0 else SUPPORTED if gain.high < 0 else INCONCLUSIVE,
        f"with HBM of {100 * MAIN:g} % of the KV and equal shares for all heads, keeping each head's nearest blocks hits "
        f"{mean(NEAR, 'block_hit_ratio'):.0f} % of the accesses and holds {mean(NEAR, 'mass_hit_ratio'):.0f} % of the mass, the "
        f"first block and the nearest {mean(FIRST_AND_NEAR, 'block_hit_ratio'):.0f} % and "
        f"{mean(FIRST_AND_NEAR, 'mass_hit_ratio'):.0f} %, the blocks that drew mass lately {mean('ema', 'block_hit_ratio'):.0f} % "
        f"and {mean('ema', 'mass_hit_ratio'):.0f} %, the best choice of each step {oracle:.0f} % of the mass: past content gains "
        f"{gain.value:+.1f} points of hits over distance, {pooled.value:+.1f} where heads share one pool ({len(ranked)} texts, "
        "SmolLM2; the share that RoPE itself has in this cannot be told without a model that lacks it)",
        value=gain.value, low=gain.low, high=gain.high, unit="points",
    )  # fmt: skip
    study.sign("hits by content − hits by distance, equal shares", gain)
    study.sign("hits by content − hits by distance, one pool", pooled)


def _row(rows: Rows, name: str, size: float = MAIN, volume: float = SMALL) -> dict[str, Any]:
    return next(
        row for row in rows if (row["prefetcher"], row["hbm_fraction"]) == (name, size) and row["volume"] in (volume, None)
    )


def _gain(found: dict[str, Rows], name: str, size: float = MAIN, volume: float = SMALL) -> Interval:
    """Points of hits over no prefetch."""
    pairs = ((_row(rows, name, size, volume), _row(rows, "none", size)) for rows in found.values())
    return interval(100 * (row["block_hit_ratio"] - bare["block_hit_ratio"]) for row, bare in pairs)


def _share(found: dict[str, Rows], name: str, key: str, size: float = MAIN, volume: float = SMALL) -> float:
    """Mean over texts, in %."""
    return interval(100 * _row(rows, name, size, volume)[key] for rows in found.values()).value


def _small(study: Study, found: dict[str, Rows]) -> None:
    names = [name.partition(":")[0] for name in _names(study, MAIN)]
    gains = {name: _gain(found, name) for name in names}
    best = max(gains, key=lambda name: gains[name].value)
    told = "; ".join(
        f"{name} {gains[name].value:+.2f} ({_share(found, name, 'precision'):.0f} % used)"
        for name in sorted(names, key=lambda name: -gains[name].value)
    )
    late = sum(_row(rows, name)["late"] for rows in found.values() for name in names)
    others = [(size, name) for size in SIZES if size != MAIN and not study.quick for name in ("blend", "history")]
    told_of = [f"{name} {_gain(found, name, size).value:+.2f} at {100 * size:g} %" for size, name in others]
    elsewhere = f". At other sizes: {', '.join(told_of)}" if told_of else ""
    study.result(
        "prefetch of 1 % of the pool a step",
        f"at {100 * MAIN:g} % of the KV, points of hits over no prefetch and share of the units that were used: {told}. Of the "
        f"misses, {best} covers {_share(found, best, 'coverage'):.1f} %; {late} units came late, since a fetch lasts one tick "
        f"here{elsewhere}",
        value=gains[best].value, low=gains[best].low, high=gains[best].high, unit="points", labels=SIMULATED,
    )  # fmt: skip
    for name in ("previous", "history", "blend-layer", "blend"):
        study.sign(f"gain of {name}", gains[name])
    for one, other in (("history", "previous"), ("blend-layer", "blend")):
        pairs = ((_row(rows, one), _row(rows, other)) for rows in found.values())
        study.sign(f"{one} − {other}", interval(row["block_hit_ratio"] - rival["block_hit_ratio"] for row, rival in pairs))


def _volume(study: Study, found: dict[str, Rows]) -> None:
    gains = {volume: _gain(found, "history", MAIN, volume) for volume in _volumes(study)}
    told = "; ".join(
        f"{100 * volume:g} % of the pool a step: history {gains[volume].value:+.1f} points, "
        f"{_share(found, 'history', 'precision', MAIN, volume):.0f} % used, previous step "
        f"{_gain(found, 'previous', MAIN, volume).value:+.1f}, {_share(found, 'previous', 'precision', MAIN, volume):.0f} %"
        for volume in _volumes(study)
    )
    most = VOLUMES[-1]
    wasted = interval(
        (row["issued"] - row["used"]) / (row["accesses"] * (1 - row["byte_hit_ratio"]))
        for row in (_row(rows, "history", MAIN, most) for rows in found.values())
    )
    without = interval(
        100 * (_row(rows, "history", MAIN, most)["demand_only_hit_ratio"] - _row(rows, "none")["block_hit_ratio"])
        for rows in found.values()
    )
    study.result(
        "prefetch by volume",
        f"{told}. At the largest volume the bytes brought in vain are {100 * wasted.value:.0f} % of the bytes still missed, and "
        f"hits that owe nothing to prefetch change by {without.value:+.1f} points: prefetch moves bytes earlier, it saves none",
        value=gains[most].value, low=gains[most].low, high=gains[most].high, unit="points", labels=SIMULATED,
    )  # fmt: skip
    study.sign("gain of history at a quarter of the pool", gains[most])


@lru_cache
def _site(size: float, read_fraction: float) -> dict[str, float]:
    """Own and link times of a step of as many users as leave HBM nearest to `size` of their KV, on the notes' system."""
    facts, system = resolve(MODEL), load().systems[SYSTEM]
    plans = (plan(facts, system, CONTEXT, users, read_fraction=read_fraction) for users in range(1, 25))
    best = min(plans, key=lambda one: abs(one["step"]["hbm_share"].value - size))
    of = {name: best["step"][name].value for name in ("compute_s", "memory_s", "read_bytes", "miss_bytes", "transfer_s")}
    link = of["read_bytes"] * of["transfer_s"] / of["miss_bytes"]
    own = max(of["compute_s"], of["memory_s"])
    return {"users": best["asked"]["users"].value, "own_s": own, "all_s": link}


def _times(row: dict[str, Any], bare: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step with and without this row's prefetch; `all_s` is what all that a step reads takes on the link."""
    site = _site(row["hbm_fraction"], row["accesses"] / row["steps"] / row["units"])
    own, link = site["own_s"], site["all_s"]
    ahead = link * row.get("issued", 0) / row["accesses"]
    demand = link * (1 - bare["byte_hit_ratio"])
    found = {
        "demand_s": demand,
        "without_s": steptime.prefetched_step_s(own, own, demand, 0.0),
        "with_s": steptime.prefetched_step_s(own, own, link * (1 - row["byte_hit_ratio"]), ahead),
    }
    return site | {"hits_needed": max(0.0, 1 - own / link)} | {name: float(value) for name, value in found.items()}


def _time(study: Study, found: dict[str, Rows]) -> None:
    bare = [_times(_row(rows, "none"), _row(rows, "none")) for rows in found.values()]
    pressure = interval(one["demand_s"] / one["own_s"] for one in bare)
    needed = interval(100 * one["hits_needed"] for one in bare)
    hits = interval(100 * _row(rows, "none")["byte_hit_ratio"] for rows in found.values())
    study.find(
        "prefetch-never",
        CONTRADICTED if pressure.low > 1 else SUPPORTED if pressure.high < 1 else INCONCLUSIVE,
        f"at {CONTEXT // 1024}K with {bare[0]['users']:.0f} users of {MODEL} on the notes' system, a step's misses alone keep the "
        f"link busy for {pressure.value:.1f} times the step's own time, so that no window is left for prefetch; to leave one, "
        f"{needed.value:.0f} % of the bytes would have to hit, and {hits.value:.0f} % do (hits of SmolLM2 at up to "
        f"{study.scale.context_tokens:,} tokens, reading what holds 95 % of each head's mass; that they hold for this model and "
        "context is assumed)",
        value=pressure.value, low=pressure.low, high=pressure.high, unit="x", labels=IN_TIME,
    )  # fmt: skip
    study.sign("link time of the misses − the step's own time", Interval(*(end - 1 for end in pressure)))
    told, saved = [], {}
    for name, volume in (("blend", SMALL), ("history", SMALL), *(("history", volume) for volume in _volumes(study))):
        times = [_times(_row(rows, name, MAIN, volume), _row(rows, "none")) for rows in found.values()]
        saved[name, volume] = interval(100 * (1 - one["with_s"] / one["without_s"]) for one in times)
        told.append(f"{name} at {100 * volume:g} % {saved[name, volume].value:+.1f} %")
    last = saved["history", VOLUMES[-1]]
    study.result(
        "step time that prefetch saves",
        f"{MODEL} at {CONTEXT // 1024}K on the notes' system, prefetches hidden behind the step's own time as far as they fit, "
        f"misses not: {'; '.join(told)} of {1000 * interval(one['without_s'] for one in bare).value:.0f} ms",
        value=last.value, low=last.low, high=last.high, unit="%", labels=IN_TIME,
    )  # fmt: skip
    study.sign("step time saved by history at a quarter of the pool", last)
