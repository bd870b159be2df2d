"""`blis gpus`: the GPUs of the catalogue with their published figures."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from blis_sim.engine.latency.catalogue import GpuEntry, gpu_entry, gpu_names, load_gpu
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.model_operations import KernelPlacement
from blis_sim.engine.specs import GpuSpec
from blis_sim.options import option
from blis_sim.options.printing import check_printed, format_option, json_option, printed_format
from blis_sim.options.provenance import Provenance, command_line
from blis_sim.report.report import Report, Section
from blis_sim.report.tables import TextTable, facts_table, flat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blis_sim.engine.latency.confidence import Sureness

__all__ = ["GpusOptions", "run"]

_USUAL = "llama-3.1-8b-instruct"
"""The model whose errors are stated for a GPU on which nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusOptions:
    """A GPU to describe, or a part of names to look for."""

    gpu: str = option(
        "",
        "GPU to describe, such as H100; case, spaces, dashes and the maker's name make no difference. A part of a name "
        "lists the GPUs that have it, nothing lists all.",
        positional=True,
        suggested=gpu_names,
    )
    format: str = format_option()
    json: bool = json_option()

    def __post_init__(self) -> None:
        check_printed(self)


def run(options: GpusOptions) -> int:
    """Print one GPU or a list. Raises EngineError for an unknown name."""
    part = options.gpu.lower()
    found = [name for name in gpu_names() if part in name.lower()]
    is_one = not found or part in (name.lower() for name in found)
    if is_one and part:
        report = _one_gpu(options, gpu_entry(load_gpu(options.gpu).name))
    else:
        report = _gpu_list(options, [gpu_entry(name) for name in found])
    report.print(printed_format(options))
    return 0


def _gpu_list(options: GpusOptions, entries: list[GpuEntry]) -> Report:
    rates = {
        "TFLOP/s": "tflops",
        "FP8": "tflops_fp8",
        "FP4": "tflops_fp4",
        "TB/s": "bandwidth_tb_s",
        "GiB": "memory_gib",
        "NVLink GB/s": "nvlink_gb_s",
        "PCIe GB/s": "pcie_gb_s",
    }
    rows = [
        {"GPU": each.gpu.name}
        | {title: f"{rate:g}" if (rate := getattr(each.gpu, name)) else "-" for title, name in rates.items()}
        for each in entries
    ]
    found = [_as_json(each) for each in entries]
    return Report(
        title="GPUs",
        origin=lambda: Provenance(command=command_line("blis gpus", options)),
        data=lambda: {"gpus": found},
        rows=lambda: map(flat, found),
        sections=lambda: [Section(table=TextTable.of(rows))],
    )


def _one_gpu(options: GpusOptions, entry: GpuEntry) -> Report:
    stated = _stated_errors(entry.gpu)
    least_sure = max(stated.values(), key=lambda each: each.expected_error)
    return Report(
        title=f"GPU {entry.gpu.name}",
        origin=lambda: Provenance(
            command=command_line("blis gpus", options), gpu=entry.gpu.name, latency_model=least_sure.latency_model,
            step_error=least_sure.step_error, sureness=least_sure.as_json,
        ),
        data=lambda: {**_as_json(entry), "sureness": {what: each.as_json for what, each in stated.items()}},
        sections=lambda: [Section(table=facts_table(_gpu_facts(entry, stated)))],
    )  # fmt: skip


def _as_json(entry: GpuEntry) -> dict[str, object]:
    return {
        **asdict(entry.gpu),
        "aliases": list(entry.aliases),
        "source": entry.source,
        "assumed": list(entry.assumed),
    }


def _stated_errors(gpu: GpuSpec) -> "dict[str, Sureness]":
    """Return the errors to expect on a GPU, by the kind of server measured on it; without one, for a usual model."""
    from blis_sim.engine.latency.confidence import statements_on
    from blis_sim.engine.latency.registry import one_model  # Imported here: it loads numpy, and a list needs neither.

    measured = statements_on(gpu.name)
    if measured:
        return {kind.text: each for kind, each in measured.items()}
    found = one_model([LatencyChoice(model=load_model(_USUAL), gpu=gpu, tp=1, placement=KernelPlacement(tp=1))])
    return {f"{_USUAL}, as nothing was measured on {gpu.name}": found.least_sure}


def _gpu_facts(entry: GpuEntry, stated: "Mapping[str, Sureness]") -> list[tuple[str, str]]:
    gpu = entry.gpu
    nvlink = f"{gpu.nvlink_gb_s:g} GB/s in each direction among {gpu.nvlink_gpus} GPUs" if gpu.nvlink_gb_s else "none"
    narrow = (("8-bit floats", gpu.tflops_fp8), ("4-bit floats", gpu.tflops_fp4), ("8-bit integers", gpu.tflops_int8))
    peaks = [f"{gpu.tflops:g} in 16 bits", *(f"{rate:g} in {name}" for name, rate in narrow if rate)]
    return [
        ("GPU", gpu.name),
        ("other names", ", ".join(entry.aliases) or "none"),
        ("peaks", f"{', '.join(peaks)} (dense TFLOP/s)"),
        ("memory", f"{gpu.memory_gib:g} GiB, {gpu.cuda_memory_gib:g} for CUDA, at {gpu.bandwidth_tb_s:g} TB/s"),
        ("NVLink", nvlink),
        ("PCIe", f"{gpu.pcie_gb_s:g} GB/s in each direction"),
        ("network", f"{gpu.network_gb_s:g} GB/s in each direction to a node of {gpu.gpus_per_node} GPUs"),
        ("capability", f"{gpu.compute_capability:g}"),
        ("MFU", f"{gpu.mfu_prefill:g} of prefill, {gpu.mfu_decode:g} of decode, for the roofline model"),
        ("source", entry.source),
        ("not published", ", ".join(entry.assumed) or "nothing"),
        *(("predictions", f"{what}: {each.latency_model}, {each.text}") for what, each in stated.items()),
    ]
