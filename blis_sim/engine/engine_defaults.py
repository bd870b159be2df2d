"""Defaults for flags that are not given, by engine and by release of vLLM.

vLLM's are those of `EngineArgs` in 0.33 for an API server; BLIS's those of its command line.
"""

from typing import TYPE_CHECKING, NamedTuple

from blis_sim.engine.specs import GpuSpec
from blis_sim.options.registry import Registry

if TYPE_CHECKING:
    from blis_sim.engine.speculation import Speculation


class VllmRelease(NamedTuple):
    """The defaults of one release for an API server; those that no release changed are in `engine_defaults.py`."""

    async_scheduling: bool
    reserves_full_prompt: bool
    """Whether a request is admitted only when all of its prompt fits in the KV cache."""
    gpu_memory_utilization: float
    has_largest_limits: bool
    """Whether GPUs of at least 160 GiB have larger limits of a step than others."""
    has_triton_experts: bool = True
    """Whether Triton's kernels of experts in MXFP4 come along, which run on Hopper; without them Marlin's do."""
    request_us: int = 0
    """Time of the event loop of the API server to take up a request; 0 where it is part of what a request waits."""
    chat_template_us: int = 0
    """Time of the API server to parse the chat template of a model, which it does anew for each request. It is 0 where
    the parsed template is kept."""
    has_later_tuning: bool = True
    """Whether kernels of experts are tuned for more shapes than in 0.11."""
    latent_host_us: int = 0
    """Time by which the host prolongs a step for each layer of latent attention. 133 us are missing from steps of a
    server of DeepSeek-R1 on H200 with 0.11, and 93 us from those of another one."""
    keeps_all_windows: bool = True
    """Whether every block of a sliding window stays cached. Else only those before the ends of prompts do."""
    refines_fp8_blocks: bool = False
    """Whether experts in FP8 take smaller blocks than the checkpoint has where these do not divide over GPUs."""


LATEST = "0.33"
VLLM_RELEASES = {
    "0.11": VllmRelease(
        async_scheduling=False,
        reserves_full_prompt=False,
        gpu_memory_utilization=0.9,
        has_largest_limits=False,
        has_triton_experts=False,
        has_later_tuning=False,
        request_us=1_500,
        chat_template_us=7_800,
        latent_host_us=113,
    ),
    "0.15": VllmRelease(
        async_scheduling=True,
        reserves_full_prompt=False,
        gpu_memory_utilization=0.9,
        has_largest_limits=False,
        has_later_tuning=False,
    ),
    "0.19": VllmRelease(
        async_scheduling=True, reserves_full_prompt=True, gpu_memory_utilization=0.9, has_largest_limits=False
    ),
    "0.23": VllmRelease(
        async_scheduling=True, reserves_full_prompt=True, gpu_memory_utilization=0.92, has_largest_limits=False
    ),
    LATEST: VllmRelease(
        async_scheduling=True,
        reserves_full_prompt=True,
        gpu_memory_utilization=0.92,
        has_largest_limits=True,
        keeps_all_windows=False,
        refines_fp8_blocks=True,
    ),
}
"""Read in the source of each release, and for 0.15 in those of 0.14.1 and 0.16.0, which agree."""


def flag_or(given: bool | None, default: bool) -> bool:
    """Return the value of a flag, or the release's default where it was not given."""
    return default if given is None else given


ADAPTIVE_BLOCK_TOKENS = 16


def adaptive_blocks(num_tokens: int) -> int:
    """Return the blocks of a worker with a budget of so many tokens. One more block holds nothing."""
    return num_tokens // ADAPTIVE_BLOCK_TOKENS + 1


ADAPTIVE_BLOCKS = adaptive_blocks(2048)
DRAFTS, ACCEPTANCE, DRAFT_COST, DRAFT_US = 4, 0.85, 0.1, 40


def adaptive_speculation(seed: int) -> "Speculation":
    """Drafts of the worker: 4, each accepted with a chance of 0.85, for requests that pass the gates."""
    from blis_sim.engine.speculation import Speculation, SpeculationGates  # few deployments draft

    return Speculation(
        method="ngram",
        num_tokens=DRAFTS,
        acceptance_rates=(ACCEPTANCE,) * DRAFTS,
        seed=seed,
        draft_time_us=DRAFT_US,
        gates=SpeculationGates(min_tokens_left=DRAFTS),
        draft_cost=DRAFT_COST,
    )


AUTO = "auto"
"""The latency model that is learned, where there is one for the deployment."""

_LARGE_GIB, _LARGEST_GIB = 70, 160
"""Sizes of GPU memory from which on vLLM takes larger batches."""
_TOKENS_OF_LOW_LATENCY_EXPERTS = 256
PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")
"""vLLM's modes: the last doubles the default limits of a step, the second only captures more CUDA graphs."""
LOW_LATENCY_BACKEND = "deepep_low_latency"
"""The communication backend of experts with which vLLM takes small batches."""


