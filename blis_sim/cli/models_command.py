"""`blis models`: the models of the catalogue, and the memory plan of one of them or of a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_sim.engine.deployment import DEFAULT_GPU, batch_limits, memory_settings
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import LATEST, VLLM_RELEASES
from blis_sim.engine.errors import EngineError
from blis_sim.engine.hf_config import context_window
from blis_sim.engine.latency.catalogue import (
    ModelEntry,
    config_path,
    gpu_names,
    has_model,
    load_gpu,
    model_entry,
    model_names,
)
from blis_sim.engine.latency.catalogue_reader import load_checkpoint, load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.registry import LATENCY_MODELS, build, one_model
from blis_sim.engine.memory.planner import MemoryLayout, check_fits, kv_cache_bytes, planned_blocks, planned_layout
from blis_sim.engine.memory.weights import read_quantization
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.options import option
from blis_sim.options.printing import check_printed, format_option, json_option, printed_format
from blis_sim.options.provenance import Provenance, command_line
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, facts_table, flat

if TYPE_CHECKING:
    from blis_sim.engine.latency.confidence import Sureness

# The memory plan of a model as `blis models` prints it, with its catalogue entry and latency models.

_GIB = 2**30
_TPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """A plan on one GPU type. `kv_bytes` is the memory of each GPU for the KV cache.

    `context_window` is the longest request before it was cut to what fits.
    """

    deployment: DeploymentOptions
    layout: MemoryLayout
    gpu: GpuSpec
    kv_bytes: int
    context_window: int
    fits: Mapping[str, int]
    latency_models: "Mapping[str, Sureness]"
    automatic: str
    """The latency model that commands take for the deployment where none is named; empty where none can time it."""
    entry: ModelEntry | None


def fitting_gpus(options: DeploymentOptions, model: ModelSpec) -> dict[str, int]:
    """Return the fewest GPUs of each type, up to 16, that hold the weights and one request of the longest length."""
    found = {}
    for name in gpu_names():
        gpu = load_gpu(name)
        settings = memory_settings(options, batch_limits(options, gpu, options.max_model_len or model.max_model_len))
        settings = settings._replace(pp=1, kv_cache_memory_bytes=None)
        for tp in _TPS:
            try:
                layout = planned_layout(model, gpu, tp, 1, settings)
                check_fits(layout, kv_cache_bytes(layout, gpu, settings))
            except EngineError:
                continue
            found[name] = tp
            break
    return found


def known_latency_models(choice: LatencyChoice) -> "dict[str, Sureness]":
    """Return the expected errors of every latency model that can time the deployment."""
    from blis_sim.engine.latency.confidence import expected  # Imported here: parts of models load numpy.

    found = {}
    for name in LATENCY_MODELS:
        try:
            build(name, choice)
        except EngineError:
            continue
        found[name] = expected(name, choice)
    return found


def kv_bytes_per_token(layout: MemoryLayout) -> float:
    """Return the bytes of a GPU that a token adds to a request of half of the longest length.

    Windows are full by then, and recurrent states do not grow.
    """
    most = layout.limits.max_model_len
    blocks = layout.blocks_per_request(most) - layout.blocks_per_request(most // 2)
    return blocks * max(layout.block_bytes_per_gpu) / (most - most // 2)


def as_json(plan: ModelPlan) -> dict[str, Any]:
    """Return the plan as one JSON object. The groups belong to a GPU of the first pipeline stage."""
    layout = plan.layout
    blocks = layout.num_blocks(plan.kv_bytes)
    return {
        "model": layout.shape.model,
        "hardware": plan.gpu.name,
        "weight_bytes_per_gpu": list(layout.weight_bytes_per_gpu),
        "kv_groups": [
            {
                "kind": group.kind,
                "layers": len(group.specs),
                "block_size": group.block_tokens,
                "page_bytes": group.page_bytes,
            }
            for group in layout.groups_of_stage(layout.stages[0])
        ],
        "kv_bytes_per_token_per_gpu": kv_bytes_per_token(layout),
        "num_gpu_blocks": blocks,
        "block_size_tokens": layout.granularity[0],
        "hash_block_size_tokens": layout.granularity[1],
        "kv_capacity_tokens": layout.capacity_tokens(blocks),
        "kv_cache_memory_bytes": plan.kv_bytes,
        "kv_cache_dtype": layout.kv_cache_dtype,
        "quantization": layout.quantization or None,
        "max_model_len": layout.limits.max_model_len,
        "context_window": plan.context_window,
        "fits_on": dict(plan.fits),
        "latency_model": plan.automatic or None,
        "latency_models": {name: each.as_json for name, each in plan.latency_models.items()},
        "source": plan.entry.source if plan.entry else None,
        "assumed": list(plan.entry.assumed) if plan.entry else [],
    }


def plan_report(plan: ModelPlan, command: str) -> Report:
    """Return the plan as an answer of a command line."""
    sure = plan.latency_models.get(plan.automatic)
    groups = [
        {
            "KV group": group.kind,
            "layers": str(len(group.specs)),
            "block tokens": f"{group.block_tokens:,}",
            "page bytes": f"{group.page_bytes:,}",
        }
        for group in plan.layout.groups_of_stage(plan.layout.stages[0])
    ]
    return Report(
        title="Memory of",
        origin=lambda: Provenance(
            command=command,
            model=plan.layout.shape.model,
            gpu=plan.gpu.name,
            gpus_per_instance=plan.deployment.tp * plan.deployment.pp,
            latency_model=plan.automatic,
            step_error=None if sure is None else sure.step_error,
            sureness={} if sure is None else sure.as_json,
        ),
        data=lambda: as_json(plan),
        sections=lambda: [
            Section(table=facts_table(_plan_facts(plan))),
            Section(table=TextTable.of(groups)),
        ],
    )


def _plan_facts(plan: ModelPlan) -> list[tuple[str, str]]:
    layout, deployment = plan.layout, plan.deployment
    blocks = layout.num_blocks(plan.kv_bytes)
    longest = f"{layout.limits.max_model_len:,}"
    weights = ", ".join(f"{size / _GIB:.2f}" for size in layout.weight_bytes_per_gpu)
    return [
        ("model", f"{layout.shape.model} (tp {deployment.tp}, pp {deployment.pp}, {plan.gpu.name})"),
        *_entry_origin(plan.entry),
        ("quantization", layout.quantization or "none"),
        ("weights", f"{weights} GiB per GPU" + (", by pipeline stage" if deployment.pp > 1 else "")),
        ("KV cache", f"{plan.kv_bytes / _GIB:.2f} GiB per GPU, type {layout.kv_cache_dtype}"),
        ("KV of a token", f"{kv_bytes_per_token(layout):,.0f} bytes per GPU"),
        ("KV blocks", f"{blocks:,}"),
        ("prefix hits", f"in steps of {layout.granularity[0]:,} tokens"),
        ("capacity", f"{layout.capacity_tokens(blocks):,} tokens in requests of {longest}"),
        *_cut_rows(plan.context_window, longest, layout.limits.max_model_len),
        *_fitting_rows(plan.fits, f"{plan.context_window:,}"),
        *_step_time_rows(plan),
    ]


def _step_time_rows(plan: ModelPlan) -> list[tuple[str, str]]:
    """Return a row for each latency model with its expected errors, the one that is taken first."""
    names = sorted(plan.latency_models, key=lambda name: name != plan.automatic)
    return [
        ("step times", f"{name}{' (taken)' if name == plan.automatic else ''}: {plan.latency_models[name].text}")
        for name in names
    ]


def _entry_origin(entry: ModelEntry | None) -> list[tuple[str, str]]:
    if entry is None:
        return []
    unsure = f"; not checked: {', '.join(entry.assumed)}" if entry.assumed else ""
    names = f"{entry.organisation}/{entry.name}" if entry.organisation else entry.name
    return [("sizes from", f"{entry.source}, of {names}{unsure}")]


def _cut_rows(context_window: int, longest: str, max_model_len: int) -> list[tuple[str, str]]:
    """Return a row for a context window that does not fit, else no row."""
    if max_model_len >= context_window:
        return []
    return [("context", f"one request of {context_window:,} tokens does not fit: cut to {longest}")]


def _fitting_rows(fits: Mapping[str, int], longest: str) -> list[tuple[str, str]]:
    """Return a row for each number of GPUs; one request of the longest length is what has to fit."""
    rows = [
        ("fits on", f"{tp} x {', '.join(name for name, count in fits.items() if count == tp)}")
        for tp in _TPS
        if tp in fits.values()
    ]
    return rows or [("fits on", f"no {_TPS[-1]} GPUs of any type with a request of {longest} tokens")]


_MOST_GPUS = 1024
_DEPLOYED = (
    *("model", "vllm_version", "pp", "enable_expert_parallel", "kv_cache_memory_bytes", "gpu_memory_utilization"),
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size", "kv_cache_dtype", "quantization"),
    *("dtype", "enable_prefix_caching"),
)
"""Flags that are those of a deployment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOptions:
    """A model and the deployment to plan, or a part of names to look for."""

    model: str = option(
        "",
        "Model to plan: a name of the catalogue or a local folder with a Hugging Face config.json. A part of a name "
        "lists the models that have it, nothing lists all.",
        positional=True,
        suggested=model_names,
    )
    tp: int = option(
        0,
        "GPUs that share every layer (default: the catalogue's choice with its choice of GPU, else 1).",
        flags=("--tp", "--tensor-parallel-size"),
        at_least=0,
        at_most=_MOST_GPUS,
    )
    pp: int = option(
        1,
        "Pipeline stages, each with a part of the layers.",
        flags=("--pp", "--pipeline-parallel-size"),
        at_least=1,
        at_most=_MOST_GPUS,
    )
    enable_expert_parallel: bool = option(False, "Give every GPU whole experts instead of a part of all.")
    vllm_version: str = option(
        LATEST, "Release of vLLM whose defaults and kernels the plan has.", choices=tuple(VLLM_RELEASES)
    )
    hardware: str = option(
        "",
        "GPU to plan for, such as H100. The default is the catalogue's choice for the model, else a B200 for "
        "checkpoints in NVFP4 and an H100 for others.",
        suggested=gpu_names,
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Bytes of every GPU for the KV cache (default: what is free beside weights and activations).", at_least=1
    )
    gpu_memory_utilization: float | None = option(
        None,
        "Fraction of GPU memory to use when --kv-cache-memory-bytes is not given (default: the release's).",
        above=0,
        at_most=1,
    )
    max_model_len: int | None = option(
        None, "Longest request in tokens (default: the context window of the model).", at_least=1
    )
    max_num_batched_tokens: int | None = option(
        None, "Tokens of one step (default: the release's on the GPU).", at_least=1
    )
    max_num_seqs: int | None = option(None, "Requests of one step (default: the release's on the GPU).", at_least=1)
    block_size: int | None = option(
        None, "Tokens per KV block (default: as the attention kernels of the model take them).", at_least=1
    )
    kv_cache_dtype: str = option("auto", "Type of the KV cache: auto, fp8 or another of vLLM's.")
    quantization: str = option("", "Quantisation of the weights, where the checkpoint has none of its own.")
    dtype: str = option("auto", "Precision of weights and activations that are not quantised.")
    enable_prefix_caching: bool = option(True, "Keep the KV blocks of finished requests for others to find.")
    format: str = format_option()
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)


