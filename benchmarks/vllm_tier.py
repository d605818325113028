"""A disk tier below a real vLLM engine: what it does to the time to the first token.

Question
    Prompts come back after they left the engine. How soon is their first token there with kvpager's tier, with vLLM's own
    file-system tier, and without offloading? What does the tier cost where no prompt comes back? And does its gate decline
    what would lose?
Method
    SmolLM2-135M-Instruct in float32, one thread, vLLM on the CPU, from an environment of its own. A document is five blocks of
    128 tokens of this project's texts; a request is a document and ten tokens that nobody else has. The documents are put
    once by each tier, and that is what each process starts with. A side is a process of its own, one after the other, in
    random order, round by round; all get the same requests in the same order, one at a time, without a pause in which writes
    could end: "first", a document, which warms up too, and of which the gate takes an eighth because it has measured no load
    yet; then documents and new prompts, mixed ("fresh process", "new"); then prefix cache and host memory are emptied, and
    again ("after a reset", "new"). "kvpager" has its gate on, told the prefill rate that was measured before without
    offloading. "slow disk", in each third round: its file layer is slowed until a load takes twice as long as computing,
    without gate and with. vLLM's offloading refuses a CPU; its tier too runs with the copying worker of
    kvpager.connect.vllm_cpu. Files stay in the page cache as they were written: both tiers read with O_DIRECT where it works.
    The figure is the time to the first token, as vLLM counts it, over that of the same request without offloading: median,
    least and most. The processor time of the whole process, tiers' threads included, stands beside it: on a busy machine the
    clock says little. Requests during which a process stood still for half a second, stopped or without a processor, are left
    out of the times; where a gate may have measured the pause, so is what that process answered later. The eight tokens of
    each answer must be the same on all sides; else it exits with 1. Broken off with Ctrl-C, it tells what it has.
Command
    OMP_NUM_THREADS=1 python benchmarks/vllm_tier.py --vllm PYTHON [--quick] [--rounds N] [--dir DIR]

The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvpager.traces.provenance import now, this_machine, versions_of

HERE = Path(__file__).resolve().parent
BLOCK_TOKENS, BLOCKS, ENDING, ANSWER = 128, 5, 10, 8
DOCUMENTS, NEW, SLOWER = 3, 2, 2.0
WITHOUT, FS, OURS, SLOW, SLOW_GATE = "no offload", "vLLM fs", "kvpager", "slow disk", "slow disk, gate"
KINDS = ("first", "fresh process", "after a reset", "new")
STARTS_S = 1800  # for a process, whatever it is asked
PAUSE_S = 0.5
SLOW_EVERY = 3  # rounds

Row = dict[str, Any]


class Requests:
    """What is asked: documents that come back, and prompts that nobody has seen.

    Parameters
    ----------
    text : list of int
        Tokens.
    """

    def __init__(self, text: list[int]) -> None:
        length = BLOCK_TOKENS * BLOCKS
        if len(text) < 2 * DOCUMENTS * length:
            raise SystemExit(f"the texts have {len(text):,} tokens, {2 * DOCUMENTS * length:,} are needed")
        self._documents = [text[first : first + length] for first in range(0, DOCUMENTS * length, length)]
        self._rest = text[DOCUMENTS * length :]

    def known(self, number: int, kind: str, rng: random.Random) -> Row:
        """A document, and an ending."""
        return self._step(self._documents[number], kind, rng)

    def new(self, rng: random.Random) -> Row:
        """As long, and different from the first token on."""
        first = rng.randrange(len(self._rest) - BLOCK_TOKENS * BLOCKS)
        body = self._rest[first : first + BLOCK_TOKENS * BLOCKS - ENDING]
        return self._step([rng.randrange(1000, 40_000) for _ in range(ENDING)] + body, "new", rng)

    def round(self, seed: int) -> list[Any]:
        """All of a round, in their order."""
        rng = random.Random(seed)
        steps: list[Any] = [self.known(0, "first", rng)]
        for kind in ("fresh process", "after a reset"):
            mixed = [self.known(number, kind, rng) for number in range(1, DOCUMENTS)] + [self.new(rng) for _ in range(NEW)]
            rng.shuffle(mixed)
            steps += mixed if kind == "fresh process" else ["reset", *mixed]
        return [step if step == "reset" else {**step, "prompt": number} for number, step in enumerate(steps)]

    @staticmethod
    def _step(ids: list[int], kind: str, rng: random.Random) -> Row:
        return {"kind": kind, "prompt": 0, "ids": ids + [rng.randrange(1000, 40_000) for _ in range(ENDING)]}


class Sides:
    """Engines, each in a process of its own.

    Parameters
    ----------
    python : str
        The interpreter of vLLM's environment.
    folder : Path
        For the weights, and for what tiers keep.
    token_bytes : int
        Of the KV of one token.
    """

    def __init__(self, python: str, folder: Path, token_bytes: int) -> None:
        self._python, self._folder, self._token_bytes = python, folder, token_bytes
        self.tokens_per_s = 0.0
        self.version = ""

    @property
    def even_bytes_per_s(self) -> float:
        """At which loading and computing take equally long."""
        return self.tokens_per_s * self._token_bytes

    def fill(self, requests: Requests) -> None:
        """Measure the prefill rate, and let each tier keep the documents."""
        steps = [{**requests.known(number, "fill", random.Random(number)), "prompt": number} for number in range(DOCUMENTS)]
        for name in (WITHOUT, FS, OURS):
            rows, _ = self._process(name, steps, self._kept(name))
            if name == WITHOUT:
                self.tokens_per_s = max(len(steps[0]["ids"]) / row["ttft_s"] for row in rows)  # a pause makes it less
        print(f"prefill without offloading: {self.tokens_per_s:.0f} tokens/s", flush=True)

    def serve(self, name: str, steps: list[Any]) -> tuple[list[Row], Row]:
        """Ask one side in a fresh process; return a row for each prompt, and what its tier counted."""
        place = self._folder / "at work"
        shutil.copytree(self._kept(name), place)
        try:
            return self._process(name, steps, place)
        finally:
            shutil.rmtree(place)

    def _kept(self, name: str) -> Path:
        place = self._folder / (name if name in (WITHOUT, FS) else OURS)
        place.mkdir(exist_ok=True)
        return place

    def _process(self, name: str, steps: list[Any], place: Path) -> tuple[list[Row], Row]:
        asked = {
            "model": str(self._folder / "model"), "tokens": ANSWER, "steps": steps, "transfer": self._transfer(name, place),
            "bytes_per_s": self.even_bytes_per_s / SLOWER if name in (SLOW, SLOW_GATE) else None,
        }  # fmt: skip
        path = os.pathsep.join([str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [self._python, str(HERE / "sides" / "vllm_engine.py")], input=json.dumps(asked), capture_output=True, text=True,
            check=False, timeout=STARTS_S, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
        *rows, last = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        self.version = last["vllm"]
        print(f"{name}: {len(rows)} prompts; the engine took {last['start_s']:.0f} s to start", flush=True)
        return rows, last["counts"]

    def _transfer(self, name: str, place: Path) -> Row | None:
        """What stands in --kv-transfer-config."""
        if name == WITHOUT:
            return None
        extra: Row = {"spec_name": "CPUTieringSpec", "spec_module_path": "kvpager.connect.vllm_cpu", "cpu_bytes_to_use": 1 << 29}
        if name == FS:
            tier: Row = {"type": "fs", "root_dir": str(place)}
            return {
                "kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {**extra, "eviction_policy": "lru", "secondary_tiers": [tier]},
            }  # fmt: skip
        tier = {"type": "KVPagerTier", "module_path": "kvpager.connect.vllm", "path": str(place / "blocks"), "capacity": "2GiB"}
        tier |= {"deadline_s": 120, "lookup_deadline_s": 60, "refresh_s": 0}  # a busy machine is not what is asked about
        if name != SLOW and self.tokens_per_s:
            tier["prefill_tokens_per_s"] = self.tokens_per_s
        policy = {"eviction_policy": "LeafFirst", "cache_policy_module_path": "kvpager.connect.vllm_policy"}
        return {
            "kv_connector": "KVPagerConnector", "kv_connector_module_path": "kvpager.connect.vllm", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {**extra, **policy, "secondary_tiers": [tier]},
        }  # fmt: skip


def weights_and_text(folder: Path) -> tuple[list[int], int]:
    """Save the model as vLLM reads it; return the tokens of this project's texts, and the bytes of a token's KV."""
    from kvpager.live.transformers import load_model

    loaded = load_model("smollm2")
    config = loaded.model.config
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted((HERE.parent / "docs").glob("*.md")))
    loaded.model.save_pretrained(folder / "model")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return loaded.tokenize(text[: 1 << 17]), config.num_hidden_layers * 2 * config.num_key_value_heads * head * 4


def paired(answers: dict[tuple[int, str], list[Row]], side: str, kind: str) -> tuple[list[tuple[Row, Row]], bool, int]:
    """Requests of a side with the same ones without offloading; whether all tokens agree; how many pairs were disturbed."""
    pairs, same, disturbed = [], True, 0
    for (number, name), some in answers.items():
        others = {base["prompt"]: base for base in answers.get((number, WITHOUT), ())}
        learnt = False
        for one in some if name == side else ():
            paused = learnt or one["pause_s"] > PAUSE_S
            learnt = (paused and side in (OURS, SLOW_GATE) and one["kind"] != "new") or learnt
            if one["kind"] == kind and (base := others.get(one["prompt"])):
                same = same and one["tokens"] == base["tokens"]
                if paused or base["pause_s"] > PAUSE_S:
                    disturbed += 1
                else:
                    pairs.append((one, base))
    return pairs, same, disturbed


def compared(answers: dict[tuple[int, str], list[Row]]) -> list[Row]:
    """For each side and kind: times of requests over those of the same ones without offloading."""
    rows = []
    for side in (FS, OURS, SLOW, SLOW_GATE):
        for kind in KINDS:
            pairs, same, disturbed = paired(answers, side, kind)
            row = {"side": side, "kind": kind, "requests": len(pairs), "disturbed": disturbed, "same_tokens": same}
            for key in ("ttft", "cpu") if pairs else ():
                ratios = [one[f"{key}_s"] / base[f"{key}_s"] for one, base in pairs]
                row |= {f"{key}_ratio": statistics.median(ratios), f"{key}_ratios": [round(ratio, 3) for ratio in ratios]}
            if pairs:
                row["ttft_s"] = statistics.median(one["ttft_s"] for one, _ in pairs)
                row["ttft_s_without"] = statistics.median(base["ttft_s"] for _, base in pairs)
                row["cached_tokens"] = statistics.median(one["cached"] for one, _ in pairs)
            if pairs or disturbed:
                rows.append(row)
    return rows


def told(rows: list[Row], gates: dict[str, dict[str, float]]) -> None:
    for row in rows:
        what = f"{row['side']:>15}, {row['kind']:13}: "
        if row["requests"]:
            least, most = min(row["ttft_ratios"]), max(row["ttft_ratios"])
            what += (
                f"{row['ttft_ratio']:.3f} of the time to the first token without offloading ({least:.3f} to {most:.3f}; "
                f"{row['ttft_s']:.2f} s for {row['ttft_s_without']:.2f}), {row['cpu_ratio']:.3f} of the processor time; "
                f"{row['cached_tokens']:.0f} tokens from the tier; {row['requests']} requests, "
            )
        print(f"{what}{row['disturbed']} disturbed; {'same' if row['same_tokens'] else 'OTHER'} tokens", flush=True)
    for row in rows:
        if row["kind"] == "fresh process" and row["side"] in (FS, OURS) and not row.get("cached_tokens", 1):
            print(f"{row['side']} brought nothing back in a fresh process")
    for side, counted in gates.items():
        print(f"{side:>15}: " + ", ".join(f"{name} {count:.6g}" for name, count in sorted(counted.items())))


def measured(python: str, folder: Path, rounds: int) -> Row:
    """Ask all sides, and return what came of it."""
    text, token_bytes = weights_and_text(folder)
    requests, sides, load = Requests(text), Sides(python, folder, token_bytes), [os.getloadavg()[0]]
    sides.fill(requests)
    answers: dict[tuple[int, str], list[Row]] = {}
    gates: dict[str, dict[str, float]] = {}
    try:
        for number in range(rounds):
            steps, names = requests.round(1000 + number), [WITHOUT, FS, OURS] + [SLOW, SLOW_GATE] * (number % SLOW_EVERY == 0)
            for name in random.Random(number).sample(names, len(names)):
                wanted = [step for step in steps if name not in (SLOW, SLOW_GATE) or step == "reset" or step["kind"] != "new"]
                answers[number, name], counted = sides.serve(name, wanted)
                for word, count in counted.items():
                    if word.startswith("gate_"):
                        gates.setdefault(name, {})[word] = gates.get(name, {}).get(word, 0) + count
                load.append(os.getloadavg()[0])
    except KeyboardInterrupt:
        print("broken off")
    rows = compared(answers)
    told(rows, gates)
    return {
        "vllm": sides.version, "prefill_tokens_per_s": sides.tokens_per_s, "even_bytes_per_s": sides.even_bytes_per_s,
        "slow_bytes_per_s": sides.even_bytes_per_s / SLOWER, "token_bytes": token_bytes,
        "processes": [f"{number}: {name}" for number, name in answers], "load": load,
        "same_tokens": all(row["same_tokens"] for row in rows), "gates": gates, "results": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to the first token of a real vLLM engine, with disk tiers and without.")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--rounds", type=int, help="else 3")
    parser.add_argument("--dir", type=Path, help="where weights and stores go; else the system's place for temporary ones")
    parser.add_argument(
        "--vllm", metavar="PYTHON", default=os.environ.get("KVPAGER_VLLM_PYTHON", ""),
        help="of an environment with vLLM 0.28 or later, or KVPAGER_VLLM_PYTHON",
    )  # fmt: skip
    options = parser.parse_args()
    document: Row = {
        "question": "time to the first token of vLLM with a disk tier, over that without", "machine": this_machine(),
        "versions": versions_of(["numpy", "torch", "transformers", "xxhash"]), "date": now(), "evidence": "measured",
        "clock": "vLLM's, from arrival to first token",
    }  # fmt: skip
    if options.vllm:
        with tempfile.TemporaryDirectory(prefix="kvpager-vllm-", dir=options.dir) as folder:
            document |= measured(options.vllm, Path(folder), options.rounds or (1 if options.quick else 3))
    else:
        document["missing"] = "no Python was named for vLLM"
        print("vLLM is missing: no Python was named for it")
    print(json.dumps(document))
    sys.exit(not document.get("same_tokens", True))


if __name__ == "__main__":
    main()
