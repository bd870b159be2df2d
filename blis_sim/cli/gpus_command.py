"""`blis gpus`: the GPUs of the catalogue with their published figures."""

import json
import sys
from dataclasses import asdict, dataclass

from blis_sim.engine.latency.catalogue.entries import GpuEntry, gpu_entry, gpu_names, load_gpu
from blis_sim.options import check_options, option

__all__ = ["GpusOptions", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusOptions:
    """A GPU to describe, or a part of names to look for."""

    gpu: str = option(
        "",
        "GPU to describe, such as H100; case, spaces, dashes and the maker's name make no difference. A part of a name "
        "lists the GPUs that have it, nothing lists all.",
        positional=True,
    )
    json: bool = option(False, "Print one JSON object: the GPU, or the list under the key gpus.")

    def __post_init__(self) -> None:
        check_options(self)


def run(options: GpusOptions) -> int:
    """Print one GPU or a list. Raises EngineError for an unknown name."""
    part = options.gpu.lower()
    found = [name for name in gpu_names() if part in name.lower()]
    is_one = not found or part in (name.lower() for name in found)
    if is_one and part:
        entry = gpu_entry(load_gpu(options.gpu).name)
        sys.stdout.write(json.dumps(_as_json(entry)) + "\n" if options.json else _as_lines(entry))
        return 0
    entries = [gpu_entry(name) for name in found]
    if options.json:
        sys.stdout.write(json.dumps({"gpus": [_as_json(entry) for entry in entries]}) + "\n")
    else:
        sys.stdout.write(_as_table(entries))
    return 0


def _as_json(entry: GpuEntry) -> dict[str, object]:
    return {
        **asdict(entry.gpu),
        "aliases": list(entry.aliases),
        "source": entry.source,
        "assumed": list(entry.assumed),
    }


def _as_table(entries: list[GpuEntry]) -> str:
    width = max(len(entry.gpu.name) for entry in entries) + 2
    head = (
        f"{'GPU':<{width}}{'TFLOP/s':>9}{'FP8':>8}{'FP4':>8}{'TB/s':>7}{'GiB':>7}{'NVLink GB/s':>13}{'PCIe GB/s':>11}\n"
    )
    return head + "".join(
        f"{gpu.name:<{width}}{gpu.tflops:>9g}{_rate(gpu.tflops_fp8):>8}{_rate(gpu.tflops_fp4):>8}"
        f"{gpu.bandwidth_tb_s:>7g}{gpu.memory_gib:>7g}{_rate(gpu.nvlink_gb_s):>13}{gpu.pcie_gb_s:>11g}\n"
        for gpu in (entry.gpu for entry in entries)
    )


def _as_lines(entry: GpuEntry) -> str:
    gpu = entry.gpu
    nvlink = f"{gpu.nvlink_gb_s:g} GB/s in each direction among {gpu.nvlink_gpus} GPUs" if gpu.nvlink_gb_s else "none"
    narrow = (("8-bit floats", gpu.tflops_fp8), ("4-bit floats", gpu.tflops_fp4), ("8-bit integers", gpu.tflops_int8))
    peaks = [f"{gpu.tflops:g} in 16 bits", *(f"{rate:g} in {name}" for name, rate in narrow if rate)]
    rows = [
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
    ]
    return "".join(f"{name:<14}{value}\n" for name, value in rows)


def _rate(value: float) -> str:
    return f"{value:g}" if value else "-"
