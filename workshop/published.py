"""How well a replay predicts published experiments on other models, beside the published errors of other simulators.

    python -m workshop.published RECORDINGS [--coefficients FILE] [--write docs/published.md]

RECORDINGS holds `experiments`, folders of what inference-perf reports of a real server (`exp-config.yaml`,
`profile.yaml`, `summary_lifecycle_metrics.json`), and `llmservingsim`, recordings with the server's own time stamps
(`requests.jsonl`, `meta.json`). Nothing is learned from the experiments; of each recording with time stamps, the first
half is learned from and the second predicted, and all of it is predicted with nothing learned.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from blis_sim.engine.latency.wrapped import EngineAlone
from blis_sim.engine.request import PrefixGroupBlocks, Request, UniqueBlocks
from calibrate.fit.learn import Score, learn, score
from calibrate.fit.recording import Recording
from calibrate.fit.terms import FittedDeployment
from replay.arrivals import Arrival
from replay.simulation.simulate import simulate
from traces import TraceRow
from workshop.ending import run_command

FITTED, KERNELS, DEFAULT = "fitted", "kernels", "trained-physics"
SEED = 1
STAMPED_PHASES = 4
DRAIN_S = 10
"""Enough for all requests of a stage to be answered."""

PREAMBLE = """# Other models: published experiments

These are eight experiments on real vLLM 0.15 servers with H100 GPUs, of which only aggregates are known. inference-perf
sent prompts of about 575 tokens, at two rates for ten minutes each. The prompts soon were all in the prefix cache. Its
"constant" rate has random gaps (exponential, scaled to fill the ten minutes), and so have the requests simulated here.
Nothing is learned from them. `fitted` is what `--latency-model fitted` does without `--coefficients`: its [coefficients
were learned](../blis_sim/engine/latency/catalogue/qwen3-14b-h100.coefficients.yaml) from Qwen3-14B on one GPU.
`kernels` adds up [measured kernels](kernels.md); `auto` takes that for all eight. `trained-physics` is the default of
`--engine blis`. Errors of the means over both rates are signed. The time between tokens is the mean duration after the
first token over the tokens asked for.

The tables are produced by `python -m workshop.published RECORDINGS --write docs/published.md`.
"""

WHY = """## What the errors come from

Physics is expected of the coefficients that one model on one GPU cannot separate (`weights` and `layer_us`, `decodes`
and `request_us`, `prompt_us` of prompts in the cache). The expected values were chosen with these experiments at hand.
The same values serve all of them. The next table
shows whether they carry over. Decode steps of all but one of these models and Qwen3-14B were fitted together. Those of
the one left out were predicted, at the batch sizes measured:

| terms | median error of steps | largest | learned from Qwen3-14B alone: median | largest |
|---|---|---|---|---|
| weights, kv, all_reduce, step_us, prompt_us, request_us | 7.7% | 19.2% | 7.7% | 17.3% |
| the same with layer_us and decodes | 5.1% | 12.5% | 2.6% | 5.9% |

- Errors grow in the simulation. At a given rate, slower steps mean more requests in flight and so still slower steps.
  Llama-2-7b, which has no grouped KV heads, spends 10 of 16.6 ms on KV at 20 requests/s. There an error of a step grows
  2.7 times.
- Llama-2-70b at 20 requests/s has 111 requests in flight on average, of 128 that the server runs at a time. How long
  the others wait hangs on a few percent of step time and on the arrivals, which are not known one by one.
- Means contain effects outside of any model of steps: the first requests waited for compilation. Mixtral's first stage
  has a mean TTFT of 63 ms and a median of 53 ms.
- Not known of the servers: sampling parameters, GPU clocks, CPUs, attention kernels. One run each: no noise floor.
"""

OTHERS = """## Other simulators

Median error of the means as published for 38 such experiments; most simulators were run on fewer of them. The figures
are not ours, and the sets are not the same.

| simulator | experiments | E2E | TTFT | ITL |
|---|---|---|---|---|
| BLIS, trained-physics | 38 | 6.8% | 18.4% | 6.5% |
| BLIS, evolved | 38 | 9.4% | 20.9% | 9.4% |
| BLIS, roofline | 38 | 33.4% | 649.6% | 44.4% |
| aiconfigurator | 18 | 21.5% | 662% | 13.2% |
| llm-optimizer | 36 | 51.7% | 662% | 60.6% |
| LLMServingSim (first 300 requests) | 32 | 18.8% | 72.5% | 21.8% |
| Vidur | 4 | 619% | 29783% | 259% |
"""

ANOTHER_GPU = """## Another GPU

