"""`blis models`: the models of the catalogue, and the memory plan of one of them or of a folder."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from blis_sim.cli.model_plan import (
    ModelPlan,
    StepLimits,
    as_json,
    as_table,
    fitting_gpus,
    free_bytes,
    known_latency_models,
)
from blis_sim.engine.hf_config import context_window
from blis_sim.engine.latency.catalogue.entries import has_model, load_gpu, model_entry, model_names
from blis_sim.engine.latency.catalogue.files import config_path
from blis_sim.engine.latency.catalogue.reader import load_checkpoint, load_model
from blis_sim.engine.memory.planner import MemoryLayout, PlanRequest, check_fits, plan_layout
from blis_sim.options import check_options, option

__all__ = ["ModelsOptions", "run"]

_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOptions:
    """A model and the deployment to plan, or a part of names to look for."""

    model: str = option(
        "",
        "Model to plan: a name of the catalogue or a local folder with a Hugging Face config.json. A part of a name "
        "lists the models that have it, nothing lists all.",
        positional=True,
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
    hardware: str = option(
        "",
        "GPU to plan for, such as H100 (default: the catalogue's choice for the model, else a B200 for checkpoints in "
        "NVFP4 and an H100 for others).",
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Bytes of every GPU for the KV cache (default: what is free beside weights and activations).", at_least=1
    )
    gpu_memory_utilization: float = option(
        0.92, "Fraction of GPU memory to use when --kv-cache-memory-bytes is not given.", above=0, at_most=1
    )
    max_model_len: int | None = option(
        None, "Longest request in tokens (default: the context window of the model).", at_least=1
    )
    max_num_batched_tokens: int = option(8192, "Tokens of one step.", at_least=1)
    max_num_seqs: int = option(1024, "Requests of one step.", at_least=1)
    block_size: int | None = option(
        None, "Tokens per KV block (default: as the attention kernels of the model take them).", at_least=1
    )
    kv_cache_dtype: str = option("auto", "Type of the KV cache: auto, fp8 or another of vLLM's.")
    quantization: str = option("", "Quantisation of the weights, where the checkpoint has none of its own.")
    dtype: str = option("auto", "Precision of weights and activations that are not quantised.")
    enable_prefix_caching: bool = option(True, "Keep the KV blocks of finished requests for others to find.")
    json: bool = option(False, "Print one JSON object: the plan, or the list under the key models.")

    def __post_init__(self) -> None:
        check_options(self)


def run(options: ModelsOptions) -> int:
    """Print the plan of a model, or the models with a part of a name. Raises EngineError for an impossible plan."""
    is_one = has_model(options.model) or config_path(Path(options.model)) is not None if options.model else False
    found = [] if is_one else _search(options.model)
    if found:
        sys.stdout.write(_list_as_json(found) if options.json else _list_as_table(found))
        return 0
    plan = _plan(options)
    sys.stdout.write(json.dumps(as_json(plan)) + "\n" if options.json else as_table(plan))
    return 0


def _search(part: str) -> list[str]:
    """Return the models that have every word of `part` in their name, their organisation or another name."""
    words = part.lower().replace("/", " ").split()
    return [name for name in model_names() if all(word in _all_names(name) for word in words)]


def _all_names(name: str) -> str:
    entry = model_entry(name)
    return " ".join((entry.organisation.lower(), entry.name, *entry.aliases))


def _list_as_json(names: list[str]) -> str:
    entries = [model_entry(name) for name in names]
    rows = [
        {
            "model": entry.name,
            "organisation": entry.organisation,
            "aliases": list(entry.aliases),
            "hardware": entry.gpu,
            "tp": entry.tp,
            "max_model_len": context_window(entry.checkpoint.config, entry.name),
            "source": entry.source,
        }
        for entry in entries
    ]
    return json.dumps({"models": rows}) + "\n"


def _list_as_table(names: list[str]) -> str:
    width = max(map(len, names)) + 2
    lines = [f"{'model':<{width}}{'organisation':<16}{'GPUs':<12}{'context':>12}  other names\n"]
    for name in names:
        entry = model_entry(name)
        context = context_window(entry.checkpoint.config, name)
        gpus = f"{entry.tp} x {entry.gpu}"
        line = f"{name:<{width}}{entry.organisation:<16}{gpus:<12}{context:>12,}  {', '.join(entry.aliases)}"
        lines.append(f"{line.rstrip()}\n")
    return "".join(lines)


def _plan(options: ModelsOptions) -> ModelPlan:
    name, checkpoint = load_checkpoint(options.model)
    entry = model_entry(name) if config_path(Path(options.model)) is None else None
    hardware = options.hardware or (entry.gpu if entry else "")
    gpu = load_gpu(hardware) if hardware else None
    # The catalogue's number of GPUs applies only to the catalogue's GPU.
    tp = options.tp or (entry.tp if entry and not options.hardware and options.pp == 1 else 1)
    request = PlanRequest(
        config=checkpoint.config,
        model=name,
        hf_quant_config=checkpoint.hf_quant_config,
        tp=tp,
        pp=options.pp,
        expert_parallel=options.enable_expert_parallel,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        block_size=options.block_size or 0,
        max_model_len=options.max_model_len or 0,
        max_num_batched_tokens=options.max_num_batched_tokens,
        enable_prefix_caching=options.enable_prefix_caching,
        capability_major=int(gpu.compute_capability) if gpu else 0,
    )
    layout = plan_layout(request)
    gpu = gpu or load_gpu("B200" if layout.capability_major >= 10 else "H100")
    limits = StepLimits(options.gpu_memory_utilization, options.max_num_batched_tokens, options.max_num_seqs)
    kv_bytes = options.kv_cache_memory_bytes or free_bytes(layout, gpu, limits)
    return ModelPlan(
        request=request,
        layout=_fitting_layout(layout, request, kv_bytes),
        gpu=gpu,
        kv_bytes=kv_bytes,
        context_window=layout.limits.max_model_len,
        fits=fitting_gpus(request, limits),
        latency_models=known_latency_models(load_model(options.model), gpu, tp),
        entry=entry,
    )


def _fitting_layout(layout: MemoryLayout, request: PlanRequest, kv_bytes: int) -> MemoryLayout:
    """Return the layout with the context window of the model cut to what fits, as `--max-model-len auto` does.

    Raises EngineError for a length that was given and does not fit, and where no request fits.
    """
    longest = layout.longest_request_tokens(max(layout.num_blocks(kv_bytes), 0)) if kv_bytes > 0 else 0
    if request.max_model_len or longest < 1 or longest >= layout.limits.max_model_len:
        check_fits(layout, kv_bytes)
        return layout
    return plan_layout(request._replace(max_model_len=longest))
