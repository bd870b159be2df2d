"""From a configuration to the replicas of a cluster: their pools, memory and limits, and the links between them.

Vidur's planner of memory takes weights of layers, and so many requests of the longest length beside them. Embeddings,
the output head and activations take nothing there. Facts: vidur/utils/memory_planner.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from blis_sim.options import BlisError, OptionError
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.catalogue import DEVICES, FP8, MODELS, NODES, ExpertModel, VidurModel, known
from blis_sim.wings.vidur.requests import max_tokens_of
from blis_sim.wings.vidur.rules import RULES, BatchLimits, BatchRules
from blis_sim.wings.vidur.settings import chosen, is_original, values_of
from replay.metrics_dir.tables import KVTransfer

OUR_GPUS: Mapping[str, str] = {"a100": "A100-SXM", "h100": "H100"}
"""By Vidur's names, those of the catalogue."""
_ORIGINAL_TOKENS = 2
"""Tokens of each request that SimAI plans for models with experts."""
_BYTES = 2
"""Bytes of a weight, and of an element of the KV cache."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Requests of the longest length that fit at once on a replica, and its KV blocks."""

    num_requests: int | None
    """None where blocks decide."""
    num_blocks: int


def layer_parameters(model: VidurModel, tp: int) -> int:
    """Return the weights of a layer on one GPU."""
    embedding, heads, kv_heads = model.embedding_dim, model.num_q_heads, -(-model.num_kv_heads // tp)
    attention = embedding * model.head_size * (heads // tp + 2 * kv_heads) + embedding * model.head_size * (heads // tp)
    return attention + (3 if model.use_gated_mlp else 2) * embedding * model.mlp_hidden_dim // tp


def planned(
    model: VidurModel, gpu_gib: float, margin: float, tp: int, pp: int, max_tokens: int, block_size: int
) -> MemoryPlan:
    """Return the plan of a replica. Raises OptionError where no request fits."""
    kv_heads = -(-model.num_kv_heads // tp)
    weight_bytes = _BYTES * layer_parameters(model, tp) * (model.num_layers // pp)
    # The layers are those of the model, not of a stage: each stage holds the requests of all stages.
    request_bytes = 2 * _BYTES * model.head_size * kv_heads * max_tokens * model.num_layers
    num_requests = int((gpu_gib * 2**30 * (1 - margin) - weight_bytes) // request_bytes)
    if num_requests < 1:
        raise OptionError(
            f"{model.name} with {max_tokens} tokens of context does not fit in {gpu_gib:g} GiB on {tp} x {pp} GPUs"
        )
    return MemoryPlan(num_requests, max_tokens // block_size * num_requests * pp)


def planned_with_experts(
    model: ExpertModel,
    gpu_gib: float,
    margin: float,
    tp: int,
    pp: int,
    num_gpus: int,
    max_tokens: int,
    dtype: str,
    *,
    is_original: bool,
) -> MemoryPlan:
    """Return the plan of a replica, where `num_gpus` share the experts. Raises OptionError where no request fits.

    The original counts two tokens of each request, with all heads on every GPU. Latents are on every GPU.
    """
    width = 1 if dtype == FP8 else 2
    weight_bytes = model.weight_bytes(tp, num_gpus, dtype) / pp
    if is_original:
        request_bytes = width * model.kv_values(_ORIGINAL_TOKENS)
    else:
        request_bytes = (
            width * model.kv_values(max_tokens) // (1 if model.kv_lora_rank else min(tp, model.num_kv_heads))
        )
    num_requests = int((gpu_gib * 2**30 * (1 - margin) - weight_bytes) // request_bytes)
    if num_requests < 1:
        raise OptionError(f"{model.aicb_name} does not fit in {gpu_gib:g} GiB on each of {num_gpus} GPUs")
    return MemoryPlan(num_requests, num_requests)


def planned_as_vllm(
    model: VidurModel, device: str, gpu_gib: float, margin: float, tp: int, pp: int, max_tokens: int, block_size: int
) -> tuple[MemoryPlan, tuple[str, ...]]:
    """Return the plan of vLLM for a replica, and notes on it. Raises OptionError.

    Vidur's plan stands for that of a model or a GPU which the catalogue does not have.
    """
    from blis_sim.engine.deployment import resolve
    from blis_sim.engine.deployment_options import DeploymentOptions

    try:
        options = DeploymentOptions(
            model=model.name,
            hardware=OUR_GPUS.get(device, device),
            tp=tp,
            pp=pp,
            engine="sarathi" if block_size > 1 else "lightllm",
            latency_model="roofline",
            gpu_memory_utilization=1 - margin,
            max_model_len=max_tokens,
            block_size=block_size,
        )
        return MemoryPlan(None, resolve(options).config.total_kv_blocks), ()
    except BlisError as error:
        plan = planned(model, gpu_gib, margin, tp, pp, max_tokens, block_size)
        return plan, (f"KV blocks are counted as Vidur counts them: {error}",)


WIDTHS = {"fp8": 1, "int8": 1, "float16": 2, "fp16": 2, "bfloat16": 2, "bf16": 2, "float32": 4, "fp32": 4}
WIDTHS |= {"float64": 8, "fp64": 8}
"""Bytes of an element by the name of its type."""
_ORIGINAL_GBIT = 2**30
"""Bits per second that SimAI takes a Gbit/s for."""
_GBIT = 10**9


def bytes_per_s(gbit_s: float, *, is_original: bool) -> float:
    """Return the rate of a link."""
    return gbit_s * (_ORIGINAL_GBIT if is_original else _GBIT) / 8


@dataclass(frozen=True, slots=True)
class Transfers:
    """The links between replicas, and the KV cache that they carry."""

    model: VidurModel
    bytes_per_s: float
    dtype: str
    is_original: bool

    def of(self, prompt_tokens: int) -> KVTransfer:
        """Return the transfer of a prompt on a link of its own."""
        width = WIDTHS[self.dtype]
        size_bytes = width * self._values(prompt_tokens)
        return KVTransfer(
            size_bytes=size_bytes,
            duration_s=size_bytes / self.bytes_per_s,
            bytes_per_s=self.bytes_per_s,
            bytes_per_value=width,
            dtype=self.dtype,
        )

    def _values(self, prompt_tokens: int) -> int:
        """Return the elements of a KV cache.

        The original counts the first output token, and full heads in all layers of all models.
        """
        model = self.model
        per_token = 2 * model.num_kv_heads * model.head_size * model.num_layers
        if self.is_original:
            return (prompt_tokens + 1) * per_token
        return prompt_tokens * per_token if model.experts is None else model.experts.kv_values(prompt_tokens)


def transfers_of(model: VidurModel, replica: dict[str, Any], *, is_original: bool) -> Transfers:
    """Return the transfers of a configuration. Raises OptionError."""
    dtype = replica["pd_p2p_comm_dtype"]
    if dtype not in WIDTHS:
        raise OptionError(f"--replica_config_pd_p2p_comm_dtype must be one of {', '.join(WIDTHS)}, got {dtype!r}")
    rate = bytes_per_s(replica["pd_p2p_comm_bandwidth"], is_original=is_original)
    return Transfers(model, rate, dtype, is_original)


SPLIT_WISE = "split_wise"


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas that are alike."""

    num_replicas: int
    tp: int
    num_stages: int
    limits: BatchLimits
    num_gpus: int
    """GPUs of all replicas, which share the experts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster to simulate: one pool, or one for prompts and one for decodes."""

    model: VidurModel
    pools: tuple[Pool, ...]
    rules: type[BatchRules]
    is_original: bool
    notes: tuple[str, ...] = ()
    """Notes on assumptions."""
    transfers: Transfers | None = None
    """The transfer of KV caches from one pool to the other."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A pool without its limits."""

    num_replicas: int
    tp: int
    num_stages: int
    num_gpus: int


def cluster_of(options: Any) -> Cluster:
    """Return the cluster of a command line. Raises OptionError."""
    replica = values_of(options, vidur.REPLICA)
    model: VidurModel = known(MODELS, "--replica_config_model_name", replica["model_name"])
    known(DEVICES, "--replica_config_device", replica["device"])
    num_per_node, _ = known(NODES, "--replica_config_network_device", replica["network_device"])
    shapes = _shapes(options, replica)
    for shape in shapes:
        _check_placement(model, shape.tp, shape.num_stages, num_per_node)
    plans: list[MemoryPlan] = []
    notes: list[str] = []
    for shape in shapes:
        plan, said = _plan(options, model, replica, shape)
        plans.append(plan)
        notes.extend(each for each in said if each not in notes)
    scheduler = chosen(options, vidur.REPLICA_SCHEDULER)
    if values_of(options, scheduler)["num_blocks"] is not None:
        notes = []
    pools: list[Pool] = []
    for shape, plan in zip(shapes, plans, strict=True):
        # In the original the first replica to count its blocks counts those of all.
        counted = replace(plan, num_blocks=plans[0].num_blocks) if is_original(options) else plan
        limits = _limits(options, scheduler, counted, shape.num_stages)
        pools.append(Pool(shape.num_replicas, shape.tp, shape.num_stages, limits, shape.num_gpus))
    name = {"vllm": "vidur-vllm", SPLIT_WISE: "splitwise"}.get(scheduler.name, scheduler.name.replace("_", "-"))
    transfers = transfers_of(model, replica, is_original=is_original(options)) if len(pools) > 1 else None
    return Cluster(model, tuple(pools), RULES[name], is_original(options), tuple(notes), transfers)


def _shapes(options: Any, replica: dict[str, Any]) -> list[_Shape]:
    """Return the pools of the cluster. Raises OptionError."""
    number = options.cluster_config_num_replicas
    tp, pp = replica["tensor_parallel_size"], replica["num_pipeline_stages"]
    schedulers = [chosen(options, each).name for each in (vidur.GLOBAL_SCHEDULER, vidur.REPLICA_SCHEDULER)]
    if SPLIT_WISE not in schedulers:
        return [_Shape(number, tp, pp, tp * pp * number)]
    if schedulers != [SPLIT_WISE, SPLIT_WISE]:
        raise OptionError(
            f"--{vidur.GLOBAL_SCHEDULER.flag} and --{vidur.REPLICA_SCHEDULER.flag} must both be {SPLIT_WISE} or "
            f"neither, got {schedulers[0]} and {schedulers[1]}"
        )
    ratio, given = replica["pd_node_ratio"], replica["num_prefill_replicas"]
    if given is not None and given >= number:
        raise OptionError(
            f"--replica_config_num_prefill_replicas must leave one of the {number} replicas for decodes, got {given}"
        )
    if given is None and not 0 < ratio < 1:
        raise OptionError(f"--replica_config_pd_node_ratio must be between 0 and 1 with {SPLIT_WISE}, got {ratio:g}")
    if number < 2:
        raise OptionError(f"--cluster_config_num_replicas must be at least 2 with {SPLIT_WISE}, got {number}")
    counted = given if given is not None else int(number * ratio)
    num_prefill = min(max(counted, 1), number - 1)
    if is_original(options):
        # The number that is given counts GPUs, and the ratio decides which replicas compute prompts.
        num_prefill = sum(index < number * ratio for index in range(number))
        if num_prefill == number:
            raise OptionError(
                f"--replica_config_pd_node_ratio leaves no replica for decodes, got {ratio:g} of {number}"
            )
    found: list[_Shape] = []
    for phase, own, all_counted in (
        ("prefill", num_prefill, counted),
        ("decode", number - num_prefill, number - counted),
    ):
        own_tp = replica[f"{phase}_tensor_parallel_size"] or tp
        own_pp = replica[f"{phase}_num_pipeline_stages"] or pp
        if is_original(options):
            # Sizes of a phase count GPUs and change nothing else.
            found.append(_Shape(own, tp, pp, own_tp * own_pp * all_counted))
        else:
            found.append(_Shape(own, own_tp, own_pp, own_tp * own_pp * own))
    return found


def _plan(
    options: Any, model: VidurModel, replica: dict[str, Any], shape: _Shape
) -> tuple[MemoryPlan, tuple[str, ...]]:
    """Return the memory of a replica, and notes on assumptions. Raises OptionError."""
    _, gib = DEVICES[replica["device"]]
    margin, max_tokens = replica["memory_margin_fraction"], max_tokens_of(options)
    block_size = values_of(options, chosen(options, vidur.REPLICA_SCHEDULER))["block_size"]
    tp, pp = shape.tp, shape.num_stages
    if model.experts is not None:
        dtype, original = replica["pd_p2p_comm_dtype"], is_original(options)
        plan = planned_with_experts(
            model.experts, gib, margin, tp, pp, shape.num_gpus, max_tokens, dtype, is_original=original
        )
        return replace(plan, num_blocks=max_tokens // block_size * (plan.num_requests or 1) * pp), ()
    if is_original(options):
        return planned(model, gib, margin, tp, pp, max_tokens, block_size), ()
    return planned_as_vllm(model, replica["device"], gib, margin, tp, pp, max_tokens, block_size)


def _limits(options: Any, scheduler: vidur.Group, plan: MemoryPlan, num_stages: int) -> BatchLimits:
    values, max_tokens = values_of(options, scheduler), max_tokens_of(options)
    limits = BatchLimits(
        num_blocks=values["num_blocks"] or plan.num_blocks,
        block_size_tokens=values["block_size"],
        max_num_seqs=values["batch_size_cap"],
        max_num_batched_tokens=values.get("chunk_size") or values.get("max_tokens_in_batch") or max_tokens,
        max_model_len=max_tokens,
        num_stages=num_stages,
        max_full_length_seqs=plan.num_requests,
        watermark_fraction=values["watermark_blocks_fraction"],
        max_waiting_iterations=values.get("max_waiting_iters", 10),
        is_original=is_original(options),
    )
    if scheduler.name == "lightllm":
        _check_lightllm(scheduler, limits)
    return limits


def _check_placement(model: VidurModel, tp: int, pp: int, num_per_node: int) -> None:
    gpus = tp * pp
    if gpus > num_per_node and gpus % num_per_node:
        raise OptionError(
            f"--replica_config_tensor_parallel_size times --replica_config_num_pipeline_stages must fit in a node of "
            f"{num_per_node} GPUs, or fill several, got {tp} x {pp}"
        )
    if model.num_layers % pp:
        raise OptionError(
            f"--replica_config_num_pipeline_stages must divide the {model.num_layers} layers of {model.name}, got {pp}"
        )
    if model.num_q_heads % tp or model.embedding_dim % tp:
        raise OptionError(
            f"--replica_config_tensor_parallel_size must divide the {model.num_q_heads} heads of {model.name}, got {tp}"
        )


def _check_lightllm(scheduler: vidur.Group, limits: BatchLimits) -> None:
    if limits.block_size_tokens != 1:
        raise OptionError(f"--{scheduler.prefix}_block_size must be 1, got {limits.block_size_tokens}")
    if limits.num_stages != 1:
        raise OptionError(f"--replica_config_num_pipeline_stages must be 1 with lightllm, got {limits.num_stages}")
