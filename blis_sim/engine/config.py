"""The configuration of one engine: limits it schedules within, requests never to be served, and shares of pipeline
stages.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from blis_sim.engine.engine_defaults import BLIS_LIMITS, engine_defaults
from blis_sim.engine.errors import EngineError
from blis_sim.engine.memory.kv_groups import CHUNKED, FULL, KVCacheGroupSpec, blocks_after, capacity_tokens, most_blocks
from blis_sim.engine.units import Micros
from blis_sim.engine.urgency import (
    DEFAULT_AGE_SCORES,
    DEFAULT_SLO_PRIORITIES,
    DEFAULT_URGENCY,
    AgeScores,
    SloPriorities,
    UrgencySettings,
)

if TYPE_CHECKING:
    from blis_sim.engine.latency.request_timing import RequestTiming
    from blis_sim.engine.lora import LoraSettings
    from blis_sim.engine.offloading import CpuTierConfig, OffloadChain, OffloadConfig
    from blis_sim.engine.request import EncoderLimits
    from blis_sim.engine.speculation import Speculation

# Pipeline stages: which share of a step each computes, and when steps that follow each other enter and leave them.


@dataclass(frozen=True, slots=True)
class PipelineStages:
    """The stages of an instance, in order.

    `shares` are the fractions of a step's time that each stage takes. Handing the activations of a step to the next
    stage takes `transfer_start_us` and `transfer_token_us` for each token of the step.
    """

    shares: tuple[float, ...]
    transfer_start_us: float = 0.0
    transfer_token_us: float = 0.0

    def __post_init__(self) -> None:
        if len(self.shares) < 2:
            raise EngineError(f"a pipeline must have at least 2 stages, got {len(self.shares)}")

    def transfer_us(self, num_tokens: int) -> Micros:
        """Return the time from the end of a step in one stage until the next stage can begin with it."""
        return round(self.transfer_start_us + self.transfer_token_us * num_tokens)

    def stage_times(self, duration_us: Micros) -> list[Micros]:
        """Return the time that a step of `duration_us` takes in each stage; together they are the duration."""
        ends: list[Micros] = []
        share = 0.0
        for each in self.shares[:-1]:
            share += each
            ends.append(int(duration_us * share))
        ends.append(duration_us)
        return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Pipeline:
    """Stages as queues: every stage computes one step after the other, in the order in which steps were composed.

    A step also waits for the tokens that were sampled as many compositions before as there are stages. vLLM's workers
    take these in at each composition. Facts: vllm/v1/worker/gpu/pp_utils.py, `PPHandler`.
    """

    __slots__ = ("_free_at", "_sampled_at", "_stages", "passages")

    def __init__(self, stages: PipelineStages) -> None:
        self._stages = stages
        self._free_at: list[Micros] = [0] * len(stages.shares)
        self._sampled_at: deque[Micros] = deque([0] * len(stages.shares))
        """Instants at which the tokens of the latest compositions are sampled; 0 where none are."""
        self.passages: list[tuple[Micros, Micros]] = []
        """Instants at which the step that entered last enters and leaves each stage."""

    def composed(self) -> None:
        """Note that a step, perhaps an empty one, is composed: the first stage waits for the tokens that it needs."""
        self._free_at[0] = max(self._free_at[0], self._sampled_at.popleft())
        self._sampled_at.append(0)

    def start(self, at: Micros) -> Micros:
        """Return when the first stage begins with a step composed at `at`."""
        return max(at, self._free_at[0])

    def enter(self, started_at: Micros, duration_us: Micros, num_tokens: int, samples: bool) -> tuple[Micros, Micros]:
        """Let the step composed last enter the first stage at `started_at`.

        Returns when it leaves that stage, and when it leaves the last one.
        """
        transfer_us = self._stages.transfer_us(num_tokens)
        free_at, at = self._free_at, started_at
        self.passages = []
        for stage, stage_us in enumerate(self._stages.stage_times(duration_us)):
            entered_at = max(at, free_at[stage])
            at = free_at[stage] = entered_at + stage_us
            self.passages.append((entered_at, at))
            at += transfer_us
        if samples:
            self._sampled_at[-1] = free_at[-1]
        return free_at[0], free_at[-1]


# The limits one engine instance schedules within, and requests that could never be served within them.


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """KV capacity and batch limits, in vLLM's words.

    `long_prefill_token_threshold` 0 means prefills are only split by the token budget; `max_model_len` 0 means
    no limit. Raises EngineError for a value out of bounds, or for a `max_model_len` the KV cache cannot hold.
    """

    total_kv_blocks: int
    block_size_tokens: int = 16
    max_num_seqs: int = BLIS_LIMITS.max_num_seqs
    max_num_batched_tokens: int = BLIS_LIMITS.max_num_batched_tokens
    long_prefill_token_threshold: int = 0
    max_model_len: int = 0
    max_num_scheduled_tokens: int = 0
    """Tokens that a step may compute where these are fewer than it has room for; 0 for no such limit."""
    long_prefill_token_threshold_adaptive: bool = False
    """Split prompts by an equal share of the budget for each request where that is more than the threshold."""
    scheduler: str = "fcfs"
    """Order of the wait queue, a key of `blis_sim.engine.scheduler.policies.ORDERS`."""
    priority_policy: str = "slo-class"
    """Urgency of a request, a key of `blis_sim.engine.scheduler.policies.PRIORITIES`."""
    slo_priorities: SloPriorities = DEFAULT_SLO_PRIORITIES
    """The importance of each SLO class."""
    age_scores: AgeScores = DEFAULT_AGE_SCORES
    """Bases and weight of the scores of `slo-based` and `inverted-slo`."""
    preemption_policy: str = "fcfs"
    """Choice of the request that is preempted, a key of `blis_sim.engine.scheduler.policies.VICTIMS`."""
    urgency: UrgencySettings = DEFAULT_URGENCY
    """Deadlines, and preemption by priority."""
    timer_us: Micros = 0
    """Time between two instants at which a sleep can end, for the adaptive engine; 0 for any instant."""
    engine: str = "vllm"
    """Engine whose rules compose the steps, a key of `blis_sim.engine.scheduler.registry.ENGINES`."""
    cpu_tier: "CpuTierConfig | None" = None
    """CPU memory behind the KV cache, for BLIS's scheduling only."""
    offload_chain: "OffloadChain | None" = None
    """CPU memory and devices behind the KV cache, for BLIS's scheduling only. The settings below are for vLLM's
    scheduling only."""
    offload: "OffloadConfig | None" = None
    """CPU memory to which KV blocks are copied, and from which prompts are loaded."""
    async_scheduling: bool = True
    """Compose a step while the one before it executes."""
    front_end_us: Micros = 0
    """Time of the API server for each request before it is tokenized, when it does nothing else."""
    pipeline: "PipelineStages | None" = None
    """Pipeline stages; None is a single one."""
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    reserve_full_prompt: bool = True
    """Admit a request only when all of its prompt fits (vLLM's scheduler_reserve_full_isl)."""
    watermark_fraction: float = 0.0
    """Share of the KV cache that an admission must leave free while others run."""
    keeps_all_windows: bool = False
    """Keep every block of a sliding window in the prefix cache, as releases did before they kept ends of prompts."""
    prefill_schedule_interval: int = 1
    """Executed steps between two that may carry prefill while others decode."""
    speculation: "Speculation | None" = None
    lora: "LoraSettings | None" = None
    """Slots for adapters; None serves requests with adapters as if they had none."""
    timing: "RequestTiming | None" = None
    """Times set request by request, each in a slot of its own; None computes them step by step."""
    kv_groups: tuple[KVCacheGroupSpec, ...] = ()
    """Groups of layers with a block table each; without any, one group keeps every token of a request.

    A prompt's content then has an identity for every `block_size_tokens` tokens, which divide the blocks of all groups.
    """
    context_kind: str = FULL
    """vLLM's name of the specification of the one group that `kv_groups` leaves out."""
    encoder: "EncoderLimits | None" = None
    """Limits of encoding media; None encodes and keeps as many of their tokens as a step may compute."""
    reports_kv_changes: bool = False
    """Report changes of the content of the prefix cache, at the cost of work for every block."""

    def __post_init__(self) -> None:
        at_least_1 = (
            "total_kv_blocks",
            "block_size_tokens",
            "max_num_seqs",
            "max_num_batched_tokens",
            "prefill_schedule_interval",
        )
        for name in at_least_1:
            _at_least(name, getattr(self, name), 1)
        for name in ("long_prefill_token_threshold", "max_model_len", "max_num_scheduled_tokens", "front_end_us"):
            _at_least(name, getattr(self, name), 0)
        self._check_engine()
        if not self.kv_capacity_tokens:
            raise EngineError(f"total_kv_blocks must be at least 2 with engine {self.engine}, which keeps one, got 1")
        if self.max_model_len > self.kv_capacity_tokens:
            raise EngineError(
                f"max_model_len must fit in the KV cache of {self.kv_capacity_tokens} tokens, got {self.max_model_len}"
            )
        if not 0 <= self.watermark_fraction < 1:
            raise EngineError(f"watermark_fraction must be at least 0 and below 1, got {self.watermark_fraction}")
        if self.speculation is not None:
            if self.offload is not None:  # vLLM's connectors find blocks by their own tokens alone
                object.__setattr__(self, "speculation", replace(self.speculation, hashes_next_token=False))
            self._check_speculation(self.speculation)
        if self.cpu_tier is not None:
            self._check_cpu_tier(self.cpu_tier)
        if self.offload is not None:
            self._check_offload()

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens the whole KV cache holds. vLLM keeps one block for itself, as do other engines by default."""
        if self.kv_groups:
            return capacity_tokens(self.kv_groups, self.total_kv_blocks, self.max_in_flight_tokens)
        usable = self.total_kv_blocks - engine_defaults(self.engine).keeps_block
        return usable * self.block_size_tokens

    @property
    def max_in_flight_tokens(self) -> int:
        """Most tokens scheduled in steps whose outputs have not been processed."""
        return self.max_num_batched_tokens * self.max_concurrent_batches

    @property
    def cache_groups(self) -> tuple[KVCacheGroupSpec, ...]:
        """Return all groups of layers: `kv_groups`, or the one group that `kv_groups` leaves out."""
        return self.kv_groups or (KVCacheGroupSpec(self.context_kind, self.block_size_tokens),)

    @property
    def limit_tokens(self) -> int:
        """Return the most tokens one request can ever have: max_model_len, or without it all that fits in the KV
        cache."""
        return self.max_model_len or self.kv_capacity_tokens

    @property
    def token_budget(self) -> int:
        """Tokens that a step may compute."""
        return min(self.max_num_scheduled_tokens or self.max_num_batched_tokens, self.max_num_batched_tokens)

    @property
    def num_stages(self) -> int:
        """Pipeline stages."""
        return 1 if self.pipeline is None else len(self.pipeline.shares)

    @property
    def max_concurrent_batches(self) -> int:
        """Most steps in flight: one in each pipeline stage, and with asynchronous scheduling one composed ahead."""
        return self.num_stages + self.async_scheduling

    @property
    def uses_deadlines(self) -> bool:
        """Whether scheduling depends on when requests should have ended."""
        gated = self.speculation is not None and self.speculation.gates is not None
        return (
            self.priority_policy == "slo-urgency"
            or self.preemption_policy == "gap"
            or self.scheduler in ("priority-deadline", "priority-slo-target")
            or gated
        )

    @property
    def kv_size_tokens(self) -> int:
        """Tokens of all longest requests that fit into the blocks: the size that vLLM reports of its KV cache."""
        if not self.kv_groups:
            return self.total_kv_blocks * self.block_size_tokens
        longest = self.limit_tokens
        held = most_blocks(self.kv_groups, longest, self.max_in_flight_tokens)
        return int(self.total_kv_blocks / held * longest)

    def num_prompt_blocks(self, num_tokens: int) -> int:
        """KV blocks that remain of a prompt of `num_tokens` tokens once the prompt is computed."""
        if self.kv_groups:
            return blocks_after(self.kv_groups, num_tokens)
        return -(-num_tokens // self.block_size_tokens)

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens after a full KV block that its identity must depend on, too."""
        return self.speculation.num_hash_lookahead_tokens if self.speculation else 0

    def num_identified_blocks(self, num_tokens: int) -> int:
        """Full KV blocks whose identity follows from a request's first `num_tokens` tokens."""
        return max(0, num_tokens - self.num_hash_lookahead_tokens) // self.block_size_tokens

    def _check_engine(self) -> None:
        if self.kv_groups and not engine_defaults(self.engine).has_kv_groups:
            raise EngineError(f"engine {self.engine} needs a model whose layers all keep the whole context")
        if self.pipeline is not None and self.engine == "blis":
            raise EngineError("pipeline stages need engine vllm, got blis")

    def _check_speculation(self, speculation: "Speculation") -> None:
        if self.engine == "blis":
            raise EngineError(f"speculation needs engine vllm, got {self.engine}")
        lookahead = speculation.num_lookahead_tokens
        if self.max_num_batched_tokens <= lookahead:
            raise EngineError(
                f"max_num_batched_tokens must be above the {lookahead} tokens that {speculation.method} drafts ahead, "
                f"got {self.max_num_batched_tokens}"
            )
        has_chunks = any(group.kind == CHUNKED for group in self.kv_groups)
        if has_chunks and self.enable_prefix_caching and speculation.drops_last_hit_block:
            raise EngineError(
                f"drafts by {speculation.method} need layers that keep the whole context: no prefix of chunks of local "
                "attention is found without its last block"
            )

    def _check_offload(self) -> None:
        """Refuse what vLLM refuses of CPU memory to which KV blocks are copied, and engines without it."""
        if self.engine != "vllm":
            raise EngineError(f"KV blocks are offloaded with engine vllm only, got {self.engine}")
        if self.timing is not None:
            raise EngineError("KV blocks are offloaded with computed step times only, got times set request by request")
        if not self.enable_prefix_caching and len({group.block_tokens for group in self.kv_groups}) > 1:
            raise EngineError(
                "KV blocks of several sizes are offloaded only with enable_prefix_caching, which aligns them"
            )

    def _check_cpu_tier(self, tier: "CpuTierConfig") -> None:
        if self.engine != "blis":
            raise EngineError(f"a CPU tier needs engine blis, got {self.engine}")
        tier.transfer_us(self.block_size_tokens)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise EngineError(f"{name} must be at least {least}, got {value}")