vLLM 0.19 ran on one RTX PRO 6000 or two, with 300 requests at 10/s, most of which wait for one of 128 places. Time
stamps are those of the server itself. Requests count from their arrival: the engine takes them in between steps, up to
110 ms later. `blis fit` has learned from the first half, and predicts the second. The others as above predict all,
without the time outside of the engine. What `fitted` has learned from an H100 carries over with the peak rates of this
GPU. The sizes of tiles were [chosen](accuracy-limits.md) with this recording at hand. LLMServingSim's errors are those
of its own prediction of all 300, made from kernel profiles.

| recording | predicted by | TTFT MAPE | E2E MAPE | ITL MAPE |
|---|---|---|---|---|
"""
LLMSERVINGSIM = {
    "RTXPRO6000_Llama-3.1-8B": "10.8% | 1.9% | 1.5%",
    "RTXPRO6000_Qwen3-32B": "2.6% | 1.1% | 0.8%",
}


@dataclass(frozen=True, slots=True)
class Means:
    """Means of an experiment in milliseconds."""

    ttft: float
    e2e: float
    itl: float


def main() -> int:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("--coefficients", type=Path, default=LEARNED_COEFFICIENTS)
    parser.add_argument("--write", type=Path, default=None)
    arguments = parser.parse_args()
    text = "\n".join(_report(arguments.recordings, arguments.coefficients)) + "\n"
    sys.stdout.write(text)
    if arguments.write is not None:
        arguments.write.write_text(text)
    return 0


def _report(folder: Path, coefficients: Path) -> Iterator[str]:
    yield PREAMBLE
    experiments = sorted((folder / "experiments").iterdir())
    real = [real_means(each) for each in experiments]
    for name in (FITTED, KERNELS, DEFAULT):
        yield f"## {name}\n"
        yield "| experiment | GPUs | TTFT real, ms | simulated | error | E2E | ITL |"
        yield "|---|---|---|---|---|---|---|"
        errors = []
        for path, known in zip(experiments, real, strict=True):
            found = simulated_means(path, name, coefficients)
            error = Means(found.ttft / known.ttft - 1, found.e2e / known.e2e - 1, found.itl / known.itl - 1)
            errors.append(error)
            yield (
                f"| {path.name} | {config_of(path)['tensor_parallelism']} | {known.ttft:.1f} | {found.ttft:.1f} "
                f"| {error.ttft:+.1%} | {error.e2e:+.1%} | {error.itl:+.1%} |"
            )
        middle = [median(abs(getattr(error, metric)) for error in errors) for metric in ("ttft", "e2e", "itl")]
        yield "| **median of the absolute errors** | | | | " + " | ".join(f"**{each:.1%}**" for each in middle) + " |"
        yield ""
    yield WHY
    yield OTHERS
    yield ANOTHER_GPU.rstrip("\n")
    for path in sorted((folder / "llmservingsim").iterdir()):
        yield f"| {path.name} | blis fit, first half | {_cells(second_half(path))} |"
        for name in (FITTED, KERNELS, DEFAULT):
            yield f"| {path.name} | {name} | {_cells(whole(path, name, coefficients))} |"
        yield f"| {path.name} | LLMServingSim | {LLMSERVINGSIM[path.name]} |"


def _cells(found: Score) -> str:
    assert found.itl is not None
    return " | ".join(f"{each.mape:.1%}" for each in (found.ttft, found.e2e, found.itl))


def config_of(folder: Path) -> dict[str, Any]:
    """Return the settings of an experiment's server."""
    config: dict[str, Any] = yaml.safe_load((folder / "exp-config.yaml").read_text())
    return config


def _profile(folder: Path) -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load((folder / "profile.yaml").read_text())
    return profile


def real_means(folder: Path) -> Means:
    """Return the means that were measured."""
    successes = json.loads((folder / "summary_lifecycle_metrics.json").read_text())["successes"]
    ttft_s = successes["latency"]["time_to_first_token"]["mean"]
    e2e_s = successes["latency"]["request_latency"]["mean"]
    # The report's own time between tokens counts gaps of chunks, two for each token.
    gaps = _profile(folder)["data"]["shared_prefix"]["output_len"] - 1
    return Means(ttft_s * 1e3, e2e_s * 1e3, (e2e_s - ttft_s) * 1e3 / gaps)


