"""`blis kernels bake`: the kernel times of one deployment as a file for --kernel-profile."""

import sys
from dataclasses import dataclass
from pathlib import Path

from blis_sim.engine.deployment_options import GPU_NAMES, MODEL_NAMES
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import default_deployment, load_model
from blis_sim.options import check_options, check_outputs, option, written_file

__all__ = ["KernelsBakeOptions", "run"]

_MOST_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsBakeOptions:
    """A model, where it runs, and the file to write."""

    model: str = option(
        help="Model to bake: a name of the catalogue or a local folder with a Hugging Face config.json.",
        positional=True,
        suggested=MODEL_NAMES,
    )
    hardware: str = option(
        "", "GPU, such as H100 (default: the catalogue's choice for the model).", suggested=GPU_NAMES
    )
    tp: int = option(
        0,
        "GPUs that share every layer (default: the catalogue's choice for the model).",
        flags=("--tp", "--tensor-parallel-size"),
        at_least=0,
        at_most=_MOST_GPUS,
    )
    enable_expert_parallel: bool = option(False, "Give every GPU whole experts instead of a part of all.")
    kv_cache_dtype: str = option("auto", "Type of the KV cache: auto, fp8 or another of vLLM's.")
    quantization: str = option("", "Quantisation of the weights, where the checkpoint has none of its own.")
    dtype: str = option("auto", "Precision of weights and activations that are not quantised.")
    output: str = written_file("kernel times", "Write the kernel times here.", "kernels.json", flags=("--output", "-o"))

    def __post_init__(self) -> None:
        check_options(self)
        check_outputs(self)


def run(options: KernelsBakeOptions) -> int:
    """Look the kernels up and write them. Raises EngineError for kernels without measurements."""
    from blis_sim.engine.latency.kernel_profiles import deployment_name, digest_of, grids_of, profile_text
    from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
    from traces.text_file import write_text

    gpu_name, tp = default_deployment(options.model) or ("", 0)
    gpu_name, tp = options.hardware or gpu_name, options.tp or tp
    if not gpu_name or not tp:
        raise EngineError(f"--hardware and --tp must be given: the catalogue has no default for {options.model}")
    model, gpu = load_model(options.model), load_gpu(gpu_name)
    placement = KernelPlacement(
        tp=tp,
        expert_parallel=options.enable_expert_parallel,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        dtype=options.dtype,
    )
    grids = grids_of(model, gpu, placement)
    digest = digest_of(operations_of(model, placement), gpu.name)
    text = profile_text(grids, deployment_name(model, gpu, placement), digest)
    write_text(Path(options.output), text)
    for note in (*([grids.scaling] if grids.scaling else []), *grids.notes):
        sys.stderr.write(f"blis kernels bake: {note}\n")
    sys.stderr.write(f"blis kernels bake: wrote {options.output}, {len(text):,} bytes\n")
    return 0
