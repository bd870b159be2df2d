"""How well replays predict measured deployments of many models, GPUs and precisions.

    python -m workshop.silicon CSV [--latency-model M] [--write FILE] [--processes N]

CSV has one deployment per row: the flags of the server, the load, and the mean time to first token and per output token
in milliseconds. docs/silicon.md describes its columns. Each row is replayed as its load generator sent it: ten
requests for each that is allowed in flight, sent as soon as the cap lets them. Nothing is learned from the rows.
290 rows take 70 to 110 s of a CPU for each predictor where the engine is compiled, as `pip install .` does.
"""

import argparse
import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.request import Request, UniqueBlocks
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate_reissued
from traces import TraceRow
from workshop.ending import run_command
from workshop.points import release_of

PREAMBLE = """# Deployments of many models, GPUs and precisions

`blis replay` was compared with deployments whose mean time to first token (TTFT) and time per output token (TPOT) were
measured by others. They ran vLLM 0.11 to 0.19 with Llama 3.1, gpt-oss, MiniMax-M2.5, Kimi-K2.5 and others on H100,
H200, B200 and B300. Each row is replayed as its load generator sent it. There are ten requests for each that is allowed
in flight, and each is sent as soon as that cap lets it. They have 80 to 100 % of the lengths stated. The flags of the
servers are those of the scripts of the day. Nothing is learned from the rows. Absolute errors of the means; repeated
measurements differ by 0.6 % in TPOT and 3.7 % in TTFT (medians).

*gap* are rows of an unknown load generator. *doubtful* are rows that beat what the GPU can do. *kv-limited* are rows
whose KV cache was too small for all requests in flight. None of these is among **main**.

The tables are produced by `python -m workshop.silicon CSV --write docs/silicon.md`. CSV has the columns `model_path`,
`system`, `precision`, `tp`, `ep`, `isl`, `osl`, `conc`, `mbt` (tokens of a step), `kv` (type of the KV cache),
`kv_tokens`, `kind`, `ttft` and `tpot` in milliseconds, `cls`, `set` and `backend_version`.
"""
PREDICTORS = ("trained-physics", "fitted", "kernels")
SYSTEMS = {
    "a100_sxm": "A100-SXM", "b200_sxm": "B200", "b300_sxm": "B300", "gb200": "GB200", "gb300": "GB300",
    "h100_sxm": "H100", "h200_sxm": "H200", "l40s": "L40S", "rtx_pro_6000_server": "RTX-PRO-6000",
}  # fmt: skip
SEED = 1
PROMPTS_PER_PLACE = 10
LEAST_LENGTH = 0.8
BLOCK_TOKENS = 16
_MODELOPT = {"fp8": "FP8", "fp4": "NVFP4"}


@dataclass(frozen=True, slots=True)
class MeasuredDeployment:
    """One row: what ran, and what was measured, in milliseconds."""

    model: str
    system: str
    precision: str
    tp: int
    ep: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    max_num_batched_tokens: int
    kv_dtype: str
    kv_tokens: int
    has_random_lengths: bool
    ttft_ms: float
    tpot_ms: float
    kind: str
    group: str
    version: str = ""
    """The release of vLLM, empty where none is stated."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The means of a replay, in milliseconds; `problem` is why there are none."""

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    problem: str = ""


def read_rows(path: Path) -> list[MeasuredDeployment]:
    """Read the deployments of a file."""
    with path.open(newline="") as file:
        return [
            MeasuredDeployment(
                model=row["model_path"],
                system=row["system"],
                precision=row["precision"],
                tp=int(row["tp"]),
                ep=int(row["ep"]),
                input_tokens=int(row["isl"]),
                output_tokens=int(row["osl"]),
                concurrency=int(float(row["conc"])),
                max_num_batched_tokens=int(row["mbt"]),
                kv_dtype=row["kv"],
                kv_tokens=int(row["kv_tokens"]),
                has_random_lengths=row["kind"] == "infx",
                ttft_ms=float(row["ttft"]),
                tpot_ms=float(row["tpot"]),
                kind=row["cls"],
                group=row["set"],
                version=row["backend_version"] if row["backend_version"][:1].isdigit() else "",
            )
            for row in csv.DictReader(file)
        ]


