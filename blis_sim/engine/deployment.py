"""From the options of a deployment to an engine's configuration and latency model."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import (
    ADAPTIVE_BLOCKS,
    ADAPTIVE_ENGINES,
    AUTO,
    LOW_LATENCY_BACKEND,
    BatchLimits,
    engine_defaults,
    flag_or,
    vllm_limits,
)
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import config_path, has_model, load_gpu, stand_in_model
from blis_sim.engine.latency.catalogue_reader import default_deployment, load_checkpoint, load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.confidence import Sureness, expected
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.operator_sources import notes_on_operators
from blis_sim.engine.latency.registry import choose, watched_choice
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS, step_work
from blis_sim.engine.memory.kv_groups import (
    KV_DTYPE_BITS,
    KVCacheGroupSpec,
    group_specs,
    hash_block_tokens,
    is_single_context,
)
from blis_sim.engine.memory.planner import (
    MemoryLayout,
    MemorySettings,
    bytes_per_block,
    kv_blocks,
    planned_blocks,
    planned_with_drafter,
)
from blis_sim.engine.memory.weights import ShardingError, read_quantization, refused_quantization, stage_layers
from blis_sim.engine.request import EncoderLimits
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.options import OptionError, ineffective_flags

if TYPE_CHECKING:
    from blis_sim.engine.config import PipelineStages
    from blis_sim.engine.memory.drafters import DrafterRequest
    from blis_sim.engine.offloading import CpuTierConfig, OffloadConfig
    from blis_sim.engine.speculation import Drafter, DraftingTimes, Speculation

# Notes on flags of an engine that have no effect because of another flag.

_VLLM_FLAGS = (
    "vllm_version",
    "async_scheduling",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "scheduler_reserve_full_isl",
    "watermark",
    "prefill_schedule_interval",
    "max_num_active_seqs",
    "cpu_offload_gb",
    "performance_mode",
    "disable_chunked_mm_input",
    "long_prefill_token_threshold_adaptive",
    "kv_offloading_size",
    "kv_cache_memory_bytes",
)
_PRECISION_FLAGS = ("kv_cache_dtype", "quantization", "dtype")
_URGENCY_FLAGS = ("urgency_window", "urgency_step", "urgency_ceiling", "urgency_interval")
_AGE_FLAGS = ("priority_base", "priority_age_weight")
_GAP_FLAGS = ("min_preempt_priority_gap", "preemption_resume")
_CPU_TIER_FLAGS = ("kv_offload_policy", "kv_offload_threshold", "kv_transfer_bandwidth", "kv_transfer_base_latency")


def flags_without_effect(options: "DeploymentOptions") -> Iterator[str]:
    """Yield a note for the user on each flag without effect."""
    missing: dict[str, str] = {}
    if options.engine != "vllm":
        missing |= dict.fromkeys(_VLLM_FLAGS, "--engine vllm")
        if options.step_times not in ("kernels", AUTO):
            missing |= dict.fromkeys(_PRECISION_FLAGS, "--engine vllm or --latency-model kernels")
    if options.engine not in ("vllm", "blis"):
        missing["long_prefill_token_threshold"] = "--engine vllm or blis"
    if not options.long_prefill_token_threshold:
        missing["long_prefill_token_threshold_adaptive"] = "--long-prefill-token-threshold"
    missing |= _missing_for_priorities(options)
    if options.engine == "vllm":
        missing |= dict.fromkeys(_CPU_TIER_FLAGS, "--engine blis")
    elif options.kv_cpu_blocks <= 0:
        missing |= dict.fromkeys(_CPU_TIER_FLAGS, "--kv-cpu-blocks")
    elif options.kv_offload_policy != "threshold":
        missing["kv_offload_threshold"] = "--kv-offload-policy threshold"
    return ineffective_flags(options, missing)


def _missing_for_priorities(options: "DeploymentOptions") -> dict[str, str]:
    missing: dict[str, str] = {}
    if options.engine not in ADAPTIVE_ENGINES:
        missing["timer_resolution"] = "--engine adaptive"
        if options.engine not in ("vllm", "blis"):
            missing["preemption_policy"] = "--engine vllm, blis or adaptive"
    if "priority" not in options.scheduler and options.preemption_policy == "fcfs":
        missing["priority_policy"] = "a priority scheduler or --preemption-policy priority"
    if options.priority_policy not in ("slo-based", "inverted-slo"):
        missing |= dict.fromkeys(_AGE_FLAGS, "--priority-policy slo-based or inverted-slo")
    if options.priority_policy != "slo-urgency":
        missing |= dict.fromkeys(_URGENCY_FLAGS, "--priority-policy slo-urgency")
    if options.preemption_policy != "gap":
        missing |= dict.fromkeys(_GAP_FLAGS, "--preemption-policy gap")
    return missing


# Limits of a deployment with speculative decoding, as vLLM's configuration settles them.
#
# Facts: vllm/config/vllm.py, `_set_max_num_scheduled_tokens` and `_get_v2_model_runner_unsupported_features`.

_USUAL_CONTEXT = 1_000
"""Tokens in the KV cache of the request whose drafting time a note states."""


def speculation_of(options: DeploymentOptions, notes: list[str]) -> "Speculation | None":
    """Return the settings of speculative decoding, with a note on what is accepted; None without it."""
    speculation = options.speculation
    if speculation is None and options.engine in ADAPTIVE_ENGINES:
        from blis_sim.engine.engine_defaults import adaptive_speculation

        return adaptive_speculation(options.drafts.speculative_seed)
    if speculation is not None:
        rates = dict.fromkeys(f"{rate:.3g}" for rate in speculation.acceptance_rates)
        notes.append(
            f"{speculation.method} drafts {speculation.num_tokens} tokens, each accepted with a chance of "
            f"{', '.join(rates)} when those before it are"
            + (f" ({speculation.acceptance_source})" if speculation.acceptance_source else "")
        )
        drafter = None if options.total_kv_blocks else drafter_of(options)
        if drafter is not None and drafter.config is None and drafter.method not in ("mtp", "draft_model"):
            notes.append(
                f"the drafter {drafter.name} is neither in the catalogue nor a folder with a config.json. Its size is "
                f"assumed to be that of a usual {drafter.method} head for the model"
            )
    return speculation


def drafter_of(options: DeploymentOptions) -> "DrafterRequest | None":
    """Return the model that drafts, None for methods without one."""
    speculation = options.speculation
    if speculation is None or not _drafter(speculation).has_model:
        return None
    from blis_sim.engine.memory.drafters import DrafterRequest

    name = speculation.model
    checkpoint = None
    if name and (config_path(Path(name)) is not None or has_model(name)):
        name, checkpoint = load_checkpoint(name)
    return DrafterRequest(
        method=speculation.method,
        num_tokens=speculation.num_tokens,
        config=checkpoint.config if checkpoint else None,
        hf_quant_config=checkpoint.hf_quant_config if checkpoint else None,
        name=name,
    )


def timed_speculation(
    options: DeploymentOptions, model: "ModelSpec", gpu: "GpuSpec", tp: int, config: EngineConfig, notes: list[str]
) -> EngineConfig:
    """Return the configuration with the time that drafting takes by its method, where it is not set."""
    speculation = config.speculation
    if speculation is None or speculation.has_set_time or options.engine != "vllm":
        return config
    from blis_sim.engine.batch_shape import decodes

    try:
        times = _drafting_times(options, model, gpu, tp, speculation)
    except EngineError as error:
        notes.append(f"warning: drafting takes no time, --speculative-draft-time sets it: {error}")
        return config
    drafting_ms = times.drafting_us(decodes(1, _USUAL_CONTEXT), 1) / 1e3
    notes.append(f"drafting and comparing drafts takes {drafting_ms:.2f} ms of a step with one request")
    return replace(config, speculation=replace(speculation, times=times))


def _drafting_times(
    options: DeploymentOptions, model: "ModelSpec", gpu: "GpuSpec", tp: int, speculation: "Speculation"
) -> "DraftingTimes":
    from blis_sim.engine.latency.drafter_times import drafter_passes, host_search  # few deployments draft

    if (search := host_search(speculation)) is not None:
        return search
    from blis_sim.engine.memory.drafters import read_drafter
    from blis_sim.engine.memory.families import read_model
    from blis_sim.engine.memory.weights import Sharding, read_quantization

    request = drafter_of(options)
    if request is None or model.checkpoint is None:
        raise EngineError(f"{model.name} has no config.json to read the layers of a drafter from")
    checkpoint = model.checkpoint
    quantization = read_quantization(checkpoint.config, checkpoint.hf_quant_config, model.name, options.quantization)
    kv_dtype = quantization.kv_cache_dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    sharding = Sharding(model.name, tp, options.pp, options.dp, options.enable_expert_parallel)
    shape = read_model(checkpoint.config, model.name, options.dtype)
    drafter = read_drafter(request, shape, checkpoint.config, quantization.format_of, sharding)
    return drafter_passes(speculation, drafter, "fp8" if kv_dtype.startswith("fp8") else "bfloat16", gpu, sharding)


def is_async(options: DeploymentOptions, speculation: "Speculation | None", notes: list[str]) -> bool:
    """Whether steps are composed ahead: vLLM's older model runner does so neither for suffixes nor with stages."""
    requested = flag_or(options.async_scheduling, options.release.async_scheduling)
    if speculation is None or not requested:
        return requested
    drafter = _drafter(speculation)
    is_parallel = speculation.parallel_drafting and not drafter.has_own_pass
    if drafter.is_async and not (is_parallel and options.pp > 1):
        return True
    how = "parallel drafts and several pipeline stages" if drafter.is_async else speculation.method
    notes.append(f"steps are not composed ahead: vLLM has no asynchronous scheduling with {how}")
    return False


