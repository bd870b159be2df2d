"""Thirty kinds of servers and twenty pairs of them, each with the load that shows what is particular about it."""

import json
from dataclasses import dataclass

QWEN = "qwen/qwen3-14b"


@dataclass(frozen=True, slots=True)
class Kind:
    """A server, and the load that it gets.

    `serve` are the words of `blis serve`, with the model first. `load` names an entry of `LOADS`, which `blis observe`
    sends, or one of `workshop.served_kinds.clients`, which sends through the proxy.
    """

    serve: tuple[str, ...]
    load: str = "plain"
    pace: float = 1.0
    """Share of the speed and of the rate: a server with short times is slowed further, for a delay of the machine is
    a larger share of them."""


def _kind(words: str, load: str = "plain", model: str = QWEN, pace: float = 1.0) -> Kind:
    return Kind((model, *words.split()), load, pace)


def _drafts(method: str, model: str = "", tokens: int = 3) -> str:
    named = {"model": model} if model else {}
    return "--speculative-config " + json.dumps(
        {"method": method, **named, "num_speculative_tokens": tokens}, separators=(",", ":")
    )


_ADAPTERS = "--enable-lora --lora-load-ms 60 --lora-swap-ms 15 --lora-modules ad1=adapters/1 ad2=adapters/2"
_SMALL = "--num-gpu-blocks-override 300 --max-model-len 4096"

