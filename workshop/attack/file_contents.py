"""Small valid files of every kind that a command reads."""

import csv
import io
import json
from typing import Any

from traces import TRACE_COLUMNS

NUM_ROWS = 6


def _table(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(number: int) -> dict[str, Any]:
    given: dict[str, Any] = {
        "request_id": number,
        "client_id": f"client-{number % 2}",
        "slo_class": "standard",
        "session_id": f"s{number // 2}",
        "round_index": number % 2,
        "prefix_group": "g" if number % 3 == 0 else "",
        "prefix_length": 16 if number % 3 == 0 else 0,
        "streaming": "true",
        "input_tokens": 40 + number,
        "output_tokens": 5 + number,
        "reason_ratio": 0.25,
        "deadline_us": 900_000_000,
        "arrival_time_us": 50_000 * number,
        "send_time_us": 1_000_000 + 50_000 * number,
        "first_chunk_time_us": 1_030_000 + 50_000 * number,
        "last_chunk_time_us": 1_100_000 + 50_000 * number,
        "num_chunks": 5 + number,
        "status": "ok",
        "finish_reason": "length",
    }
    return {column.name: given.get(column.name, 0 if column.kind in (int, float) else "") for column in TRACE_COLUMNS}


TRACE_ROWS = _table([_row(number) for number in range(NUM_ROWS)])
TRACE_HEADER = """\
trace_version: 3
time_unit: us
created_at: "2026-06-23T03:53:59Z"
mode: real
warm_up_requests: 1
workload_seed: 42
workload_spec: spec.yaml
session_context_growth: accumulate
server:
    type: vllm
    model: qwen/qwen3-14b
    tensor_parallel: 1
    max_num_seqs: 256
    block_size: 16
    gpu_memory_utilization: 0.9
    max_model_len: 40960
network:
    measured_rtt_ms: 0.4
goodput_slo_targets:
    standard: {ttft_ms: 100, itl_ms: 20, e2e_ms: 5000}
kv_offload:
    cpu_bytes_to_use: 1000000
    block_size: 16
    secondary_tiers:
        - {type: fs, root_dir: kv, read_bandwidth: 1.5}
observed_kv_metrics:
    source: metrics
    hit_rate: 0.25
"""
TRACE = {"t.yaml": TRACE_HEADER, "t.csv": TRACE_ROWS}
TOKEN_TIMES = _table(
    [
        {"request_id": number, "chunk_index": place, "timestamp_us": 1_030_000 + 50_000 * number + 10_000 * place}
        for number in range(NUM_ROWS)
        for place in range(4)
    ]
)
RESULTS = json.dumps(
    [
        {
            "request_id": number,
            "ttft_us": 31_000.5,
            "e2e_us": 99_000,
            "input_tokens": 40 + number,
            "output_tokens": 5 + number,
            "slo_class": "standard",
            "itl_mean_us": 12_000,
            "sent_at_us": 50_000 * number,
        }
        for number in range(NUM_ROWS)
    ],
    indent=1,
)
METRICS = json.dumps(
    {"cache_hit_rate": 0.2, "ttft_mean_ms": 30.0, "tokens_per_sec": 900.0, "completed_requests": 6}
    | {"total_output_tokens": 600, "vllm_estimated_duration_s": 2.5}
)
REFERENCE = json.dumps({"model": "m", "adapter_aware": {"ttft": 31.0, "output_throughput": 900.0}})
SPEC = """\
version: "2"
seed: 7
category: language
aggregate_rate: 20
num_requests: 8
horizon: 5000000
clients:
  - id: chat
    tenant_id: t1
    slo_class: standard
    rate_fraction: 0.5
    arrival: {process: gamma, cv: 2}
    input_distribution: {type: gaussian, params: {mean: 30, std_dev: 5, min: 10, max: 60}}
    output_distribution: {type: lognormal, params: {mu: 2, sigma: 0.5, min: 1, max: 20}}
    prefix_group: g
    prefix_length: 20
    streaming: true
    network: {rtt_ms: 1.5, bandwidth_mbps: 100}
    timeout: 9000000
    slo_target_us: 100000
  - id: talk
    slo_class: batch
    rate_fraction: 0.25
    arrival: {process: weibull, cv: 1.5}
    input_distribution: {type: exponential, params: {mean: 20}}
    output_distribution: {type: empirical, params: {"5": 0.5, "10": 0.5}}
    reasoning:
      reason_ratio_distribution: {type: constant, params: {value: 40}}
      multi_turn: {max_rounds: 2, think_time_us: 1000, context_growth: accumulate}
    closed_loop: true
cohorts:
  - id: crowd
    population: 3
    slo_class: sheddable
    rate_fraction: 0.25
    arrival: {process: poisson}
    input_distribution: {type: pareto_lognormal, params: {alpha: 2, xm: 5, mu: 2, sigma: 0.5, mix_weight: 0.3}}
    output_distribution: {type: constant, params: {value: 6}}
    prefix_group: c
    prefix_sharing: per_member
    spike: {start_time_us: 0, duration_us: 2000000}
goodput_slo_targets:
  standard: {ttft_ms: 100, itl_ms: 20, e2e_ms: 5000}
"""
WINDOWS = """\
version: "2"
clients:
  - id: pictures
    rate_fraction: 1
    arrival: {process: gamma, shape: 1.5, scale: 50000}
    input_distribution: {type: constant, params: {value: 10}}
    output_distribution: {type: constant, params: {value: 4}}
    multimodal:
      text_distribution: {type: constant, params: {value: 10}}
      image_distribution: {type: constant, params: {value: 30}}
      image_count_distribution: {type: constant, params: {value: 2}}
    lifecycle:
      windows:
        - {start_us: 0, end_us: 400000, trace_rate: 10}
        - {start_us: 400000, end_us: 800000, trace_rate: 5, arrival: {process: constant}}
"""
USERS = """\
version: "2"
num_requests: 6
clients:
  - id: users
    concurrency: 2
    think_time_us: 1000
    input_distribution: {type: constant, params: {value: 10}}
    output_distribution: {type: constant, params: {value: 4}}
"""
SHARED = """\
  stages: [{rate: 5, duration: 1}, {rate: 8, duration: 0.5}]
  shared_prefix:
    num_unique_system_prompts: 2
    num_users_per_system_prompt: 2
    system_prompt_len: 20
    question_len: 10
    output_len: 4
    enable_multi_turn_chat: false
"""
STAGES = f'version: "2"\ninference_perf:\n{SHARED}'
VIDUR_SPEC = """\
num_requests: 6
seed: 3
vidur:
  interval: {type: gamma, qps: 5, cv: 2}
  length: {type: zipf, min_tokens: 10, max_tokens: 50, prefill_to_decode_ratio: 4, theta: 0.6}
"""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 2048},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "quantization_config": {"quant_method": "fp8", "bits": 8},
}
HARDWARE = {
    "T1": {
        "TFlopsPeak": 900.0,
        "TFlopsFP8": 1800,
        "BwPeakTBs": 3.3,
        "mfuPrefill": 0.5,
        "mfuDecode": 0.3,
        "MemoryGiB": 80,
        "aliases": ["t-one"],
    }
}
POLICIES = """\
admission:
  policy: token-bucket
  token_bucket_capacity: 100000
  token_bucket_refill_rate: 100000
  slo_priorities: {standard: 3, batch: -1}
routing:
  policy: weighted
  scorers:
    - {name: queue-depth, weight: 2.0}
    - {name: kv-utilization, weight: 1}
priority: {policy: slo-class}
scheduler: priority-fcfs
tenant_budgets: {t1: 0.5}
instances:
  - {count: 1, max_num_seqs: 64, gpu_memory_utilization: 0.9}
  - {count: 1, total_kv_blocks: 5000}
"""
SCALING = """\
node_pools:
  - {name: fast, gpu_type: H100, gpus_per_node: 2, initial_nodes: 2, cost_per_hour: 32}
  - {name: cheap, gpu_type: A100-SXM, gpus_per_node: 1, initial_nodes: 1, gpu_memory_gib: 80}
instance_lifecycle:
  loading_delay: {mean: 0.2, stddev: 0.1}
  warm_start_initial_instances: true
autoscaler:
  interval_us: 100000
  hpa_scrape_delay: {mean: 0.1}
  scale_up_stabilization_window_us: 0
  scale_down_stabilization_window_us: 1000000
  kv_cache_threshold: 0.8
  scale_up_threshold: 0.8
  scale_down_boundary: 0.4
  avg_input_tokens: 64
"""
SATURATION = """\
threshold: {threshold_ms: 4000}
backlog_drift: {window_size_sec: 2, min_windows: 3}
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:4{number}.6805900,{300 + number},{40 + number}\n" for number in range(6)
)
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + "".join(
    f"{number * 5},GPT-4,{400 + number},{18 + number},{418 + 2 * number},API log\n" for number in range(6)
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(
    f"{number / 2},{100 + number},{10 + number}\n" for number in range(6)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 100 * number, "input_length": 1500, "output_length": 50, "hash_ids": [1, 2, number]})
    + "\n"
    for number in range(6)
)
SHAREGPT = json.dumps(
    [
        {
            "id": f"c{number}",
            "conversations": [
                {"from": "human", "value": "What is the tallest mountain of the world, and who climbed it first?"},
                {"from": "gpt", "value": "Mount Everest; Edmund Hillary and Tenzing Norgay reached its top in 1953."},
            ],
        }
        for number in range(4)
    ],
    indent=1,
)
VLLM_BENCH = json.dumps(
    {
        "date": "20260131-235959",
        "duration": 12.5,
        "model_id": "m",
        "start_times": [100.0, 100.5, 101.0],
        "input_lens": [10, 20, 30],
        "output_lens": [3, 3, 3],
        "ttfts": [0.03, 0.04, 0.05],
        "itls": [[0.01, 0.01], [0.01, 0.02], [0.01, 0.01]],
        "errors": ["", "", ""],
    },
    indent=1,
)
GUIDELLM = json.dumps(
    {
        "benchmarks": [
            {
                "requests": {
                    "successful": [
                        {
                            "request_id": f"r{number}",
                            "prompt_tokens": 10,
                            "output_tokens": 5,
                            "info": {
                                "timings": {
                                    "request_start": 1_700_000_000.0 + number,
                                    "first_token_iteration": 1_700_000_000.1 + number,
                                    "last_token_iteration": 1_700_000_000.5 + number,
                                    "token_iterations": 5,
                                }
                            },
                        }
                        for number in range(3)
                    ],
                    "incomplete": [],
                    "errored": [],
                }
            }
        ]
    },
    indent=1,
)
INFERENCE_PERF = """\
load:
  type: constant
  stages: [{rate: 5, duration: 3}]