def scheduled_tokens(options: DeploymentOptions, speculation: "Speculation | None", notes: list[str]) -> int:
    """Return the tokens of requests in a step where these are limited apart from the room of a step; else 0."""
    requested = options.max_num_scheduled_tokens or 0
    if requested and speculation is not None and speculation.rows_per_request:
        notes.append(
            f"warning: --max-num-scheduled-tokens is ignored with {speculation.method}, whose drafts take room in a "
            "step: a step has --max-num-batched-tokens for both"
        )
        return 0
    return requested


def active_seqs(options: DeploymentOptions, max_num_seqs: int, tokens: int, speculation: "Speculation | None") -> int:
    """Return how many requests are admitted at once, by --max-num-active-seqs and by the room for drafts.

    A drafter with a pass of its own computes its rows for every request within the tokens of one step. Raises
    OptionError for more requests than run in one step.
    """
    most = options.max_num_active_seqs or max_num_seqs
    if most > max_num_seqs:
        raise OptionError(f"--max-num-active-seqs must be at most --max-num-seqs, {max_num_seqs}, got {most}")
    if speculation is not None and _drafter(speculation).has_own_pass:
        most = max(1, min(most, tokens // speculation.num_lookahead_tokens))
    return most


def check_drafts_fit(config: EngineConfig) -> None:
    """Refuse a budget in which vLLM's scheduler never admits a request whose prompt is known but for one token.

    A request of this kind is filled up to the width of one that decodes with drafts, and waits until the budget has
    room.
    """
    speculation = config.speculation
    if speculation is None:
        return
    least = 1 + speculation.num_tokens + speculation.rows_per_request
    if config.max_num_batched_tokens < least:
        raise EngineError(
            f"--max-num-batched-tokens must be at least {least} with {speculation.num_tokens} drafts of "
            f"{speculation.method}, or requests wait for ever, got {config.max_num_batched_tokens}"
        )


def _drafter(speculation: "Speculation") -> "Drafter":
    """Return the drafter of a method."""
    from blis_sim.engine.speculation import DRAFTERS  # few deployments draft

    return DRAFTERS[speculation.method]


# Flags of a deployment about memory and links: the planner's settings, stages, weights and KV blocks in CPU memory.


def memory_settings(options: DeploymentOptions, limits: BatchLimits) -> MemorySettings:
    """Return the memory settings of the flags. Without --block-size the kernels decide, as in vLLM."""
    return MemorySettings(
        gpu_memory_utilization=options.memory_utilization,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        max_model_len=options.max_model_len,
        block_size=options.block_size or engine_defaults(options.engine).block_size_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        expert_parallel=options.enable_expert_parallel,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes or None,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        dtype=options.dtype,
        pp=options.pp,
        drafter=drafter_of(options),
        cpu_offload_bytes=int(options.cpu_offload_gb * 2**30),
        refines_fp8_blocks=options.release.refines_fp8_blocks,
    )


def modelled_settings(
    options: DeploymentOptions, model: ModelSpec, settings: MemorySettings, notes: list[str]
) -> MemorySettings:
    """Return the settings without types that are not modelled, with a warning for each that names the assumption."""
    if options.kv_cache_dtype not in ("auto", *KV_DTYPE_BITS):
        notes.append(f"warning: --kv-cache-dtype {options.kv_cache_dtype} is ignored: the KV cache is planned as auto")
        settings = settings._replace(kv_cache_dtype="auto")
    if model.checkpoint is not None and (problem := refused_quantization(model.checkpoint, options.quantization)):
        notes.append(f"warning: --quantization {options.quantization} is ignored: {problem}")
        settings = settings._replace(quantization="")
    return settings


_TENSORS = 2
"""Tensors of the hidden size that a stage sends for each token: hidden states and residual."""
USUAL_PCIE_GB_S = 32.0
"""The rate of PCIe 4 with 16 lanes, for GPUs whose link to the CPU is not known."""
_TRANSFER_START_US = 20.0
"""Time to send the smallest message to the GPU of another stage."""


def pipeline_stages(model: ModelSpec, gpu: GpuSpec, tp: int, pp: int) -> "PipelineStages":
    """Return `pp` stages of `tp` GPUs each. Raises EngineError when the model has too few layers.

    A stage takes its share of the layers, the last one also the output head. Each GPU sends its part of the activations
    over the slowest link that joins the GPUs of the instance. A link of unknown rate takes only the time to start.
    """
    from blis_sim.engine.config import PipelineStages

    work = step_work(model, gpu, tp, 1, "naive")
    layers_us = work.weight_us / model.num_layers
    times = [len(layers) * layers_us for layers in stage_layers(model.num_layers, pp, model.name)]
    times[-1] += work.head_us
    total = sum(times)
    sent_bytes = _TENSORS * model.hidden_size * model.bytes_per_activation / tp
    rate = gpu.link_gb_s(tp * pp) * 1e3
    return PipelineStages(
        tuple(time / total for time in times),
        transfer_start_us=_TRANSFER_START_US,
        transfer_token_us=sent_bytes / rate if rate else 0.0,
    )


def with_offloaded_weights(
    latency: LatencyModel, gpu: GpuSpec, offload_gib: float, weight_bytes_per_gpu: Sequence[int]
) -> LatencyModel:
    """Return `latency` with steps in which every GPU reads so much of its weights from CPU memory, stage by stage."""
    from blis_sim.engine.latency.wrapped import AddedTime  # Imported here: it loads numpy, which no help text needs.

    offloaded_bytes = sum(min(offload_gib * 2**30, weights) for weights in weight_bytes_per_gpu)
    return AddedTime(latency, round(offloaded_bytes / ((gpu.pcie_gb_s or USUAL_PCIE_GB_S) * 1e3)))


def offload_of(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, block_bytes: float, tp: int, notes: list[str]
) -> "OffloadConfig | None":
    """Return the CPU memory of an instance with vLLM's rules; None without. Raises EngineError where it holds no block.

    `block_bytes` is what each GPU holds of a block. GPUs load side by side; latent KV, which all GPUs hold alike, is
    kept once, but with pipeline stages.
    """
    if options.engine == "blis" or not (options.kv_cpu_blocks or options.kv_offloading_size):
        return None
    from blis_sim.engine.offloading import OffloadConfig  # few engines have one

    num_blocks = options.kv_cpu_blocks
    stored_bytes = block_bytes * (1 if model.is_mla and options.pp == 1 else tp * options.pp)
    if options.kv_offloading_size is not None:
        num_blocks = int(options.kv_offloading_size * 2**30 // stored_bytes)
        if num_blocks < 1:
            raise EngineError(
                f"--kv-offloading-size must hold at least one KV block, {stored_bytes / 2**30:.3g} GiB, "
                f"got {options.kv_offloading_size:g}"
            )
    rate_gb_s = gpu.pcie_gb_s
    if not rate_gb_s:
        rate_gb_s = USUAL_PCIE_GB_S
        notes.append(f"the link of {gpu.name} to the CPU is not known: KV blocks move at {rate_gb_s:g} GB/s")
    block_us = block_bytes / (rate_gb_s * 1e3)
    return OffloadConfig(num_blocks, block_us, block_bytes, tp * options.pp, stored_bytes, options.kv_devices)


# From the options of a deployment to an engine's configuration and latency model.
#
# `resolve` fills in the values of the catalogue and computes the KV capacity.

_KV_BLOCKS_WITHOUT_SIZES = 1_000_000
_DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class KVCache:
    """The KV cache of an instance. `capacity_tokens` is the longest request that fits."""

    num_blocks: int
    block_size_tokens: int
    capacity_tokens: int
    memory: MemoryLayout | None = None
    groups: tuple[KVCacheGroupSpec, ...] = ()
    """Groups of layers with a block table each; none where all layers keep every token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that an engine is built from. `notes` name assumptions and cut values for the user."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    dp: int
    pp: int
    latency: LatencyModel
    config: EngineConfig
    memory: MemoryLayout | None = None
    """Weights and groups of KV caches as vLLM plans them; None with BLIS, and for a model that cannot be planned."""
    latency_name: str = ""
    """The name of the latency model, a key of `blis_sim.engine.latency.registry.LATENCY_MODELS`."""
    choice: LatencyChoice | None = field(default=None, compare=False)
    """The properties by which the latency model was chosen."""
    notes: tuple[str, ...] = ()
    rank: EngineConfig | None = None
    """The configuration of one data-parallel rank that schedules for itself; `config` is of all that share experts."""

    @property
    def sureness(self) -> Sureness:
        """The errors to expect of the latency model."""
        return self.sureness_with()

    def sureness_with(self, *unmeasured: str) -> Sureness:
        """Return the errors to expect where a cluster has what `unmeasured` names and no recorded server had."""
        if self.choice is None:
            return Sureness("", {})
        names = dict.fromkeys((*self.choice.unmeasured, *_unmeasured(self.config), *unmeasured))
        return expected(self.latency_name, replace(self.choice, unmeasured=tuple(names)))

    @property
    def num_gpus(self) -> int:
        """GPUs of all pipeline stages and data-parallel replicas."""
        return self.tp * self.pp * self.dp

    @property
    def shares_experts(self) -> bool:
        """Whether data-parallel ranks share experts, so that their steps begin together."""
        return self.dp > 1 and self.model.is_moe

    @property
    def has_own_ranks(self) -> bool:
        """Whether data-parallel ranks can be simulated as engines of their own."""
        return self.rank is not None and (self.pp == 1 or not self.shares_experts)

    def with_blocks(self, num_blocks: int) -> "Deployment":
        """Return the deployment with another number of KV blocks, which ranks that share experts have together."""
        rank = self.rank
        if rank is not None:
            rank = _with_blocks(rank, num_blocks // self.dp if self.shares_experts else num_blocks)
        return replace(self, config=_with_blocks(self.config, num_blocks), rank=rank)

    def with_config(self, **changes: Any) -> "Deployment":
        """Return the deployment with changed fields of the configuration, which each rank has as well."""
        rank = None if self.rank is None else replace(self.rank, **changes)
        return replace(self, config=replace(self.config, **changes), rank=rank)


def _with_blocks(config: EngineConfig, num_blocks: int) -> EngineConfig:
    capacity = replace(config, total_kv_blocks=num_blocks, max_model_len=0).kv_capacity_tokens
    return replace(config, total_kv_blocks=num_blocks, max_model_len=min(config.max_model_len, capacity))


_resolved: ContextVar[dict[DeploymentOptions, Deployment] | None] = ContextVar("resolved", default=None)


@contextmanager
def resolved_once() -> Iterator[None]:
    """Within the block equal options are one deployment, which is resolved once: the pools of a cluster ask often."""
    before = _resolved.set({})
    try:
        yield
    finally:
        _resolved.reset(before)


def resolve(options: DeploymentOptions) -> Deployment:
    """Return the deployment, with missing options taken from the catalogue or computed.

    Raises EngineError when the model or GPU is unknown, or when they do not fit together.
    """
    known = _resolved.get()
    if known is None:
        return _deployment(options)
    if options not in known:
        known[options] = _deployment(options)
    return known[options]


def _deployment(options: DeploymentOptions) -> Deployment:
    if not options.model.strip():
        raise OptionError("--model must name a model, got an empty string")
    notes: list[str] = []
    model = model_of(options, notes)
    if options.dp > 1 and options.engine == "vllm" and not model.is_moe:
        alone = resolve(replace(options, dp=1, moe_comm_backend=MOE_COMM_BACKENDS[0]))
        if options.moe_comm_backend != MOE_COMM_BACKENDS[0]:
            notes.append(f"--moe-comm-backend {options.moe_comm_backend} has no effect on a model without experts")
        return replace(alone, dp=options.dp, rank=alone.config, notes=(*notes, *alone.notes))
    gpu_name, tp = _placement(options)
    gpu = load_gpu(gpu_name, options.hardware_config)
    if options.dp == 1 and options.moe_comm_backend != MOE_COMM_BACKENDS[0]:
        notes.append(f"--moe-comm-backend {options.moe_comm_backend} has no effect without --dp")
    if options.enable_expert_parallel and not model.is_moe:
        notes.append("--enable-expert-parallel has no effect on a model without experts")
    memory_notes: list[str] = []
    config, memory = _config(options, model, gpu, tp, memory_notes)
    config = timed_speculation(options, model, gpu, tp, config, memory_notes)
    model = _as_planned(model, memory)
    choice = _latency_choice(options, model, gpu, tp, config)
    name, latency = _latency(options, choice, config, notes)
    if options.cpu_offload_gb and memory is not None:
        latency = with_offloaded_weights(latency, gpu, options.cpu_offload_gb, memory.weight_bytes_per_gpu)
    notes.extend(memory_notes)
    notes.extend(flags_without_effect(options))
    return Deployment(
        model=model,
        gpu=gpu,
        tp=tp,
        dp=options.dp,
        pp=options.pp,
        latency=latency,
        latency_name=name,
        choice=choice,
        config=config,
        memory=memory,
        notes=tuple(notes),
        rank=None if options.dp == 1 or options.engine == "blis" else _rank_config(options, config),
    )


def _rank_config(options: DeploymentOptions, together: EngineConfig) -> EngineConfig:
    """Return the configuration of one data-parallel rank, which has its own KV cache."""
    blocks = options.total_kv_blocks or together.total_kv_blocks // options.dp
    alone = replace(together, total_kv_blocks=blocks, max_model_len=0)
    return replace(alone, max_model_len=min(together.limit_tokens, alone.kv_capacity_tokens))


def _as_planned(model: ModelSpec, memory: MemoryLayout | None) -> ModelSpec:
    """Return the model with the widths of weights and KV cache as planned, where its config alone does not have
    them."""
    if memory is None:
        return model
    if memory.quantization and model.bytes_per_weight == model.bytes_per_activation:
        # Scales are too few to separate FP8 from one byte, for which GPUs have a peak rate of their own.
        model = replace(model, bytes_per_weight=round(memory.bytes_per_weight, 2))
    width = memory.bytes_per_kv_element
    return replace(model, bytes_per_kv_element=width) if width != model.bytes_per_activation else model


def latency_choice(options: DeploymentOptions) -> LatencyChoice:
    """Return what a latency model is chosen by, without building one. Raises EngineError like `resolve`."""
    model = model_of(options, [])
    gpu_name, tp = _placement(options)
    gpu = load_gpu(gpu_name, options.hardware_config)
    if options.dp > 1 and options.engine == "vllm" and not model.is_moe:  # each rank is an instance of its own
        options = replace(options, dp=1, moe_comm_backend=MOE_COMM_BACKENDS[0])
    if options.quantization and model.checkpoint is not None:  # a checkpoint may refuse it, and so does the server
        checkpoint = model.checkpoint
        read_quantization(checkpoint.config, checkpoint.hf_quant_config, model.name, options.quantization)
    config, memory = _config(options, model, gpu, tp, [])
    return _latency_choice(options, _as_planned(model, memory), gpu, tp, config)


def _latency_choice(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, tp: int, config: EngineConfig
) -> LatencyChoice:
    of_flags = {"weights in host memory": options.cpu_offload_gb, "steps without CUDA graphs": options.enforce_eager}
    return LatencyChoice(
        model=model,
        gpu=gpu,
        tp=tp,
        dp=options.dp,
        moe_comm_backend=options.moe_comm_backend,
        alpha=options.alpha_coeffs,
        beta=options.beta_coeffs,
        coefficients=options.coefficients,
        learned=_content_of(options),
        placement=options.kernel_placement(tp, gpu),
        max_num_seqs=config.max_num_seqs,
        operators=options.operators,
        network=options.network,
        pp=options.pp,
        unmeasured=(*_unmeasured(config), *(name for name, is_used in of_flags.items() if is_used)),
        engine=options.engine,
    )


def _unmeasured(config: EngineConfig) -> Iterator[str]:
    """Yield what a configuration has and no recorded server had: those that draft have no known TTFT."""
    if config.speculation is not None:
        yield "speculative decoding"
    if config.lora is not None:
        yield "LoRA adapters"
    if config.offload is not None or config.offload_chain is not None or config.cpu_tier is not None:
        yield "KV offloading"


def _content_of(options: DeploymentOptions) -> Mapping[str, Any] | None:
    """Return the content of --coefficients, which may be a pipe and is read once. Raises EngineError."""
    if options.coefficients is None:
        return None
    from blis_sim.engine.latency.coefficients_file import read_content

    with _naming_files(options):
        return read_content(options.coefficients)


def _latency(
    options: DeploymentOptions, choice: LatencyChoice, config: EngineConfig, notes: list[str]
) -> tuple[str, LatencyModel]:
    """The latency model and its name. Raises EngineError when it cannot time the deployment."""
    with _naming_files(options):
        chosen = choose(options.step_times, choice)
    notes.extend(chosen.notes)
    return chosen.name, watched_choice(chosen, choice, config.max_num_batched_tokens)


def _config(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, tp: int, notes: list[str]
) -> tuple[EngineConfig, MemoryLayout | None]:
    """Return the engine's configuration and its memory plan. Raises EngineError for a deployment that can never run."""
    limits = batch_limits(options, gpu, options.max_model_len or model.max_model_len)
    with _naming_files(options):
        cache = _kv_cache(options, model, gpu, tp, limits, notes)
    speculation = speculation_of(options, notes)
    block_bytes = bytes_per_block(model, tp, options.engine, cache.block_size_tokens, cache.memory)
    offload = offload_of(options, model, gpu, block_bytes, tp, notes)
    config = EngineConfig(
        total_kv_blocks=cache.num_blocks,
        block_size_tokens=cache.block_size_tokens,
        max_num_seqs=active_seqs(options, limits.max_num_seqs, limits.max_num_batched_tokens, speculation),
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_scheduled_tokens=scheduled_tokens(options, speculation, notes),
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=options.long_prefill_token_threshold_adaptive,
        max_model_len=_max_model_len(options, model, cache.capacity_tokens, notes),
        scheduler=options.scheduler,
        priority_policy=options.priority_policy,
        age_scores=options.age_scores,
        preemption_policy=options.preemption_policy,
        urgency=options.urgency.settings(options.priority_policy, options.engine),
        timer_us=options.urgency.timer_resolution if options.engine in ADAPTIVE_ENGINES else 0,
        engine=options.engine,
        async_scheduling=is_async(options, speculation, notes),
        front_end_us=_front_end_us(options, model),
        pipeline=None if options.pp == 1 else pipeline_stages(model, gpu, tp, options.pp),
        cpu_tier=_cpu_tier(options),
        offload=offload,
        speculation=speculation,
        encoder=_encoder_limits(options, limits),
        enable_chunked_prefill=options.enable_chunked_prefill,
        enable_prefix_caching=options.enable_prefix_caching,
        reserve_full_prompt=flag_or(options.scheduler_reserve_full_isl, options.release.reserves_full_prompt),
        watermark_fraction=options.watermark,
        keeps_all_windows=options.engine == "vllm" and options.release.keeps_all_windows,
        prefill_schedule_interval=options.prefill_schedule_interval,
        kv_groups=cache.groups,
    )
    _check_whole_prompts(config)
    check_drafts_fit(config)
    return config, cache.memory


def _front_end_us(options: DeploymentOptions, model: ModelSpec) -> int:
    """Return the time of the API server for a request before it is tokenized. gpt-oss has no chat template there."""
    if options.engine != "vllm":
        return 0
    has_template = model.checkpoint is None or model.checkpoint.config.get("model_type") != "gpt_oss"
    return options.release.request_us + options.release.chat_template_us * has_template


@contextmanager
def _naming_files(options: DeploymentOptions) -> Iterator[None]:
    """Put the files that describe model and GPU in front of an error about the two."""
    try:
        yield
    except EngineError as error:
        model = config_path(Path(options.model_config_folder or options.model))
        files = [str(file) for file in (model, options.hardware_config) if file]
        raise EngineError(f"{', '.join(files)}: {error}" if files else str(error)) from None


def notes_after(deployment: Deployment) -> list[str]:
    """Return the notes on a deployment's predictions after the run."""
    from blis_sim.engine.latency.wrapped import (  # only watched models need these modules
        PeakWatch,
        RangeWatch,
        WrappedLatency,
    )

    notes: list[str] = []
    latency = deployment.latency
    while isinstance(latency, WrappedLatency):
        if isinstance(latency, PeakWatch):
            notes.extend(latency.report())
        elif isinstance(latency, RangeWatch) and (exceeded := latency.exceeded()):
            notes.append(f"warning: outside the range of {latency.origin}: {'; '.join(exceeded)}")
        latency = latency.model
    return [*notes, *notes_on_operators(latency)]


def _check_whole_prompts(config: EngineConfig) -> None:
    """Refuse, as vLLM does, a token budget below the longest context without chunked prefill: long prompts would wait
    for ever."""
    ahead = config.speculation.num_lookahead_tokens if config.speculation else 0
    least = config.max_model_len + ahead
    if config.engine != "blis" and not config.enable_chunked_prefill and config.max_num_batched_tokens < least:
        raise EngineError(
            f"--max-num-batched-tokens must be at least the longest context, {least}, with "
            f"--no-enable-chunked-prefill, got {config.max_num_batched_tokens}"
        )


def batch_limits(options: DeploymentOptions, gpu: GpuSpec, max_model_len: int) -> BatchLimits:
    """Return the limits of the flags, else the defaults of the engine; vLLM lowers its default of sequences to the
    tokens."""
    tokens, seqs = options.max_num_batched_tokens, options.max_num_seqs
    if (own := engine_defaults(options.engine).limits) is not None:
        return BatchLimits(tokens or own.max_num_batched_tokens, seqs or own.max_num_seqs)
    default = vllm_limits(
        gpu,
        max_model_len,
        seqs,
        has_whole_prompts=not options.enable_chunked_prefill,
        has_low_latency_experts=options.dp > 1 and options.moe_comm_backend == LOW_LATENCY_BACKEND,
        performance_mode=options.performance_mode,
        has_largest_limits=options.release.has_largest_limits,
    )
    tokens = tokens or default.max_num_batched_tokens
    return BatchLimits(tokens, seqs or min(default.max_num_seqs, tokens))


def model_of(options: DeploymentOptions, notes: list[str]) -> ModelSpec:
    """Return the model of --model-config-folder; the catalogue's model where that folder does not exist."""
    folder = options.model_config_folder
    if folder and not Path(folder).exists() and has_model(options.model):
        notes.append(f"--model-config-folder {folder} does not exist, taking {options.model} from the catalogue")
        folder = None
    return load_model(options.model, folder or None)


D = TypeVar("D", bound=DeploymentOptions)

DEFAULT_GPU = "H100"
"""The GPU of a model without a default deployment."""


def is_known(options: DeploymentOptions) -> bool:
    """Whether the sizes of the model are known, from a folder or the catalogue."""
    folder = options.model_config_folder
    has_config = config_path(Path(options.model)) is not None or bool(folder and Path(folder).exists())
    return has_config or has_model(options.model)


def with_stand_ins(options: D) -> tuple[D, list[str]]:
    """Return the deployment to simulate, with notes on what stands in for the model and on a GPU that was not given."""
    model, notes = options.model, []
    if not is_known(options):
        found = stand_in_model(model)
        notes.append(
            f"warning: model {model!r} is not in the catalogue: it is simulated as {found.model}, for {found.reason}; "
            "--model-config-folder FOLDER names a folder with its config.json"
        )
        model = found.model
    gpu, tp = default_deployment(model) or ("", 0)
    if not gpu and not options.hardware:
        gpu = DEFAULT_GPU
        notes.append(f"--hardware is not given: {model} is simulated on {gpu}")
    return replace(options, model=model, hardware=options.hardware or gpu, tp=options.tp or tp or 1), notes


def _placement(options: DeploymentOptions) -> tuple[str, int]:
    """GPU name and tensor parallelism, each from its flag or else from the catalogue."""
    gpu, tp = default_deployment(options.model) or ("", 0)
    gpu, tp = options.hardware or gpu, options.tp or tp
    missing = [flag for flag, value in (("--hardware", gpu), ("--tp", tp)) if not value]
    if missing:
        raise EngineError(f"{' and '.join(missing)} must be given: the catalogue has no default for {options.model}")
    return gpu, tp


def _kv_cache(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, tp: int, limits: BatchLimits, notes: list[str]
) -> KVCache:
    """Return the KV cache as vLLM plans it for the checkpoint, or as BLIS counts it. Raises EngineError."""
    if options.total_kv_blocks == 1 and engine_defaults(options.engine).keeps_block:
        raise EngineError(
            f"--num-gpu-blocks-override must be at least 2 with --engine {options.engine}, which keeps one, got 1"
        )
    if options.engine in ADAPTIVE_ENGINES:
        size, blocks = options.block_size or _DEFAULT_BLOCK_SIZE, options.total_kv_blocks or ADAPTIVE_BLOCKS
        return KVCache(blocks, size, (blocks - 1) * size)
    if options.engine == "blis":
        return _sized_cache(options, model, gpu, tp, notes)
    try:
        settings = modelled_settings(options, model, memory_settings(options, limits), notes)
        drafter_notes = notes if options.total_kv_blocks is None else []
        layout = planned_with_drafter(model, gpu, tp, options.dp, settings, drafter_notes)
    except ShardingError:
        raise
    except EngineError as error:
        if options.total_kv_blocks is None and not model.lacks_expert_count:
            notes.append(f"KV blocks are counted from the sizes of the model alone: {error}")
        return _sized_cache(options, model, gpu, tp, notes)
    blocks = options.total_kv_blocks or planned_blocks(layout, model, gpu, options.dp, settings)
    groups, longest = group_specs(layout.groups), layout.longest_request_tokens(blocks)
    if is_single_context(groups):
        return KVCache(blocks, layout.block_tokens, longest, layout)
    return KVCache(blocks, hash_block_tokens(groups, options.enable_prefix_caching), longest, layout, groups)


def blocks_on(options: DeploymentOptions, deployment: Deployment) -> int:
    """Return the KV blocks of a deployment on another GPU than the options name. Raises EngineError."""
    if deployment.rank is not None and not deployment.shares_experts:
        options = replace(options, dp=1)  # each rank is an engine of its own
    limits = BatchLimits(deployment.config.max_num_batched_tokens, deployment.config.max_num_seqs)
    return _kv_cache(options, deployment.model, deployment.gpu, deployment.tp, limits, []).num_blocks


def _sized_cache(options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, tp: int, notes: list[str]) -> KVCache:
    """Return the KV cache that fits by the sizes of the model alone."""
    blocks, own_size = options.total_kv_blocks, engine_defaults(options.engine).block_size_tokens
    size = options.block_size or own_size or _DEFAULT_BLOCK_SIZE
    if blocks is None and model.lacks_expert_count:
        notes.append(
            f"{model.name} has experts but its config does not say how many, "
            f"assuming {_KV_BLOCKS_WITHOUT_SIZES} KV blocks; give --num-gpu-blocks-override"
        )
        blocks = _KV_BLOCKS_WITHOUT_SIZES
    if blocks is None:
        stage = replace(model, num_layers=-(-model.num_layers // options.pp))
        blocks = kv_blocks(stage, gpu, tp, options.dp, size, options.memory_utilization, options.engine)
    return KVCache(blocks, size, EngineConfig(blocks, size, engine=options.engine).kv_capacity_tokens)


def _encoder_limits(options: DeploymentOptions, limits: BatchLimits) -> EncoderLimits | None:
    """Return limits of encoding media, where these are not vLLM's defaults."""
    if not options.disable_chunked_mm_input:
        return None
    most = limits.max_num_batched_tokens
    return EncoderLimits(step_tokens=most, cache_tokens=most, splits_media=False)


def _cpu_tier(options: DeploymentOptions) -> "CpuTierConfig | None":
    if not options.kv_cpu_blocks or options.engine != "blis":
        return None
    from blis_sim.engine.offloading import CpuTierConfig  # few engines have one

    kind, bandwidth = options.kv_offload_policy, options.kv_transfer_bandwidth
    return CpuTierConfig(
        options.kv_cpu_blocks, kind, options.kv_offload_threshold, bandwidth, options.kv_transfer_base_latency
    )


def _max_model_len(options: DeploymentOptions, model: ModelSpec, capacity: int, notes: list[str]) -> int:
    """Return --max-model-len, else the model's context window, cut to the capacity of the KV cache."""
    requested = options.max_model_len or model.max_model_len
    if requested <= capacity:
        return requested
    origin = "--max-model-len" if options.max_model_len else f"the context window of {model.name}"
    notes.append(f"{origin}, {requested} tokens, is cut to the {capacity} tokens that the KV cache holds")
    return capacity
