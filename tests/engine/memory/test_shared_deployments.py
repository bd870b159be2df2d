"""KV capacity of measured deployments is within a tenth of what is known of it, for nine in ten."""

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_sim.engine.memory.planner import PlanRequest, available_kv_bytes, plan_layout
from blis_sim.engine.specs import GpuSpec
from tests.engine.memory.test_shared_plans import configs as configs

LEAST_CLOSE, MOST_ERROR = 0.9, 0.1
CUDA_MEMORY_GIB = {"h100_sxm": 79.11, "h200_sxm": 139.8, "b200_sxm": 178.35, "b300_sxm": 268.0}
DENSE_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
CHECKPOINTS = {
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): "nvidia--MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "fp4"): "nvidia--Kimi-K2.7-Code-NVFP4",
    ("meta-llama/Llama-3.1-70B", "fp4"): "meta-llama--Meta-Llama-3.1-70B",
    ("meta-llama/Llama-3.1-70B", "fp8"): "meta-llama--Meta-Llama-3.1-70B",
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): "meta-llama--Meta-Llama-3.1-8B",
}
"""Configs of checkpoints in the precision of a row where they go by another name."""


def _request(configs: Path, row: Mapping[str, str]) -> PlanRequest:
    model = CHECKPOINTS.get((row["model_path"], row["precision"]), row["model_path"].replace("/", "--"))
    config: dict[str, Any] = json.loads((configs / f"{model}_config.json").read_text())
    is_llama = config["model_type"] == "llama"
    if is_llama and row["precision"] == "fp4":
        config["quantization_config"] = DENSE_NVFP4
    return PlanRequest(
        config=config,
        model=model,
        tp=int(row["tp"]),
        quantization="fp8" if is_llama and row["precision"] == "fp8" else "",
        kv_cache_dtype=row["kv"],
        max_num_batched_tokens=int(row["mbt"]),
        max_model_len=16384,
        capability_major=9 if row["system"].startswith("h") else 10,
    )


def _kv_tokens(configs: Path, row: Mapping[str, str]) -> int:
    layout = plan_layout(_request(configs, row))
    gpu = GpuSpec(name=row["system"], tflops=1, bandwidth_tb_s=1, memory_gib=CUDA_MEMORY_GIB[row["system"]])
    free = available_kv_bytes(
        layout,
        gpu,
        gpu_memory_utilization=float(row["util"]),
        max_num_batched_tokens=int(row["mbt"]),
        max_num_seqs=1024,
    )
    return layout.num_blocks(free) * layout.block_tokens


def test_nine_in_ten_measured_deployments_have_their_kv_tokens_within_a_tenth(shared: Path, configs: Path) -> None:
    with (shared / "real" / "silicon" / "subset.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    close = [row for row in rows if abs(_kv_tokens(configs, row) / int(row["kv_tokens"]) - 1) <= MOST_ERROR]
    assert len(close) >= LEAST_CLOSE * len(rows)