data:
  type: shared_prefix
  shared_prefix: {num_unique_system_prompts: 2, num_users_per_system_prompt: 3, system_prompt_len: 10,
                  question_len: 4, output_len: 5}
"""
SERVEGEN_TRACE = "".join(f"{start},1.5,1.2,Gamma,0.8,0.4\n" for start in range(0, 54_000, 600))
SERVEGEN_LENGTHS = json.dumps({"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{5: 1}"}})
PROMPTS = "".join(
    json.dumps({"prompt": f"Tell me about {number} mountains.", "output_tokens": 4}) + "\n" for number in range(4)
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "model_max_length": 4096,
    "chat_template": "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}
GENERATION_CONFIG = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "max_new_tokens": 64, "eos_token_id": [257]}
SERVE_FLAGS = """\
max-num-seqs: 64
gpu-memory-utilization: 0.9
enable-prefix-caching: true
served-model-name: [m, n]
"""


def tokenizer() -> dict[str, Any]:
    """A tokenizer of bytes, with two special tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = [number for number in range(256) if number not in printable]
    letters = [chr(number) for number in printable] + [chr(256 + place) for place in range(len(shifted))]
    special = [
        {"id": 256 + place, "content": content, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for place, content in enumerate(("<|im_start|>", "<|im_end|>"))
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {letter: place for place, letter in enumerate(letters)}, "merges": []},
    }