def checkpoint_folder(row: MeasuredDeployment, folder: Path) -> Path:
    """Write the config.json of a row's checkpoint, with its quantization, and return its folder."""
    package = find_spec("aiconfigurator_core")
    if package is None or package.origin is None:
        raise EngineError("the configurations of the models need: pip install aiconfigurator-core==0.12.0")
    configs = Path(package.origin).parent / "model_configs"
    owner, name = row.model.split("/")
    names = [f"{owner}--{name}", *(each.name.removesuffix("_config.json") for each in configs.glob(f"*--{name}_*"))]
    names += [each.name.removesuffix("_config.json") for each in configs.glob("*--*_config.json")
              if each.name.split("--")[1].removesuffix("_config.json").lower() in _plain(name)]  # fmt: skip
    if row.precision == "fp4":
        names = [f"nvidia--{name}-NVFP4", *names]
    found = next((each for each in names if (configs / f"{each}_config.json").is_file()), None)
    if found is None:
        raise EngineError(f"no configuration of {row.model}")
    config = json.loads((configs / f"{found}_config.json").read_text())
    quantization = configs / f"{found}_hf_quant_config.json"
    target = folder / f"{found}-{row.precision}"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(config))
    text = config.get("text_config") or {}
    if quantization.is_file():
        (target / "hf_quant_config.json").write_text(quantization.read_text())
    elif row.precision in _MODELOPT and not (config.get("quantization_config") or text.get("quantization_config")):
        (target / "hf_quant_config.json").write_text(json.dumps(_modelopt(row.precision)))
    return target


def moe_backend(kind: str, system: str) -> str:
    """Return the kernels of experts that rows are taken to have run: Marlin's for MXFP4 on Hopper.

    No row states the kernels: the setting is inferred, because both TPOT and TTFT come out closer with these kernels.
    """
    return "marlin" if kind == "moe-mxfp4" and system in ("h100_sxm", "h200_sxm") else "auto"


def _plain(name: str) -> set[str]:
    """Return names that the configuration of a checkpoint may have without its precision and tuning."""
    lowered = name.lower()
    shorter = lowered.removesuffix("-fp8").removesuffix("-instruct")
    return {lowered, shorter, f"meta-{shorter}"}


def _modelopt(precision: str) -> dict[str, Any]:
    algorithm = _MODELOPT[precision]
    return {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": algorithm, "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]},
    }


def arrivals_of(row: MeasuredDeployment) -> list[Arrival]:
    """Return the requests of a row, all of them due at once."""
    generator = np.random.default_rng(SEED)
    count = PROMPTS_PER_PLACE * row.concurrency
    least = LEAST_LENGTH if row.has_random_lengths else 1.0
    inputs = generator.integers(round(least * row.input_tokens), row.input_tokens + 1, count).tolist()
    outputs = generator.integers(round(least * row.output_tokens), row.output_tokens + 1, count).tolist()
    nothing = TraceRow(request_id=0, input_tokens=0, output_tokens=0, arrival_time_us=0)
    return [
        Arrival(0, Request(str(number), prompt, output, UniqueBlocks(str(number)), output), nothing)
        for number, (prompt, output) in enumerate(zip(inputs, outputs, strict=True))
    ]


