"""Makes the tables of measured kernels that ship, from the files of the distribution aiconfigurator-core.

    python -m workshop.kernel_tables FOLDER

FOLDER is `aiconfigurator_core/systems` of an installation of aiconfigurator-core 0.12.0, whose Parquet files have one
measured time per row. Only what the operations of a step can ask for is taken over. Where two files, or two kernels in
one file, have a time of the same operation, the one that the distribution prefers is taken. Needs pyarrow.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.latency.kernel_tables import (
    ALL_REDUCE,
    DECODE,
    DELTA_NET,
    EXPERTS,
    HEADS,
    LATENT,
    MATMUL,
    MEASURED,
    PROMPT,
    SPARSE,
    TIMES,
    Peaks,
    decode_least,
    matmul_least,
    write_table,
)
from blis_sim.engine.latency.operations import HeadAttention, Matmul
from workshop.ending import run_command

SYSTEMS: Mapping[str, str] = {
    "A100-SXM": "a100_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "H100": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""Names of the catalogue's GPUs in the distribution."""
VLLM, TRTLLM, SGLANG = "vllm", "trtllm", "sglang"
BACKENDS: Mapping[str, str] = {VLLM: "0.24.0", TRTLLM: "1.3.0rc20", SGLANG: "0.5.14"}
"""Engines with measured kernels, and the version measured of each."""
OLDER_BACKENDS: Mapping[tuple[str, str], str] = {
    ("a100_sxm", VLLM): "0.14.0",
    ("a100_sxm", TRTLLM): "1.0.0",
    ("a100_sxm", SGLANG): "0.5.10",
}
KERNELS_OF_HEADS = (
    "vllm_flash_attn_fa3",
    "vllm_flash_attn_fa4",
    "vllm_flash_attn_fa2",
    "vllm_flash_attn",
    "vllm_flashinfer_trtllmprefill",
    "vllm_flashinfer_trtllmdecode",
    "vllm_flashinfer_fiprefill",
    "vllm_flashinfer_fidecode",
    "vllm_triton_attn",
    "default",
)
"""Attention kernels that were measured, in vLLM's order of preference."""
EVENLY_CHOSEN = 16
"""Most experts of a model that are chosen about equally often, as they are trained; more experts are not."""
_MATMUL_WEIGHTS = {
    "bfloat16": (VLLM, "bfloat16"),
    "fp8": (VLLM, "fp8"),
    "block fp8": (TRTLLM, "fp8_block"),
    "nvfp4": (VLLM, "nvfp4"),
    "int8": (VLLM, "int8_wo"),
    "int4": (VLLM, "int4_wo"),
}
_EXPERT_WEIGHTS = {
    "bfloat16": (VLLM, "bfloat16"),
    "fp8": (VLLM, "fp8"),
    "block fp8": (VLLM, "fp8_block"),
    "nvfp4": (VLLM, "nvfp4"),
    "int4": (VLLM, "int4_wo"),
    "mxfp4": (VLLM, "w4a16_mxfp4"),
    "mxfp4 with mxfp8": (SGLANG, "w4a8_mxfp4_mxfp8"),
}
_LATENT_WEIGHTS = {"bfloat16": "bfloat16", "block fp8": "fp8_block"}
_PEAKS = ("bfloat16_tc_flops", "fp8_tc_flops", "fp4_tc_flops", "mem_bw")
_EXPERT_SIZES = ("hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size", "moe_ep_size")
_DELTA_NET_SIZES = ("d_model", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim", "d_conv")
_DELTA_NET_KERNELS = {
    (PROMPT, "convolution"): ("causal_conv1d_fn",),
    (PROMPT, "rule"): ("chunk_gated_delta_rule", "chunk_gated_delta_rule_flashinfer", "chunk_gated_delta_rule_triton"),
    (DECODE, "convolution"): ("causal_conv1d_update",),
    (DECODE, "rule"): ("fused_recurrent_gated_delta_rule_packed_decode", "fused_sigmoid_gating_delta_rule_update"),
}
_FEWEST_POINTS = 4
"""A collection of fewer points was broken off."""
_OTHER_EXPERTS = "sglang_mxfp4_flashinfer_trtllm_moe"
"""Kernels of experts that are not those of `Experts`."""
Row = dict[str, Any]
Arrays = dict[str, npt.NDArray[Any]]
Cells = dict[tuple[int, ...], float]


class Source(NamedTuple):
    """One GPU in the distribution's folder."""

    folder: Path
    system: str

    def rows(self, file: str, backend: str, *, later_first: bool = False) -> Iterator[Row]:
        """Yield the measurements of an operation, the preferred ones first: of one file the first or the last ones."""
        import pyarrow.parquet
        from aiconfigurator_core._aiconfigurator_core import resolve_op_sources_report_json

        version = OLDER_BACKENDS.get((self.system, backend), BACKENDS[backend])
        data = self.folder / "data" / self.system
        report = resolve_op_sources_report_json(str(self.folder), str(data), backend, version, f"{file}.parquet")
        for record in json.loads(report)["records"]:
            if record["exists"]:
                rows = pyarrow.parquet.read_table(record["path"]).to_pylist()
                for row in reversed(rows) if later_first else rows:
                    if record["ks_filter"] is None or row["kernel_source"] in record["ks_filter"]:
                        yield row

    def peaks(self) -> npt.NDArray[np.float64]:
        """Return operations per second in 16, 8 and 4 bits, and bytes per second, as the distribution takes them."""
        import yaml

        rates = yaml.safe_load((self.folder / f"{self.system}.yaml").read_text())["gpu"]
        return np.array([float(rates.get(name) or 0.0) for name in _PEAKS])


def curves(cells: Mapping[tuple[int, ...], Mapping[int, float]], prefix: str) -> Arrays:
    """Return the times of many sizes, each of them along one axis; what lies between its points is interpolated."""
    cells = {key: curve for key, curve in cells.items() if len(curve) >= _FEWEST_POINTS}
    if not cells:
        return {}
    points = sorted({point for curve in cells.values() for point in curve})
    keys = sorted(cells)
    times = np.full((len(keys), len(points)), np.nan)
    for index, key in enumerate(keys):
        measured = sorted(cells[key])
        found = np.interp(points, measured, [cells[key][each] for each in measured])
        inside = (np.array(points) >= measured[0]) & (np.array(points) <= measured[-1])
        times[index, inside] = found[inside]
    return {
        f"{prefix}.sizes": np.array(keys, dtype=np.int32),
        f"{prefix}.points": np.array(points, dtype=np.int64),
        f"{prefix}{TIMES}": times,
    }


def lattices(groups: Mapping[str, Cells], prefix: str) -> Arrays:
    """Return the times of groups that have the same axes."""
    axes = [sorted({cell[axis] for cells in groups.values() for cell in cells}) for axis in range(3)]
    arrays: Arrays = {
        f"{prefix}.axis{number}": np.array(axis, dtype=np.int32) for number, axis in enumerate(axes) if axis
    }
    for name, cells in groups.items():
        times = np.full([len(axis) for axis in axes], np.nan)
        for cell, time_us in cells.items():
            times[tuple(axis.index(at) for axis, at in zip(axes, cell, strict=True))] = time_us
        arrays[f"{prefix}.{name}{TIMES}"] = times
    return arrays


def matmul(source: Source) -> Arrays:
    """Return the multiplications."""
    arrays: Arrays = {}
    for backend in (VLLM, TRTLLM):
        found: dict[str, dict[tuple[int, ...], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for row in source.rows("gemm_perf", backend):
            found[row["gemm_dtype"]][row["n"], row["k"]].setdefault(row["m"], 1e3 * row["latency"])
        for weights, (of_backend, name) in _MATMUL_WEIGHTS.items():
            if of_backend == backend:
                arrays |= curves(_possible(found[name], weights, source.peaks()), weights)
    return arrays


def _possible(
    cells: Mapping[tuple[int, ...], dict[int, float]], weights: str, rates: npt.NDArray[np.float64]
) -> dict[tuple[int, ...], dict[int, float]]:
    """Return the times of multiplications, those that beat the peak rates raised to what these allow."""
    peaks = Peaks(*(1e-6 * rates).tolist())
    possible: dict[tuple[int, ...], dict[int, float]] = {}
    for (rows, columns), curve in cells.items():
        least = matmul_least(Matmul(rows, columns, weights), np.array(list(curve), dtype=np.float64), peaks).us
        times = np.maximum(least, list(curve.values())).tolist()
        possible[rows, columns] = dict(zip(curve, times, strict=True))
    return possible


def experts(source: Source) -> Arrays:
    """Return routed experts, chosen as unevenly as models with so many experts choose them."""
    arrays: Arrays = {}
    for backend in (VLLM, SGLANG):
        found: dict[str, dict[tuple[int, ...], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for row in source.rows("moe_perf", backend):
            expected = "balanced" if row["num_experts"] <= EVENLY_CHOSEN else "power_law_1.2"
            if row["distribution"] == expected and row["kernel_source"] != _OTHER_EXPERTS:
                key = tuple(row[size] for size in _EXPERT_SIZES)
                found[row["moe_dtype"]][key].setdefault(row["num_tokens"], 1e3 * row["latency"])
        for weights, (of_backend, name) in _EXPERT_WEIGHTS.items():
            if of_backend == backend:
                arrays |= curves(found[name], weights)
    return arrays


def all_reduce(source: Source) -> Arrays:
    """Return sums over GPUs, started from CUDA graphs, by the number of values."""
    found: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for row in source.rows("custom_allreduce_perf", VLLM):
        if not row["kernel_source"].endswith("_eager"):
            found[(row["num_gpus"],)].setdefault(row["message_size"], 1e3 * row["latency"])
    return curves(found, "bfloat16")


def _kernels_first(row: Row) -> int:
    return KERNELS_OF_HEADS.index(row["kernel_source"]) if row["kernel_source"] in KERNELS_OF_HEADS else 99


def head_attention(source: Source) -> Arrays:
    """Return attention with keys and values of heads. Zero KV heads stand for as many as there are query heads."""
    arrays: Arrays = {}
    for phase, file in ((PROMPT, "context_attention_perf"), (DECODE, "generation_attention_perf")):
        groups: dict[str, dict[int, Cells]] = defaultdict(lambda: defaultdict(dict))
        for row in source.rows(file, VLLM):
            heads, kv_heads = row["num_heads"], row["num_key_value_heads"]
            kv_heads = 0 if kv_heads == heads else kv_heads
            name = f"{kv_heads}.{row['head_dim']}.{row.get('window_size') or 0}.{row['kv_cache_dtype']}"
            length = row["isl"] if phase == PROMPT else row["isl"] + row["step"]
            cell = heads, length, row["batch_size"]
            groups[name][_kernels_first(row)].setdefault(cell, 1e3 * row["latency"])
        preferred = {name: kernels[min(kernels)] for name, kernels in groups.items()}
        if phase == DECODE:
            peaks = Peaks(*(1e-6 * source.peaks()).tolist())
            preferred = {name: _decodes_possible(name, cells, peaks) for name, cells in preferred.items()}
        arrays |= lattices(preferred, phase)
    return arrays


def _decodes_possible(name: str, cells: Cells, peaks: Peaks) -> Cells:
    """Return the times of decodes, those that beat the peak rates raised to what these allow: they were read from the
    cache of the GPU."""
    kv_heads, head_size, window, kv_dtype = name.split(".")
    heads, context, requests = np.array(list(cells), dtype=np.float64).T
    attention = HeadAttention(
        0 if kv_heads == "0" else -1, int(kv_heads), int(head_size), int(window), kv_dtype
    )  # only whether both numbers of heads are equal matters
    least = decode_least(attention, heads, requests, context, peaks).us
    return dict(zip(cells, np.maximum(least, list(cells.values())).tolist(), strict=True))


def latent_attention(source: Source) -> Arrays:
    """Return modules of latent attention: prompts as vLLM computes them, decodes as TensorRT-LLM does."""
    arrays: Arrays = {}
    files = ((PROMPT, "mla_context_module_perf", VLLM), (DECODE, "mla_generation_module_perf", TRTLLM))
    for phase, file, backend in files:
        groups: dict[str, Cells] = defaultdict(dict)
        for row in source.rows(file, backend):
            weights = next((ours for ours, theirs in _LATENT_WEIGHTS.items() if theirs == row["gemm_type"]), None)
            if weights is not None:
                length = row["isl"] if phase == PROMPT else row["isl"] + row["step"]
                cell = row["num_heads"], length, row["batch_size"]
                groups[f"{row['kv_cache_dtype']}.{weights}"].setdefault(cell, 1e3 * row["latency"])
        arrays |= lattices(groups, phase)
    return arrays


def sparse_attention(source: Source) -> Arrays:
    """Return modules of sparse latent attention: prompts as vLLM computes them, decodes as SGLang does."""
    arrays: Arrays = {}
    files = ((PROMPT, "dsa_context_module_perf", VLLM), (DECODE, "dsa_generation_module_perf", SGLANG))
    for phase, file, backend in files:
        groups: dict[str, Cells] = defaultdict(dict)
        for row in source.rows(file, backend, later_first=True):
            if row["gemm_type"] != "fp8_block" or "skip" in row["op_name"]:
                continue
            name = f"{row['architecture']}.{row['kv_cache_dtype']}"
            name = f"{row['step']}.{name}" if phase == PROMPT else name
            length = row["isl"] if phase == PROMPT else row["isl"] + row["step"]
            groups[name].setdefault((row["num_heads"], length, row["batch_size"]), 1e3 * row["latency"])
        arrays |= lattices(groups, phase)
    return arrays


def delta_net(source: Source) -> Arrays:
    """Return gated delta nets, and the convolutions before them."""
    rows = list(source.rows("gdn_perf", VLLM))
    arrays: Arrays = {}
    for (phase, part), kernels in _DELTA_NET_KERNELS.items():
        groups: dict[str, Cells] = defaultdict(dict)
        of_phase = "context" if phase == PROMPT else "generation"
        for row in rows:
            if row["kernel_source"] in kernels and row["phase"] == of_phase:
                name = ".".join(str(row[size]) for size in _DELTA_NET_SIZES)
                groups[name].setdefault((1, row["seq_len"], row["batch_size"]), 1e3 * row["latency"])
        arrays |= lattices(groups, f"{phase}.{part}")
    return arrays


TABLES: Mapping[str, Callable[[Source], Arrays]] = {
    MATMUL: matmul,
    EXPERTS: experts,
    ALL_REDUCE: all_reduce,
    HEADS: head_attention,
    LATENT: latent_attention,
    SPARSE: sparse_attention,
    DELTA_NET: delta_net,
}


def main() -> int:
    """Write the files, and print their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", type=Path, default=MEASURED)
    arguments = parser.parse_args()
    arguments.into.mkdir(exist_ok=True)
    sizes: dict[str, int] = {}
    for gpu, system in SYSTEMS.items():
        source = Source(arguments.folder, system)
        for kind, make in TABLES.items():
            arrays = make(source)
            path = arguments.into / f"{gpu}.{kind}.npz"
            path.unlink(missing_ok=True)
            if arrays:
                write_table(path, {"peaks": source.peaks(), **arrays})
                sizes[path.name] = path.stat().st_size
                print(f"{path.name}: {sizes[path.name]:,} bytes")
    print(f"{len(sizes)} files, {sum(sizes.values()):,} bytes")
    return 0


if __name__ == "__main__":
    run_command(main)
