"""The flags that every command with an engine shares: one engine instance as its user describes it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.engine_defaults import (
    AUTO,
    LATEST,
    PERFORMANCE_MODES,
    VLLM_RELEASES,
    VllmRelease,
    engine_defaults,
    engine_problem,
    flag_or,
)
from blis_sim.engine.latency.choice import NetworkOptions
from blis_sim.engine.latency.operations import AUTO as AUTO_MOE_BACKEND
from blis_sim.engine.latency.operations import MOE_BACKENDS
from blis_sim.engine.latency.registry import LATENCY_MODELS
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS
from blis_sim.engine.offloading import Device
from blis_sim.engine.scheduler.policies import ORDERS, PRIORITIES, VICTIMS
from blis_sim.engine.scheduler.registry import ENGINES
from blis_sim.engine.speculation_options import SpeculationOptions
from blis_sim.engine.units import LARGEST_COEFFICIENT
from blis_sim.engine.urgency import AgeScores, UrgencyOptions, implied_policies, parse_base_scores
from blis_sim.options import OptionError, check_options, names_from, names_in, option, section

if TYPE_CHECKING:
    from blis_sim.engine.latency.model_operations import KernelPlacement
    from blis_sim.engine.specs import GpuSpec
    from blis_sim.engine.speculation import Speculation


_CATALOGUE = "blis_sim.engine.latency.catalogue"
MODEL_NAMES, GPU_NAMES = names_from(_CATALOGUE, "model_names"), names_from(_CATALOGUE, "gpu_names")
"""The names that a shell offers for a model and for a GPU."""
MOST_RANKS = 10_000
"""Data-parallel ranks of one instance, and of all instances together: each is an engine of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentOptions:
    """One engine instance as the command line describes it."""

    model: str = option(
        help="Model to simulate: a name of the catalogue, with or without its organisation, "
        "or a local folder with a Hugging Face config.json.",
        suggested=MODEL_NAMES,
        heading="Model and GPU",
    )
    engine: str = option(
        "vllm",
        "Engine to simulate: vLLM 0.33, the simulator BLIS, a scheduler that the simulator Vidur has, or the published "
        "adaptive scheduler. Each brings its own scheduler and its own defaults of memory, batches and step times.",
        choices=ENGINES.names,
        open_to=lambda: ENGINES,
    )
    vllm_version: str = option(
        LATEST,
        "Release of vLLM whose defaults of scheduling and memory --engine vllm has where no flag is given.",
        choices=tuple(VLLM_RELEASES),
    )
    hardware: str = option(
        "", "GPU to simulate, such as H100 (default: the catalogue's choice for the model).", suggested=GPU_NAMES
    )
    tp: int = option(
        0,
        "GPUs one instance is sharded over (default: the catalogue's choice for the model).",
        flags=("--tp", "--tensor-parallel-size"),
        at_least=0,
    )
    pp: int = option(
        1,
        "Pipeline stages of one instance, each on --tp GPUs; 1 with --engine blis or lightllm.",
        flags=("--pp", "--pipeline-parallel-size"),
        at_least=1,
    )
    dp: int = option(
        1,
        "Data-parallel ranks, among which vLLM shares requests out; with other engines only for a model with experts.",
        flags=("--dp", "--data-parallel-size"),
        at_least=1,
        at_most=MOST_RANKS,
    )
    moe_comm_backend: str = option(
        MOE_COMM_BACKENDS[0],
        "How tokens reach experts on other ranks; matters only with --dp.",
        choices=MOE_COMM_BACKENDS,
    )
    model_config_folder: str | None = option(
        None, "Folder with the config.json of the model, or the file itself, instead of the catalogue's entry."
    )
    hardware_config: str | None = option(
        None, "JSON or YAML file that maps GPU names to their peak rates, instead of the catalogue."
    )
    latency_model: str = option(
        "",
        "How step times are predicted: from physical work with trained weights, from peak rates alone, from measured "
        "kernels, or from tables of operators. fitted is a line fitted to one model on one GPU, as `blis fit` learns "
        "from recordings. auto takes coefficients of the deployment, else measured kernels or coefficients of the "
        "nearest one, whichever has the smaller measured error. The default is auto, and trained-physics with "
        "--engine blis.",
        choices=("", AUTO, *LATENCY_MODELS),
        open_to=lambda: LATENCY_MODELS,
        heading="Step times",
    )
    alpha_coeffs: tuple[float, ...] = option(
        (),
        "Coefficients of the time outside of steps, in microseconds; needs --beta-coeffs.",
        at_least=0,
        at_most=LARGEST_COEFFICIENT,
    )
    beta_coeffs: tuple[float, ...] = option(
        (),
        "Coefficients of the step time, instead of those shipped; needs --alpha-coeffs.",
        at_least=0,
        at_most=LARGEST_COEFFICIENT,
    )
    coefficients: str | None = option(
        None,
        "What `blis fit` has learned, for --latency-model fitted, kernels or auto (default: what it has learned from "
        "Qwen3-14B on one H100).",
        metavar="FILE",
    )
    operators: str | None = option(
        None,
        "Times of the operators of a layer, for --latency-model operators. A folder has Vidur's profiling tables; "
        "forest:DIR or polynomial:DIR learn them otherwise. vidur-tables:PREFIX has Vidur's lookup tables "
        "PREFIX_compute.csv, PREFIX_attn_decode.csv and PREFIX_attn_prefill.csv, gzipped or not. aicb:DIR has the "
        "layers of models with experts that AICB measured.",
        metavar="SOURCE",
    )
    moe_backend: str = option(
        AUTO_MOE_BACKEND,
        "Kernels of the experts: marlin acts on those in MXFP4, and is what auto takes on Hopper with --vllm-version "
        "0.11. With --latency-model kernels only.",
        choices=MOE_BACKENDS,
    )
    enforce_eager: bool = option(
        False, "Start the kernels of each step one by one, without CUDA graphs. With --latency-model kernels only."
    )
    network: NetworkOptions = section(NetworkOptions)
    gpu_memory_utilization: float | None = option(
        None,
        "Fraction of GPU memory for weights, activations and KV cache together "
        "(default: 0.92, 0.9 with --engine blis).",
        above=0,
        at_most=1,
        heading="Memory and batch",
    )
    block_size: int | None = option(
        None,
        "Tokens per KV block; by default as the attention kernels of the model take them, 16 for most.",
        flags=("--block-size", "--block-size-in-tokens"),
        at_least=1,
        at_most=1_000_000,
    )
    total_kv_blocks: int | None = option(
        None,
        "KV blocks of one instance (default: what fits in GPU memory beside the weights).",
        flags=("--num-gpu-blocks-override", "--total-kv-blocks"),
        at_least=1,
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Bytes of every GPU for the KV cache, instead of what is left of --gpu-memory-utilization; 0 is no value. With "
        "--engine vllm only.",
        at_least=0,
    )
    cpu_offload_gb: float = option(
        0.0,
        "GiB of every GPU's weights that stay in CPU memory: the KV cache takes their room, and every step reads them "
        "over PCIe. With --engine vllm only.",
        at_least=0,
        at_most=1_000_000,
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of KV-cache entries, such as fp8; auto takes the checkpoint's, else the model's own. With --engine vllm "
        "only.",
    )
    quantization: str = option(
        "",
        "Quantization of a checkpoint of full precision while it is loaded, such as fp8; others state their own. With "
        "--engine vllm only.",
    )
    dtype: str = option(
        "auto",
        "Precision of weights and activations that are not quantised; auto takes the checkpoint's. With --engine vllm "
        "only.",
    )
    enable_expert_parallel: bool = option(
        False, "Give every GPU whole experts instead of a part of each. With --engine vllm only."
    )
    max_num_seqs: int | None = option(
        None,
        "Requests that may run in one step (default: as vLLM chooses by GPU memory, 1024 on an H100; 256 with "
        "--engine blis).",
        flags=("--max-num-seqs", "--max-num-running-reqs"),
        at_least=1,
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Tokens that may be computed in one step. Longer prompts are split (default: as vLLM chooses by GPU memory, "
        "8192 on an H100; 2048 with --engine blis).",
        at_least=1,
    )
    max_num_scheduled_tokens: int | None = option(
        None,
        "Tokens of requests in one step, where these are fewer than --max-num-batched-tokens; the same as "
        "--max-num-batched-tokens with --engine blis.",
        at_least=1,
    )
    max_num_active_seqs: int | None = option(
        None,
        "Requests that are admitted at once, where these are fewer than --max-num-seqs. With --engine vllm only.",
        at_least=1,
    )
    performance_mode: str = option(
        PERFORMANCE_MODES[0],
        "throughput doubles the defaults of --max-num-seqs and --max-num-batched-tokens; interactivity captures more "
        "CUDA graphs in vLLM, which changes nothing here. With --engine vllm only.",
        choices=PERFORMANCE_MODES,
    )
    long_prefill_token_threshold: int = option(
        0, "Prompt tokens one request may compute in one step; 0 leaves it to the token budget.", at_least=0
    )
    long_prefill_token_threshold_adaptive: bool = option(
        False,
        "Raise --long-prefill-token-threshold to an equal share of the token budget for each request. With --engine "
        "vllm only.",
    )
    max_model_len: int = option(
        0, "Most tokens of prompt and output together; 0 takes the model's context window.", at_least=0
    )
    scheduling_policy: str = option(
        "",
        "Order in which waiting requests are considered, as vLLM takes it. With priority the least urgent request also "
        "is preempted first: the same as --scheduler priority-fcfs --preemption-policy priority.",
        choices=("", "fcfs", "priority"),
        heading="Scheduling",
    )
    scheduler: str = option("fcfs", "Order in which waiting requests are considered.", choices=ORDERS)
    priority_policy: str = option(
        "slo-class",
        "How urgent a request is, for the priority schedulers and --preemption-policy priority. It follows from its "
        "own priority or SLO class. All are alike (constant), or the older the more (slo-based) or the less "
        "(inverted-slo). slo-urgency also raises a request that waits near its deadline, and means --scheduler "
        "priority-deadline.",
        choices=PRIORITIES,
    )
    priority_base: str = option(
        "0",
        "Score that a request has at its arrival with --priority-policy slo-based or inverted-slo. There is one for "
        "all, or one for each SLO class, such as critical=4,batch=-1. default is the class of requests without one.",
        metavar="SCORE|CLASS=SCORE,...",
    )
    priority_age_weight: float = option(
        1e-6,
        "What --priority-policy slo-based adds to the score for each microsecond since the arrival, and inverted-slo "
        "takes off it.",
        at_least=0,
        at_most=1,
    )
    preemption_policy: str = option(
        "fcfs",
        "Request that is preempted when KV blocks run out: the last admitted, or the least urgent. With gap the least "
        "urgent also loses its place to an urgent one when --max-num-seqs run. gap means --scheduler "
        "priority-deadline.",
        choices=VICTIMS,
    )
    urgency: UrgencyOptions = section(UrgencyOptions)
    async_scheduling: bool | None = option(
        None,
        "With --engine vllm, compose a step while the one before it executes (default: as --vllm-version does; from "
        "0.15 on).",
    )
    drafts: SpeculationOptions = section(SpeculationOptions)
    enable_chunked_prefill: bool = option(
        True, "Split prompts that exceed the token budget. With --engine vllm only.", heading="With --engine vllm alone"
    )
    disable_chunked_mm_input: bool = option(
        False, "Compute the tokens of a picture or a recording in one step, not in parts. With --engine vllm only."
    )
    enable_prefix_caching: bool = option(True, "Find equal prompt beginnings in the KV cache. With --engine vllm only.")
    scheduler_reserve_full_isl: bool | None = option(
        None,
        "Admit a request only when all of its prompt fits in the KV cache, with --engine vllm only (default: as "
        "--vllm-version does; from 0.19 on).",
    )
    watermark: float = option(
        0.0,
        "Fraction of the KV cache that admissions leave free while others run. With --engine vllm only.",
        at_least=0,
    )
    prefill_schedule_interval: int = option(
        1, "Steps between two that compute prompts while others decode. With --engine vllm only.", at_least=1
    )
    kv_cpu_blocks: int = option(
        0,
        "KV blocks that CPU memory holds, in place of --kv-offloading-size; 0 for none.",
        at_least=0,
        heading="KV cache in CPU memory",
    )
    kv_offloading_size: float | None = option(
        None,
        "GiB of CPU memory to which full KV blocks of all GPUs of an instance are copied, and from which prompts are "
        "loaded over PCIe. With --engine vllm only.",
        above=0,
        metavar="GIB",
    )
    kv_offload_policy: str = option(
        "mirror",
        "With --engine blis, which blocks --kv-cpu-blocks holds. mirror has a copy of every block used, looked for "
        "before each allocation. threshold has free ones, moved there above --kv-offload-threshold and back when an "
        "allocation fails.",
        choices=names_in("blis_sim.engine.kv_cache.blis_cache", "OFFLOAD_POLICIES"),
    )
    kv_offload_threshold: float = option(
        0.9,
        "Share of KV blocks in use above which --kv-offload-policy threshold moves free ones.",
        at_least=0,
        at_most=1,
    )
    kv_transfer_bandwidth: float = option(100.0, "Tokens per microsecond that come back from --kv-cpu-blocks.", above=0)
    kv_transfer_base_latency: int = option(
        0, "Microseconds that each block coming back takes on top.", at_least=0, metavar="US"
    )
    kv_devices: tuple[Device, ...] = ()
    """Devices behind --kv-offloading-size, of a file that describes them."""

    def __post_init__(self) -> None:
        check_options(self)
        if self.watermark >= 1:
            raise OptionError(f"--watermark must be below 1, got {self.watermark}")
        if self.beta_coeffs and not self.alpha_coeffs:
            raise OptionError("--beta-coeffs needs --alpha-coeffs")
        if self.alpha_coeffs and not self.beta_coeffs:
            raise OptionError("--alpha-coeffs needs --beta-coeffs")
        if self.beta_coeffs and self.latency_model == "roofline":
            raise OptionError("--alpha-coeffs and --beta-coeffs cannot be used with --latency-model roofline")
        if self.coefficients is not None and self.beta_coeffs:
            raise OptionError("--coefficients cannot be used with --alpha-coeffs and --beta-coeffs")
        if self.kv_cpu_blocks and self.kv_offloading_size is not None:
            raise OptionError("--kv-cpu-blocks and --kv-offloading-size say the same; give one of them")
        offloads = self.kv_cpu_blocks > 0 or self.kv_offloading_size is not None
        problem = engine_problem(self.engine, self.pp, self.block_size, offloads, self.speculation is not None)
        if problem is not None:
            raise OptionError(problem)
        _ = self.age_scores  # making them checks them
        self._check_limits()
        self._take_scheduling_policy()
        for name, value in implied_policies(self).items():
            object.__setattr__(self, name, value)

    def _check_limits(self) -> None:
        """Apply the engine's meaning of --max-num-scheduled-tokens, and refuse limits that vLLM refuses."""
        if self.engine == "blis" and self.max_num_scheduled_tokens is not None:
            if self.max_num_batched_tokens not in (None, self.max_num_scheduled_tokens):
                raise OptionError(
                    "--max-num-scheduled-tokens and --max-num-batched-tokens are one setting with --engine blis, got "
                    f"{self.max_num_scheduled_tokens} and {self.max_num_batched_tokens}"
                )
            object.__setattr__(self, "max_num_batched_tokens", self.max_num_scheduled_tokens)

    def _take_scheduling_policy(self) -> None:
        """Let --scheduling-policy stand for the two flags that it is. Raises OptionError when they contradict it."""
        meant = {"fcfs": ("fcfs", "fcfs"), "priority": ("priority-fcfs", "priority")}.get(self.scheduling_policy)
        if meant is None:
            return
        given = (("scheduler", self.scheduler), ("preemption_policy", self.preemption_policy))
        for (name, value), implied in zip(given, meant, strict=True):
            if value not in ("fcfs", implied):
                flag = "--" + name.replace("_", "-")
                raise OptionError(f"--scheduling-policy {self.scheduling_policy} means {flag} {implied}, got {value}")
            object.__setattr__(self, name, implied)

    @property
    def age_scores(self) -> AgeScores:
        """The scores of --priority-base and --priority-age-weight. Raises OptionError."""
        return AgeScores(*parse_base_scores(self.priority_base), self.priority_age_weight)

    @property
    def counts_blocks(self) -> bool:
        """Whether KV blocks are counted from the memory that is left, instead of given."""
        return self.total_kv_blocks is None and not self.kv_cache_memory_bytes

    @property
    def memory_utilization(self) -> float:
        """The fraction of GPU memory that the flag sets, else that of the engine."""
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        if self.engine == "vllm":
            return self.release.gpu_memory_utilization
        return engine_defaults(self.engine).gpu_memory_utilization

    @property
    def release(self) -> VllmRelease:
        """The defaults of --vllm-version."""
        return VLLM_RELEASES[self.vllm_version]

    @property
    def step_times(self) -> str:
        """The latency model that the flag names, else that of the engine; `auto` where the deployment decides."""
        return self.latency_model or engine_defaults(self.engine).latency_model

    def kernel_placement(self, tp: int, gpu: "GpuSpec") -> "KernelPlacement":
        """Return the flags that decide which kernels run on `tp` GPUs."""
        from blis_sim.engine.latency.model_operations import KernelPlacement

        return KernelPlacement(
            tp=tp,
            expert_parallel=self.enable_expert_parallel,
            kv_cache_dtype=self.kv_cache_dtype,
            quantization=self.quantization,
            dtype=self.dtype,
            moe_backend=self.moe_backend,
            eager=self.enforce_eager,
            has_triton_experts=self.release.has_triton_experts or not gpu.is_hopper,
            dp=self.dp if self.engine == "vllm" else 1,
            tuned_as_in_11_on="" if self.release.has_later_tuning else gpu.name,
            composes_ahead=self.engine != "vllm" or flag_or(self.async_scheduling, self.release.async_scheduling),
            latent_host_us=self.release.latent_host_us if self.engine == "vllm" else 0,
        )

    def check_coefficients(self, *other_latency_models: str) -> None:
        """Raise OptionError for --coefficients or --operators that no latency model reads, on whatever instance."""
        models = (self.step_times, *other_latency_models)
        if self.coefficients is not None and not {"fitted", "kernels", AUTO}.intersection(models):
            raise OptionError(f"--coefficients needs --latency-model fitted or kernels, got {self.step_times}")
        if self.operators is not None and "operators" not in models:
            raise OptionError(f"--operators needs --latency-model operators, got {self.step_times}")

    @property
    def speculation(self) -> "Speculation | None":
        """The settings of speculative decoding, None without it. Raises OptionError."""
        return self.drafts.speculation
