"""One process that serves prompts with vLLM on the CPU, for `test_vllm.py`: JSON on stdin, a line on stdout for each prompt."""

import json
import os
import signal
import sys

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is in this process, so that a kill is a kill
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",  # vLLM 0.28 starts its chain of hashes at a random number without it
}


def transfer(tier):
    """What stands in --kv-transfer-config; None: no offloading."""
    if tier is None:
        return None
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="KVPagerConnector",
        kv_connector_module_path="kvpager.connect.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={
            "spec_name": "CPUTieringSpec",
            "spec_module_path": "kvpager.connect.vllm_cpu",
            "cpu_bytes_to_use": tier.pop("cpu_bytes", 256 << 20),
            "eviction_policy": "LeafFirst",
            "cache_policy_module_path": "kvpager.connect.vllm_policy",
            "secondary_tiers": [{"type": "KVPagerTier", "module_path": "kvpager.connect.vllm", **tier}],
        },
    )


def counts(llm):
    """Prometheus counters and gauges of the tier, summed over their labels."""
    found = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:kvpager_"):
            name = metric.name.removeprefix("vllm:kvpager_")
            found[name] = found.get(name, 0) + metric.value
    return found


def settle(llm, sampling):
    """Step the engine until nothing is under way, and a few steps more for the counts."""
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    more = 4
    while connector is not None and more:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
        more -= not connector.connector_scheduler.manager.has_pending_work()


def main():
    asked = json.load(sys.stdin)
    from vllm import LLM, SamplingParams

    llm = LLM(
        asked["model"], enforce_eager=True, max_model_len=2048, dtype="bfloat16", seed=0, max_num_seqs=4,
        kv_transfer_config=transfer(asked.get("tier")), disable_log_stats=False,
    )  # fmt: skip
    sampling, one = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True), SamplingParams(max_tokens=1)
    for step in asked["steps"]:
        if step == "reset":  # the prefix cache and the tier on the host; what is on disk stays
            settle(llm, one)
            llm.reset_prefix_cache(reset_connector=True)
        elif step == "settle":
            settle(llm, one)
        elif step == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            (done,) = llm.generate([{"prompt_token_ids": asked["prompt"], **step}], sampling, use_tqdm=False)
            said = {"tokens": list(done.outputs[0].token_ids), "cached": done.num_cached_tokens}
            settle(llm, one)
            sys.stdout.write(json.dumps({**said, "counts": counts(llm)}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    main()