def refusal_reason(config: EngineConfig, input_tokens: int, max_output_tokens: int) -> str | None:
    """Return why a request can never be served; None if it can.

    Only declared figures count, never the true output length (INV-9). Order and rules are BLIS's (EnqueueRequest).
    """
    if max_output_tokens < 0:
        return f"the output budget is negative ({max_output_tokens})"
    if config.engine != "blis":
        return _vllm_refusal_reason(config, input_tokens, max_output_tokens)
    limit = config.max_model_len
    if limit and input_tokens >= limit:
        return f"the prompt has {input_tokens} tokens, max_model_len is {limit}"
    if limit and max_output_tokens and input_tokens + max_output_tokens > limit:
        return f"prompt and output budget are {input_tokens} + {max_output_tokens} tokens, max_model_len is {limit}"
    needed = -(-input_tokens // config.block_size_tokens)
    if needed > config.total_kv_blocks:
        return f"the prompt needs {needed} KV blocks, the cache has {config.total_kv_blocks}"
    return None


def max_always_accepted_tokens(config: EngineConfig) -> int:
    """Return the most tokens n with which a prompt of 1 to n tokens and a budget of up to n tokens is never refused."""
    if config.engine != "blis":
        return (config.max_model_len or config.limit_tokens) - 1
    num_tokens = config.total_kv_blocks * config.block_size_tokens
    return min(num_tokens, config.max_model_len // 2) if config.max_model_len else num_tokens


def _vllm_refusal_reason(config: EngineConfig, input_tokens: int, max_output_tokens: int) -> str | None:
    """Return vLLM's reason to refuse a prompt or a budget, each too long alone; vLLM cuts a budget too long beside its
    prompt."""
    limit, place = config.limit_tokens, "max_model_len" if config.max_model_len else "the KV cache"
    if input_tokens == 0:
        return "the prompt is empty"
    if input_tokens >= limit:
        return f"the prompt has {input_tokens} tokens, at most {limit - 1} fit into {place}"
    if max_output_tokens > limit:
        return f"the output budget is {max_output_tokens} tokens, at most {limit} fit into {place}"
    return None