def run(options: ModelsOptions) -> int:
    """Print the plan of a model, or the models with a part of a name. Raises EngineError for an impossible plan."""
    is_one = has_model(options.model) or config_path(Path(options.model)) is not None if options.model else False
    found = [] if is_one else _found_models(options.model)
    command = command_line("blis models", options)
    report = (
        _model_list(command, [model_entry(name) for name in found])
        if found
        else plan_report(_planned_model(options), command)
    )
    report.print(printed_format(options))
    return 0


def _found_models(part: str) -> list[str]:
    """Return the models that have every word of `part` in their name, their organisation or another name."""
    words = part.lower().replace("/", " ").split()
    return [name for name in model_names() if all(word in _all_names(name) for word in words)]


def _all_names(name: str) -> str:
    entry = model_entry(name)
    return " ".join((entry.organisation.lower(), entry.name, *entry.aliases))


def _model_list(command: str, entries: list[ModelEntry]) -> Report:
    rows = []
    cells = []
    for entry in entries:
        context = context_window(entry.checkpoint.config, entry.name)
        rows.append(
            {
                "model": entry.name,
                "organisation": entry.organisation,
                "aliases": list(entry.aliases),
                "hardware": entry.gpu,
                "tp": entry.tp,
                "max_model_len": context,
                "source": entry.source,
            }
        )
        gpus, names = f"{entry.tp} x {entry.gpu}", ", ".join(entry.aliases)
        cells.append({"model": entry.name, "context": f"{context:,}", "GPUs": gpus, "other names": names})
    return Report(
        title="Models",
        origin=lambda: Provenance(command=command),
        data=lambda: {"models": rows},
        rows=lambda: map(flat, rows),
        sections=lambda: [Section(table=TextTable.of(cells, 4))],
    )