def predict(row: MeasuredDeployment, latency_model: str) -> Predicted:
    """Replay a row."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = DeploymentOptions(
                model=row.model,
                model_config_folder=str(checkpoint_folder(row, Path(folder))),
                hardware=SYSTEMS[row.system],
                tp=row.tp,
                enable_expert_parallel=row.ep > 1,
                total_kv_blocks=max(2, row.kv_tokens // BLOCK_TOKENS),
                max_num_batched_tokens=row.max_num_batched_tokens,
                max_model_len=row.input_tokens + row.output_tokens + 256,
                kv_cache_dtype="fp8" if row.kv_dtype == "fp8" else "auto",
                moe_backend=moe_backend(row.kind, row.system) if latency_model == "kernels" else "auto",
                latency_model=latency_model,
                vllm_version=release_of(row.version),
            )
            deployment = resolve(options)
    except (EngineError, ValueError) as error:
        return Predicted(problem=str(error))
    engine = Engine(deployment.config, deployment.latency, reports_steps=False)
    record = simulate_reissued(engine, arrivals_of(row), row.concurrency).requests
    return Predicted(float(record.ttft_us.mean()) / 1e3, float(record.itl_mean_us.mean()) / 1e3)


def _task(task: tuple[MeasuredDeployment, str]) -> Predicted:
    return predict(*task)


def main() -> int:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--latency-model", choices=PREDICTORS, default=None, help="only this predictor")
    parser.add_argument("--write", type=Path, default=None)
    parser.add_argument("--rows", type=Path, default=None, help="write each row's prediction as CSV")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    rows = read_rows(arguments.csv)
    names = PREDICTORS if arguments.latency_model is None else (arguments.latency_model,)
    tasks = [(row, name) for name in names for row in rows]
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = list(pool.map(_task, tasks, chunksize=8))
    predictions = {name: found[index * len(rows) : (index + 1) * len(rows)] for index, name in enumerate(names)}
    text = "\n".join(report(rows, predictions)).rstrip("\n") + "\n"
    sys.stdout.write(text)
    if arguments.write is not None:
        arguments.write.write_text(text)
    if arguments.rows is not None:
        _write_rows(arguments.rows, rows, predictions)
    return 0


def _write_rows(path: Path, rows: list[MeasuredDeployment], predictions: dict[str, list[Predicted]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["predictor", *MeasuredDeployment.__slots__, "ttft_sim", "tpot_sim", "problem"])
        for name, found in predictions.items():
            for row, each in zip(rows, found, strict=True):
                values = [getattr(row, field) for field in MeasuredDeployment.__slots__]
                writer.writerow([name, *values, each.ttft_ms, each.tpot_ms, each.problem])


def report(rows: list[MeasuredDeployment], predictions: dict[str, list[Predicted]]) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield PREAMBLE
    for name, found in predictions.items():
        yield f"## {name}\n"
        yield "| rows | deployments | TPOT median | TPOT mean | TTFT median | TTFT mean |"
        yield "|---|---|---|---|---|---|"
        pairs = list(zip(rows, found, strict=True))
        main_pairs = [pair for pair in pairs if pair[0].group == "main"]
        yield _line("**main**", main_pairs)
        for kind in sorted({row.kind for row, _ in main_pairs}):
            yield _line(kind, [pair for pair in main_pairs if pair[0].kind == kind])
        for group in sorted({row.group for row in rows} - {"main"}):
            yield _line(f"*{group}*", [pair for pair in pairs if pair[0].group == group])
        problems = sorted({each.problem for each in found if each.problem})
        yield ""
        for problem in problems:
            yield f"not predicted: {problem}\n"


def _line(name: str, pairs: list[tuple[MeasuredDeployment, Predicted]]) -> str:
    known = [(row, each) for row, each in pairs if not each.problem]
    if not known:
        return f"| {name} | 0 of {len(pairs)} | | | | |"
    tpot = [abs(each.tpot_ms / row.tpot_ms - 1) for row, each in known]
    ttft = [abs(each.ttft_ms / row.ttft_ms - 1) for row, each in known]
    count = f"{len(known)}" if len(known) == len(pairs) else f"{len(known)} of {len(pairs)}"
    cells = " | ".join(f"{each:.1%}" for each in (median(tpot), mean(tpot), median(ttft), mean(ttft)))
    return f"| {name} | {count} | {cells} |"


if __name__ == "__main__":
    run_command(main)