KINDS: dict[str, Kind] = {
    "one engine": _kind(""),
    "adapters": _kind(f"{_ADAPTERS} --max-loras 2", "adapters"),
    "adapters that leave": _kind(f"{_ADAPTERS} --max-loras 1 --max-cpu-loras 2", "adapters"),
    "offloading": _kind(f"--kv-offloading-size 4 {_SMALL}", "rounds"),
    "a connector's memory": _kind(
        f'--kv-transfer-config {{"kv_connector":"SimpleCPUOffloadConnector","kv_role":"kv_both"}} {_SMALL}', "rounds"
    ),
    "data-parallel ranks": _kind("--dp 2"),
    "expert parallelism": _kind("--dp 2 --enable-expert-parallel", model="qwen/qwen3-30b-a3b"),
    "pipeline stages": _kind("--pp 2"),
    "tensor parallelism": _kind("--tp 4"),
    "round-robin": _kind("--num-instances 3"),
    "least-loaded": _kind("--num-instances 3 --routing-policy least-loaded"),
    "weighted": _kind("--num-instances 3 --routing-policy weighted", "shared"),
    "pools": _kind("--prefill-instances 1 --decode-instances 2"),
    "n-grams": _kind(_drafts("ngram")),
    "eagle": _kind(_drafts("eagle", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"), model="meta-llama/llama-3.1-8b-instruct"),
    "multi-token prediction": _kind(f"{_drafts('mtp', tokens=1)} --hardware H200", model="zai-org/glm-4.5-air"),
    "a draft model": _kind(_drafts("draft_model", "qwen/qwen3-0.6b")),
    "structured outputs": _kind("", "structured"),
    "embeddings beside chat": _kind("--task generate,embed", "embeddings"),
    "scores of embeddings": _kind("", "scores", "qwen/qwen3-embedding-0.6b", pace=0.1),
    "reasoning": _kind("--reasoning-parser qwen3", "reasoning"),
    "several choices": _kind("", "choices"),
    "several choices in a small cache": _kind(f"{_SMALL} --max-num-seqs 6", "choices"),
    "images": _kind("--tokens-per-medium 300", "images", "qwen/qwen2.5-vl-7b-instruct"),
    "clients of a proxy that hang up": _kind("", "hanging up"),
    "clients that leave": _kind("", "leaving"),
    "priorities": _kind("--scheduling-policy priority --max-num-seqs 3", "classes"),
    "deadlines": _kind(
        "--scheduler priority-deadline --slo-deadlines critical=800,batch=9000 --max-num-seqs 3", "classes"
    ),
    "several API servers": _kind("--api-server-count 2"),
    "faults": _kind("--fault-rates overloaded=0.2 --fault-seed 3"),
    "sliding windows": _kind("", "shared", "openai/gpt-oss-20b"),
    "hybrid layers": _kind("--hardware H200 --tp 2", "shared", "qwen/qwen3-next-80b-a3b-instruct"),
    "no prefix caching": _kind("--no-enable-prefix-caching", "shared"),
    "whole prompts": _kind("--no-enable-chunked-prefill --max-model-len 4096 --max-num-batched-tokens 4096"),
    "no asynchronous scheduling": _kind("--no-async-scheduling"),
    "KV cache in FP8": _kind("--kv-cache-dtype fp8"),
    "large blocks": _kind("--block-size 64", "shared"),
    "preemptions": _kind("--num-gpu-blocks-override 150 --max-model-len 2048", "bursts"),
    "reserved lengths": _kind(f"--scheduler-reserve-full-isl {_SMALL}", "bursts"),
    "adaptive scheduling": _kind("--engine adaptive", "bursts", pace=0.2),
    "admission": _kind(
        "--admission-policy token-bucket --token-bucket-capacity 3000 --token-bucket-refill-rate 3000", "plain"
    ),
    "a gateway": _kind(
        "--num-instances 2 --flow-control --saturation-detector concurrency --max-concurrency 2", "classes"
    ),
    "a stand-in model": _kind("--served-model-name house-model", model="our/own-8b"),
    "sleeping": _kind("", "sleep"),
    "pausing": _kind("", "pause"),
}

PAIRS: dict[str, Kind] = {
    "adapters on ranks": _kind(f"{_ADAPTERS} --max-loras 1 --dp 2", "adapters"),
    "adapters on instances": _kind(f"{_ADAPTERS} --max-loras 1 --num-instances 2", "adapters"),
    "adapters with n-grams": _kind(f"{_ADAPTERS} --max-loras 2 {_drafts('ngram')}", "adapters"),
    "adapters in stages": _kind(f"{_ADAPTERS} --max-loras 2 --pp 2", "adapters"),
    "adapters without prefix caching": _kind(f"{_ADAPTERS} --max-loras 2 --no-enable-prefix-caching", "adapters"),
    "adapters with offloading": _kind(f"{_ADAPTERS} --max-loras 2 --kv-offloading-size 4 {_SMALL}", "adapters"),
    "offloading on instances": _kind(f"--kv-offloading-size 4 {_SMALL} --num-instances 2", "rounds"),
    "offloading on ranks": _kind(f"--kv-offloading-size 4 {_SMALL} --dp 2", "rounds"),
    "offloading with n-grams": _kind(f"--kv-offloading-size 4 {_SMALL} {_drafts('ngram')}", "rounds"),
    "embeddings on ranks": _kind("--dp 2 --task generate,embed", "embeddings"),
    "n-grams in stages": _kind(f"{_drafts('ngram')} --pp 2"),
    "n-grams on ranks": _kind(f"{_drafts('ngram')} --dp 2"),
    "n-grams in pools": _kind(f"{_drafts('ngram')} --prefill-instances 1 --decode-instances 1"),
    "n-grams without asynchronous scheduling": _kind(f"{_drafts('ngram')} --no-async-scheduling"),
    "pools and tensor parallelism": _kind("--tp 2 --prefill-instances 1 --decode-instances 1"),
    "pools and priorities": _kind(
        "--prefill-instances 1 --decode-instances 1 --scheduling-policy priority --max-num-seqs 3", "classes"
    ),
    "stages on instances": _kind("--pp 2 --num-instances 2 --routing-policy least-loaded"),
    "several API servers on ranks": _kind("--dp 2 --api-server-count 2"),
    "priorities with preemptions": _kind(
        "--scheduling-policy priority --num-gpu-blocks-override 150 --max-model-len 2048", "classes"
    ),
    "FP8 in large blocks": _kind("--kv-cache-dtype fp8 --block-size 64", "shared"),
    "experts in stages": _kind("--pp 2 --tp 2", model="qwen/qwen3-30b-a3b"),
    "a weighted router of FP8 instances": _kind(
        "--num-instances 2 --routing-policy weighted --kv-cache-dtype fp8", "shared"
    ),
}
