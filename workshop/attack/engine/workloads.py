"""Random engines and what arrives at them: few KV blocks, small budgets, shared prompts, deadlines, every switch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.cpu_tier_config import CpuTierConfig
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.kv_cache.tiered_cache import OFFLOAD_POLICIES
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.lora import LoraSettings
from blis_sim.engine.request import (
    BlockIdentities,
    ExternalPrompt,
    HashedBlocks,
    PrefixGroupBlocks,
    Request,
    UniqueBlocks,
)
from blis_sim.engine.scheduler.policies import ORDERS, PRIORITIES, VICTIMS
from blis_sim.engine.speculation import DRAFTERS, Speculation
from blis_sim.engine.units import Micros

DEPLOYMENTS: Sequence[dict[str, Any]] = (
    {"model": "qwen3-14b", "hardware": "H100", "tp": 1},
    {"model": "qwen3-14b", "hardware": "A100-80", "tp": 2, "latency_model": "roofline"},
    {"model": "qwen3-14b", "hardware": "H100", "tp": 1, "latency_model": "fitted"},
    {"model": "llama-3.1-70b-instruct", "hardware": "H100", "tp": 4},
    {"model": "llama-3.1-70b-instruct", "hardware": "H100", "tp": 16},
    {"model": "mixtral-8x7b-v0.1", "hardware": "H100", "tp": 2, "dp": 2},
    {"model": "deepseek-v2-lite", "hardware": "H100", "tp": 1},
    {"model": "llama-3.2-1b-instruct", "hardware": "L40S", "tp": 1, "latency_model": "roofline"},
    {
        "model": "llama-3.1-8b-instruct",
        "tp": 1,
        "latency_model": "blackbox",
        "alpha_coeffs": (500.0, 1.5, 40.0),
        "beta_coeffs": (700.0, 11.0, 9.0),
    },
)
"""Inputs of step times."""
GRID_US = 500
"""Most instants are multiples of it, or none would ever coincide."""
SLO_CLASSES = ("", "critical", "standard", "batch", "background", "odd")


@dataclass(frozen=True, slots=True)
class Workload:
    """The engine of each instance, the requests that arrive, and the clients that hang up."""

    config: EngineConfig
    deployment: int
    """Place in `DEPLOYMENTS`."""
    arrivals: list[tuple[Micros, Request]]
    hang_ups: list[tuple[Micros, str]]

    @property
    def latency(self) -> LatencyModel:
        return latency_of(self.deployment)


@cache
def latency_of(deployment: int) -> LatencyModel:
    """The latency model of a deployment."""
    return resolve(DeploymentOptions(**DEPLOYMENTS[deployment])).latency


def draw_workload(random: Random, scheduling: str, with_pools: bool = False) -> Workload:
    """A workload; `with_pools` is for clusters in which instances hand prompts to each other."""
    config = _config(random, scheduling, with_pools)
    spacing_us = random.choice([0, GRID_US, 8000, 60_000])
    count = random.randint(1, 16)
    arrivals = [(random.randint(0, 20) * spacing_us, _request(random, f"r{n}", config)) for n in range(count)]
    if scheduling == "vllm" and not with_pools and random.random() < 0.15:
        arrivals = [(at, _with_external_prompt(random, request)) for at, request in arrivals]
    hang_ups: list[tuple[Micros, str]] = []
    if random.random() < 0.4:
        hang_ups = [
            (random.randint(0, 400) * GRID_US, f"r{random.randint(0, count)}") for _ in range(random.randint(1, 4))
        ]
    return Workload(
        config, random.randrange(len(DEPLOYMENTS)), sorted(arrivals, key=lambda each: each[0]), sorted(hang_ups)
    )


def _config(random: Random, scheduling: str, with_pools: bool) -> EngineConfig:
    block_size = random.choice([1, 2, 4, 16, 16, 64])
    num_blocks = random.choice([4, 7, 13, 24, 40, 400])
    capacity = (num_blocks - 1) * block_size
    config = EngineConfig(
        total_kv_blocks=num_blocks,
        block_size_tokens=block_size,
        max_num_seqs=random.choice([1, 2, 3, 6, 64]),
        max_num_batched_tokens=random.choice([1, 3, 17, 40, 512, 8192]),
        long_prefill_token_threshold=random.choice([0, 0, 3, 10]),
        max_model_len=min(random.choice([0, 0, 8, 30, 10**6]), capacity),
        scheduler=random.choice(["fcfs", "fcfs", *ORDERS]),
        priority_policy=random.choice(["slo-class", *PRIORITIES]),
        preemption_policy=random.choice(list(VICTIMS)),
        engine=scheduling,
        async_scheduling=random.random() < 0.7,
    )
    if scheduling == "vllm":
        return _with_vllm_switches(random, config)
    if random.random() < 0.25 and not with_pools:
        config = replace(config, cpu_tier=_cpu_tier(random))
    return config


def _with_vllm_switches(random: Random, config: EngineConfig) -> EngineConfig:
    speculation = _speculation(random, config) if random.random() < 0.3 else None
    splits_prompts = random.random() < 0.8
    budget = config.max_num_batched_tokens
    if not splits_prompts:  # a prompt that never fits the budget would wait for ever, so vLLM refuses to start
        ahead = 0 if speculation is None else max(speculation.num_lookahead_tokens, speculation.rows_per_request)
        budget = max(budget, config.limit_tokens + ahead)
    return replace(
        config,
        max_num_batched_tokens=budget,
        speculation=speculation,
        enable_chunked_prefill=splits_prompts,
        enable_prefix_caching=random.random() < 0.8,
        reserve_full_prompt=random.random() < 0.6,
        watermark_fraction=random.choice([0.0, 0.0, 0.05, 0.4]),
        prefill_schedule_interval=random.choice([1, 1, 1, 2, 5]),
        lora=_lora(random) if random.random() < 0.2 else None,
        reports_kv_changes=random.random() < 0.15,
    )


def _speculation(random: Random, config: EngineConfig) -> Speculation | None:
    method, num_tokens = random.choice(list(DRAFTERS)), random.randint(1, 4)
    parallel = DRAFTERS[method].writes_kv and random.random() < 0.3
    found = Speculation(
        method=method,
        num_tokens=num_tokens,
        acceptance_rates=tuple(random.choice([0.0, 0.5, 0.9, 1.0]) for _ in range(num_tokens)),
        seed=random.randint(0, 5),
        draft_time_us=random.choice([0, 100, 30_000]),
        parallel_drafting=parallel,
        hashes_next_token=random.random() < 0.7,
        keeps_last_hit_block=random.random() < 0.3,
    )
    # With less a request would wait for ever, so such a deployment is refused.
    least = 1 + max(found.num_lookahead_tokens, num_tokens + found.rows_per_request)
    return found if config.max_num_batched_tokens >= least else None


def _cpu_tier(random: Random) -> CpuTierConfig:
    return CpuTierConfig(
        random.choice([1, 9, 20]),
        random.choice(list(OFFLOAD_POLICIES)),
        offload_threshold=random.choice([0.0, 0.5, 0.9]),
        base_latency_us=random.choice([0, GRID_US]),
    )


def _lora(random: Random) -> LoraSettings:
    max_loras = random.randint(1, 3)
    return LoraSettings(
        max_loras=max_loras,
        max_cpu_loras=random.choice([0, max_loras, max_loras + 2]),
        load_us=random.choice([0, 3000]),
        swap_us=random.choice([0, 700]),
    )


def _request(random: Random, request_id: str, config: EngineConfig) -> Request:
    capacity = min((config.total_kv_blocks - 1) * config.block_size_tokens, 600)
    input_tokens = random.randint(0, random.choice([3, max(1, capacity // 2), capacity + 1]))
    # With BLIS's rules a request that outgrows the whole KV cache preempts itself for ever.
    output_tokens = random.randint(0, max(0, min(60, capacity - input_tokens - 1)))
    declared = random.choice([output_tokens, output_tokens, 0, output_tokens + 5])
    return Request(
        id=request_id,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_output_tokens=declared,
        blocks=_blocks(random, request_id, config.block_size_tokens, input_tokens),
        deadline_us=random.choice([0, 0, 0, 0, 5000, 40_000, 10**6]),
        slo_class=random.choice(SLO_CLASSES),
        priority=random.choice([None, None, None, -1, 4]),
        reads_prefix_cache=random.random() < 0.85,
        adapter=random.choice(["", "a", "b", "c"]) if config.lora is not None else "",
        tenant=random.choice(["", "t", "u"]),
        slo_target_us=random.choice([0, 0, 3000]),
    )


def _with_external_prompt(random: Random, request: Request) -> Request:
    if request.input_tokens < 1:
        return request
    external = ExternalPrompt(random.randint(0, request.input_tokens), random.choice([0, GRID_US, 3000]))
    return request._replace(external=external)


def _blocks(random: Random, request_id: str, block_size: int, input_tokens: int) -> BlockIdentities:
    group, num_full = random.choice("gh"), input_tokens // block_size
    kind = random.choice(["own", "own", "prefix", "hashes"])
    if kind == "prefix":
        return PrefixGroupBlocks(request_id, group, random.randint(0, num_full))
    if kind == "hashes":
        return HashedBlocks(request_id, tuple(ord(group) * 1000 + place for place in range(num_full)))
    return UniqueBlocks(request_id)