class BatchLimits(NamedTuple):
    """Limits of one step."""

    max_num_batched_tokens: int
    max_num_seqs: int


class EngineDefaults(NamedTuple):
    """Defaults of an engine that do not depend on the hardware."""

    gpu_memory_utilization: float
    latency_model: str
    limits: BatchLimits | None = None
    """None where they depend on the GPU."""
    block_size_tokens: int = 0
    """0 where the kernels decide."""
    keeps_block: bool = True
    """Whether one KV block is never given to a request."""
    has_kv_groups: bool = True
    """Whether layers may keep other tokens than the whole context."""
    has_stages: bool = True
    """Whether there may be several pipeline stages."""
    has_other_block_sizes: bool = True
    """Whether KV blocks may have another size."""


ADAPTIVE_ENGINES = ("adaptive", "adaptive-fifo")
"""The worker of the published adaptive scheduler, with its policies and first come, first served."""

BLIS_LIMITS = BatchLimits(2048, 256)
ADAPTIVE_LIMITS = BatchLimits(2048, 32)


ENGINE_DEFAULTS = {
    "vllm": EngineDefaults(gpu_memory_utilization=0.92, latency_model=AUTO),
    "blis": EngineDefaults(
        gpu_memory_utilization=0.9,
        latency_model="trained-physics",
        limits=BLIS_LIMITS,
        keeps_block=False,
        has_stages=False,
    ),
    "adaptive": EngineDefaults(gpu_memory_utilization=0.92, latency_model="adaptive-toy", limits=ADAPTIVE_LIMITS),
    "adaptive-fifo": EngineDefaults(gpu_memory_utilization=0.92, latency_model="adaptive-toy", limits=ADAPTIVE_LIMITS),
}
"""Defaults by the name of the engine."""


OTHER_ENGINES = Registry[object]("blis.schedulers", "step")
"""Engines of other packages: `ENGINES` in `blis_sim/engine/scheduler/registry.py` without its rows."""


def engine_defaults(engine: str) -> EngineDefaults:
    """Return the defaults of the engine of that name that do not depend on the hardware.

    An engine of another package has them as the attribute `defaults`, or takes vLLM's.
    """
    if (known := ENGINE_DEFAULTS.get(engine)) is not None:
        return known
    usual = ENGINE_DEFAULTS["vllm"]
    found: EngineDefaults = getattr(OTHER_ENGINES[engine], "defaults", usual) if engine in OTHER_ENGINES else usual
    return found


def engine_problem(engine: str, pp: int, block_size: int | None, offloads: bool, drafts: bool) -> str | None:
    """Return why an engine cannot have as many stages, such blocks, a KV cache in CPU memory or drafts; or None."""
    if offloads and engine not in ("vllm", "blis"):
        return f"a KV cache in CPU memory needs --engine vllm or blis, got {engine}"
    if drafts and engine not in ("vllm", *ADAPTIVE_ENGINES):
        return f"speculative decoding needs --engine vllm, got {engine}"
    defaults = engine_defaults(engine)
    if pp > 1 and not defaults.has_stages:
        return f"--pipeline-parallel-size must be 1 with --engine {engine}, got {pp}"
    own_size = defaults.block_size_tokens
    if not defaults.has_other_block_sizes and block_size not in (None, own_size):
        return f"--block-size must be {own_size} with --engine {engine}, got {block_size}"
    return None


def vllm_limits(
    gpu: GpuSpec,
    max_model_len: int,
    max_num_seqs: int | None,
    has_whole_prompts: bool = False,
    has_low_latency_experts: bool = False,
    performance_mode: str = PERFORMANCE_MODES[0],
    has_largest_limits: bool = True,
) -> BatchLimits:
    """vLLM's defaults on a GPU, by `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`.

    `max_model_len` is in tokens, 0 without a limit; `max_num_seqs` is the user's limit, None without one.
    """
    most = _for_memory(gpu, has_largest_limits)
    tokens = _TOKENS_OF_LOW_LATENCY_EXPERTS if has_low_latency_experts else most.max_num_batched_tokens
    factor = 2 if performance_mode == "throughput" else 1
    tokens *= factor
    if has_whole_prompts:
        tokens = max(tokens, max_model_len)
    seqs = max_num_seqs or most.max_num_seqs * factor
    return BatchLimits(min(tokens, seqs * max_model_len) if max_model_len else tokens, seqs)


def _for_memory(gpu: GpuSpec, has_largest_limits: bool) -> BatchLimits:
    """vLLM's defaults by GPU; an A100 gets the small ones whatever its memory."""
    if has_largest_limits and gpu.memory_gib >= _LARGEST_GIB:
        return BatchLimits(16384, 1024)
    if gpu.memory_gib >= _LARGE_GIB and "a100" not in gpu.name.lower():
        return BatchLimits(8192, 1024)
    return BatchLimits(2048, 256)