def simulated_means(folder: Path, latency_model: str, coefficients: Path) -> Means:
    """Simulate an experiment, and return its means."""
    config = config_of(folder)
    options = DeploymentOptions(
        model=config["model"].split("/")[-1],
        hardware="H100",
        tp=config["tensor_parallelism"],
        max_model_len=config["max_model_len"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_num_seqs=config["max_num_seqs"],
        engine="vllm",
        latency_model=latency_model,
        coefficients=str(coefficients) if latency_model == FITTED else None,
    )
    deployment = resolve(options)
    engine = Engine(deployment.config, deployment.latency, reports_steps=False)
    record = simulate(engine, list(_arrivals(folder))).requests
    assert record.is_completed.all()
    ttft, e2e, itl = (float(column.mean()) for column in (record.ttft_us, record.e2e_us, record.itl_mean_us))
    return Means(ttft / 1e3, e2e / 1e3, itl / 1e3)


def _arrivals(folder: Path) -> Iterator[Arrival]:
    """Random gaps that fill each stage, as inference-perf's load timer draws them; a stage begins when all of the one
    before are answered. Each user sends one prompt again and again."""
    generator = np.random.default_rng(SEED)
    profile = _profile(folder)
    shared = profile["data"]["shared_prefix"]
    summary = json.loads((folder / "summary_lifecycle_metrics.json").read_text())
    input_tokens = round(summary["successes"]["prompt_len"]["mean"])
    num_prompts = shared["num_unique_system_prompts"] * shared["num_users_per_system_prompt"]
    start_us, number = 0.0, 0
    for stage in profile["load"]["stages"]:
        gaps = generator.exponential(size=stage["rate"] * stage["duration"])
        for at_us in start_us + np.cumsum(gaps) * (stage["duration"] * 1e6 / gaps.sum()):
            request_id = f"request_{number}"
            blocks = PrefixGroupBlocks(request_id, f"prompt_{number % num_prompts}", input_tokens // 16)
            output_tokens = shared["output_len"]
            request = Request(request_id, input_tokens, output_tokens, blocks, output_tokens)
            yield Arrival(round(at_us), request, _row(number))
            number += 1
        start_us += (stage["duration"] + DRAIN_S) * 1e6


def _row(number: int) -> TraceRow:
    """Return a row of zeros: a recording that was read by other means does not use it."""
    return TraceRow(request_id=number, input_tokens=0, output_tokens=0, arrival_time_us=0)


def second_half(folder: Path) -> Score:
    """Learn from the first half of a recording with the server's time stamps, and predict the second."""
    deployment = _stamped_deployment(folder, DEFAULT, None)
    deployed = FittedDeployment(deployment.model, deployment.gpu, deployment.tp)
    recording = _stamped(folder)
    first = np.arange(len(recording.arrivals)) < len(recording.arrivals) // 2
    learned = learn([_only(recording, first)], deployed, deployment.config)
    latency = deployed.latency(learned.estimate.values)
    found = score(_only(recording, ~first), latency, deployment.config, STAMPED_PHASES)
    assert found is not None
    return found


def whole(folder: Path, latency_model: str, coefficients: Path) -> Score:
    """Predict all requests of a recording with the server's time stamps."""
    deployment = _stamped_deployment(folder, latency_model, coefficients if latency_model == FITTED else None)
    found = score(_stamped(folder), EngineAlone(deployment.latency), deployment.config, STAMPED_PHASES)
    assert found is not None
    return found


def _stamped_deployment(folder: Path, latency_model: str, coefficients: Path | None) -> Deployment:
    meta = json.loads((folder / "meta.json").read_text())
    settings = meta["engine_kwargs"]
    return resolve(
        DeploymentOptions(
            model=meta["model"].split("/")[-1],
            hardware=folder.name.split("_")[0],
            tp=settings["tensor_parallel_size"],
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            engine="vllm",
            latency_model=latency_model,
            coefficients=None if coefficients is None else str(coefficients),
        )
    )


def _only(recording: Recording, which: np.ndarray) -> Recording:
    """All requests, with the measurements of some."""
    return replace(
        recording,
        ttft_us=np.where(which, recording.ttft_us, np.nan),
        decode_us=np.where(which, recording.decode_us, np.nan),
    )


def _stamped(folder: Path) -> Recording:
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["arrival_time"])
    # Arrivals are on another clock. The request taken in soonest after its arrival is taken in at once.
    other_clock_s = min(row["queued_ts"] - row["arrival_time"] for row in rows)
    arrived_s = [row["arrival_time"] + other_clock_s for row in rows]
    arrivals = [
        Arrival(
            round((at_s - arrived_s[0]) * 1e6),
            Request(
                row["request_id"],
                row["input_toks"],
                row["output_toks"],
                UniqueBlocks(row["request_id"]),
                row["output_toks"],
            ),
            _row(number),
        )
        for number, (at_s, row) in enumerate(zip(arrived_s, rows, strict=True))
    ]
    ttft_us = np.array([row["first_token_ts"] - at_s for at_s, row in zip(arrived_s, rows, strict=True)]) * 1e6
    decode_us = np.array([row["last_token_ts"] - row["first_token_ts"] for row in rows]) * 1e6
    return Recording(name=folder.name, arrivals=arrivals, ttft_us=ttft_us, decode_us=decode_us)


if __name__ == "__main__":
    run_command(main)
