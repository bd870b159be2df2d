"""From the options of a deployment to an engine's configuration and latency model.

`resolve` fills in the values of the catalogue and computes the KV capacity.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.drafting import (
    active_seqs,
    check_drafts_fit,
    is_async,
    scheduled_tokens,
    speculation_of,
)
from blis_sim.engine.engine_defaults import (
    ADAPTIVE_BLOCKS,
    ADAPTIVE_ENGINES,
    LOW_LATENCY_BACKEND,
    BatchLimits,
    engine_defaults,
    flag_or,
    vllm_limits,
)
from blis_sim.engine.errors import EngineError
from blis_sim.engine.flags_without_effect import flags_without_effect
from blis_sim.engine.kv_cache.sizing import (
    bytes_per_block,
    kv_blocks,
    planned_blocks,
    planned_with_drafter,
)
from blis_sim.engine.latency.catalogue.entries import has_model, load_gpu
from blis_sim.engine.latency.catalogue.files import config_path
from blis_sim.engine.latency.catalogue.reader import default_deployment, load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.operators.sources import notes_on_operators
from blis_sim.engine.latency.registry import choose, watched_choice
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS
from blis_sim.engine.memory.kv_groups import KVCacheGroupSpec, group_specs, hash_block_tokens, is_single_context
from blis_sim.engine.memory.planner import MemoryLayout
from blis_sim.engine.memory.shapes import ShardingError
from blis_sim.engine.memory_options import (
    memory_settings,
    modelled_settings,
    offload_of,
    pipeline_stages,
    simulates_offloading,
    with_offloaded_weights,
)
from blis_sim.engine.request import EncoderLimits
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.options import OptionError

if TYPE_CHECKING:
    from blis_sim.engine.cpu_tier_config import CpuTierConfig

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
    notes: tuple[str, ...] = ()
    rank: EngineConfig | None = None
    """The configuration of one data-parallel rank that schedules for itself; `config` is of all that share experts."""

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


def resolve(options: DeploymentOptions) -> Deployment:
    """Return the deployment, with missing options taken from the catalogue or computed.

    Raises EngineError when the model or GPU is unknown, or when they do not fit together.
    """
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
    memory_notes: list[str] = []
    config, memory = _config(options, model, gpu, tp, memory_notes)
    model = _as_planned(model, memory)
    name, latency = _latency(options, model, gpu, tp, config, notes)
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


def _latency(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, tp: int, config: EngineConfig, notes: list[str]
) -> tuple[str, LatencyModel]:
    """The latency model and its name. Raises EngineError when it cannot time the deployment."""
    choice = LatencyChoice(
        model=model,
        gpu=gpu,
        tp=tp,
        dp=options.dp,
        moe_comm_backend=options.moe_comm_backend,
        alpha=options.alpha_coeffs,
        beta=options.beta_coeffs,
        coefficients=options.coefficients,
        placement=options.kernel_placement(tp),
        max_num_seqs=config.max_num_seqs,
        operators=options.operators,
        network=options.network,
        pp=options.pp,
        engine=options.engine,
    )
    with _naming_files(options):
        chosen = choose(options.step_times, choice)
    notes.extend(chosen.notes)
    return chosen.name, watched_choice(chosen, choice, config.max_num_batched_tokens)


def _config(
    options: DeploymentOptions, model: ModelSpec, gpu: GpuSpec, tp: int, notes: list[str]
) -> tuple[EngineConfig, MemoryLayout | None]:
    """Return the engine's configuration and its memory plan. Raises EngineError for a deployment that can never run."""
    limits = _limits(options, gpu, options.max_model_len or model.max_model_len)
    with _naming_files(options):
        cache = _kv_cache(options, model, gpu, tp, limits, notes)
    speculation = speculation_of(options, notes)
    block_bytes = bytes_per_block(model, tp, options.engine, cache.block_size_tokens, cache.memory)
    can_offload = simulates_offloading(options, speculation is not None, bool(cache.groups), notes)
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
        pipeline=None if options.pp == 1 else pipeline_stages(model, gpu, tp, options.pp),
        cpu_tier=_cpu_tier(options),
        offload=offload_of(options, model, gpu, block_bytes, tp, notes) if can_offload else None,
        speculation=speculation,
        encoder=_encoder_limits(options, limits),
        enable_chunked_prefill=options.enable_chunked_prefill,
        enable_prefix_caching=options.enable_prefix_caching,
        reserve_full_prompt=flag_or(options.scheduler_reserve_full_isl, options.release.reserves_full_prompt),
        watermark_fraction=options.watermark,
        prefill_schedule_interval=options.prefill_schedule_interval,
        kv_groups=cache.groups,
    )
    _check_whole_prompts(config)
    check_drafts_fit(config)
    return config, cache.memory


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
    from blis_sim.engine.latency.peak_watch import PeakWatch
    from blis_sim.engine.latency.wrapped import RangeWatch, WrappedLatency  # only watched models need these modules

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


def _limits(options: DeploymentOptions, gpu: GpuSpec, max_model_len: int) -> BatchLimits:
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
    from blis_sim.engine.cpu_tier_config import CpuTierConfig  # few engines have one

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