def _planned_model(options: ModelsOptions) -> ModelPlan:
    name, checkpoint = load_checkpoint(options.model)
    entry = model_entry(name) if config_path(Path(options.model)) is None else None
    quantization = read_quantization(checkpoint.config, checkpoint.hf_quant_config, name, options.quantization)
    usual_gpu = entry.gpu if entry else ""
    gpu = load_gpu(options.hardware or usual_gpu or ("B200" if quantization.has_nvfp4 else DEFAULT_GPU))
    # The catalogue's number of GPUs applies only to the catalogue's GPU.
    tp = options.tp or (entry.tp if entry and not options.hardware and options.pp == 1 else 1)
    given = {each: getattr(options, each) for each in _DEPLOYED if getattr(options, each) is not None}
    deployment = DeploymentOptions(hardware=gpu.name, tp=tp, **given)
    model = load_model(options.model)
    longest = options.max_model_len or model.max_model_len
    settings = memory_settings(deployment, batch_limits(deployment, gpu, longest))
    layout = planned_layout(model, gpu, tp, 1, settings)
    planned_blocks(layout, model, gpu, 1, settings)  # refuses a GPU without room for a block
    kv_bytes = kv_cache_bytes(layout, gpu, settings)
    choice = LatencyChoice(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=options.pp,
        placement=deployment.kernel_placement(tp, gpu),
        max_num_seqs=settings.max_num_seqs,
    )
    latency_models = known_latency_models(choice)
    if not options.max_model_len:
        # The context window is cut to what fits, as `--max-model-len auto` does.
        fitting = layout.longest_request_tokens(layout.num_blocks(kv_bytes))
        if 0 < fitting < longest:
            layout = planned_layout(model, gpu, tp, 1, settings._replace(max_model_len=fitting))
    check_fits(layout, kv_bytes)
    return ModelPlan(
        deployment=deployment,
        layout=layout,
        gpu=gpu,
        kv_bytes=kv_bytes,
        context_window=longest,
        fits=fitting_gpus(deployment, model),
        latency_models=latency_models,
        automatic=one_model([choice]).name if latency_models else "",
        entry=entry,
    )
