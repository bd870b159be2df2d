"""Predictions of servers that others have measured with bursts, users and shared prompts, as CSV.

    python -m workshop.points CSV --rows ROWS.csv [--processes N]

CSV has one measured server per row: the columns `model`, `gpu`, `tp`, `ep` (1 where experts are spread), `dp`, `pp`,
`max_num_batched_tokens`, `max_num_seqs`, `gpu_memory_utilization`, `load`, `requests`, `concurrency`, `rate`, `isl`,
`osl`, `vllm`, `duration_s`, `ttft_ms`, `tpot_ms`, `e2e_ms` and `note`. Rows with a note, of servers that ran something
else, are left out, unless it has drafts of EAGLE. Requests of a rate `inf` come all at once. Lengths of ShareGPT are
spread as in its conversations, with the mean of the row; others are that mean. Users who send one prompt each again and
again find it in the prefix cache. Bursts of fixed lengths follow each other on one server in the order of their rows:
`vllm bench serve` draws the same beginnings for each of them, which the prefix cache may still have. `errors.py` and
`classes.py` read what this writes.

With `--left-out` the constants that were learned from these servers are the medians of what each other model and GPU
says of them.
"""

import argparse
import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import VLLM_RELEASES
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency import kernel_profiles
from blis_sim.engine.latency.confidence import kind_of
from blis_sim.engine.latency.kernel_profiles import measured_grids
from blis_sim.engine.request import BlockIdentities, PrefixGroupBlocks, Request, UniqueBlocks
from blis_sim.engine.speculation_options import SpeculationOptions
from replay.arrivals import Arrival
from replay.simulation.record import Record
from replay.simulation.simulate import simulate, simulate_reissued
from traces import TraceRow
from workshop.ending import run_command

Row: TypeAlias = Mapping[str, str]
PREDICTORS = ("kernels", "fitted", "trained-physics")
METRICS = ("ttft", "itl", "e2e", "duration")
COLUMNS = ("id", "predictor", "kind", "model", "layers", "width", *METRICS, *(f"{name}_sim" for name in METRICS))
KIND_SEPARATOR = "|"
_SEED = 1
_STARTS_WITH_ANSWER = 0.36
"""Share of ShareGPT's conversations that start with an answer, for long ones were split: `vllm bench serve` takes the
first message as the prompt and the second as the output, whoever wrote them."""
_SHARES = (0.001, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
_QUANTILES = (
    ((4, 6, 8, 13, 27, 90, 295, 485, 784, 889), (6, 128, 182, 279, 400, 580, 744, 811, 883, 897)),
    ((4, 27, 49, 125, 250, 380, 558, 682, 843, 1013), (3, 4, 6, 10, 18, 40, 101, 258, 877, 1312)),
)
"""Tokens that these shares of prompts and of outputs stay below: of a person's words and the answer to them, and of an
answer and what the person says to it. Counted in 15,115 conversations with a mean of 217 and 200 tokens."""
_SHORTEST, _LONGEST = 4, 1024
"""Tokens of prompts and outputs: `vllm bench serve` takes no other prompts, and few longer outputs."""
_ROUNDS = 10
"""After so many the mean is that of the row, though the longest were cut."""
_USERS = 45
_SECONDS = 120
"""Seconds of a rate that are simulated: after some seconds all prompts of users are in the cache."""


def main() -> int:
    """Write a row for each prediction."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--latency-model", choices=PREDICTORS, action="append", help="(default: all)")
    parser.add_argument("--left-out", action="store_true")
    arguments = parser.parse_args()
    with arguments.csv.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["note"] or row["note"].startswith(DRAFTS)]
    predictors = arguments.latency_model or PREDICTORS
    before = [earlier_bursts(row, rows[:place]) for place, row in enumerate(rows)]
    tasks = [
        (row, earlier, name, arguments.left_out)
        for row, earlier in zip(rows, before, strict=True)
        for name in predictors
    ]
    with ProcessPoolExecutor(arguments.processes) as pool, arguments.rows.open("w", newline="") as written:
        writer = csv.DictWriter(written, COLUMNS)
        writer.writeheader()
        writer.writerows(found for found in pool.map(_predicted, tasks, chunksize=4) if found)
    return 0


_SERVER = (
    "model", "gpu", "tp", "ep", "dp", "pp", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "vllm",
)  # fmt: skip
"""Columns that tell servers apart."""
_FIXED_LENGTHS = "random fixed lengths"


def _is_fixed_burst(row: Row) -> bool:
    return row["load"] == _FIXED_LENGTHS and row["rate"] == "inf"


def earlier_bursts(row: Row, earlier: Sequence[Row]) -> list[Row]:
    """Return the bursts of fixed lengths that a server had before one of them: no length comes twice."""
    found: list[Row] = []
    for each in reversed(earlier) if _is_fixed_burst(row) else ():
        is_alike = _is_fixed_burst(each) and all(each[name] == row[name] for name in _SERVER)
        if not is_alike or float(each["isl"]) <= float((found or [row])[-1]["isl"]):
            break
        found.append(each)
    return found[::-1]


def _predicted(task: tuple[Row, Sequence[Row], str, bool]) -> dict[str, object] | None:
    """Return the prediction of a row; None where the latency model cannot time it."""
    row, earlier, predictor, is_left_out = task
    if is_left_out:
        _learn_from_others(row["model"], row["gpu"])
    try:
        options = options_of(row, predictor)
        deployment = resolve(options)
    except EngineError:
        return None
    means = means_ms(row, earlier, deployment)
    real = [float(row[name] or "nan") for name in ("ttft_ms", "tpot_ms")]
    real.append(float(row["e2e_ms"] or real[0] + real[1] * (float(row["osl"]) - 1)))
    real.append(float(row["duration_s"] or 0) * 1e3)
    kind = kind_of(
        deployment.model, deployment.gpu, options.kernel_placement(deployment.tp, deployment.gpu), deployment.dp
    )
    shape = (deployment.model.num_layers, deployment.model.hidden_size)
    described = (row["id"], predictor, KIND_SEPARATOR.join(kind), row["model"], *shape)
    return dict(zip(COLUMNS, (*described, *real, *means), strict=True))


def options_of(row: Row, predictor: str) -> DeploymentOptions:
    def number(name: str, otherwise: int = 0) -> int:
        return int(float(row[name])) if row[name] else otherwise

    return DeploymentOptions(
        model=row["model"],
        hardware=row["gpu"],
        tp=number("tp", 1),
        dp=number("dp", 1),
        pp=number("pp", 1),
        enable_expert_parallel=number("ep") > 0,
        max_num_batched_tokens=number("max_num_batched_tokens") or None,
        max_num_seqs=number("max_num_seqs") or None,
        gpu_memory_utilization=float(row["gpu_memory_utilization"]) if row["gpu_memory_utilization"] else None,
        latency_model=predictor,
        vllm_version=release_of(row["vllm"]),
        drafts=_drafts(row["note"]),
    )


DRAFTS = "eagle, "


def _drafts(note: str) -> SpeculationOptions:
    """Return the drafts that a note names, such as "eagle, 2 draft tokens, 2.1 tokens a step"."""
    if not note.startswith(DRAFTS):
        return SpeculationOptions()
    _, drafted, per_step = (part.split()[0] for part in note.split(", "))
    drafter = "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"
    config = {"method": "eagle", "model": drafter, "num_speculative_tokens": int(drafted)}
    accepted = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": float(per_step)}
    return SpeculationOptions(speculative_config=json.dumps({**config, **accepted}))


BARE_REQUEST_US = {
    ("gpt-oss-120b", "H100"): 1_390.0, ("gpt-oss-20b", "A100-SXM"): 1_500.0,
}  # fmt: skip
"""Time that each of 1,000 requests of 128 tokens adds to the duration of the burst, where no template is parsed. By two
bursts each: 1.23 and 1.55 ms, 1.61 and 1.39 ms."""
REQUEST_US = {
    ("deepseek-r1", "H200"): 17_500.0, ("glm-4.6", "H200"): 9_300.0, ("qwen3-14b", "A100-SXM"): 12_800.0,
    ("qwen3-235b-a22b-instruct-2507-fp8", "A100-SXM"): 8_850.0, ("qwen3-235b-a22b-instruct-2507", "H100"): 4_900.0,
}  # fmt: skip
"""The same where a template is."""
UNHIDDEN_US = {
    ("qwen3-8b", "H100"): 550.0, ("qwen3-1.7b", "A100-SXM"): 860.0, ("gpt-oss-120b", "H100"): 940.0,
}  # fmt: skip
"""Time that steps of a few requests lack without the work of the host that no step hides, beside that for requests."""
SEQUENCE_US = {
    ("deepseek-r1", "H200"): 53.5, ("glm-4.6", "H200"): 21.2, ("gpt-oss-120b", "H100"): 30.7,
    ("gpt-oss-20b", "A100-SXM"): 23.2, ("qwen3-14b", "A100-SXM"): 18.5,
    ("qwen3-235b-a22b-instruct-2507-fp8", "A100-SXM"): 1.4, ("qwen3-235b-a22b-instruct-2507", "H100"): 14.7,
}  # fmt: skip
"""Time for each output token that bursts of ShareGPT lack beside what their requests take: the median of a server's."""
LATENT_US = {("deepseek-r1", "H200"): 133.0, ("deepseek-r1 with experts spread over GPUs", "H200"): 93.0}
"""Time that steps of one and four requests lack for each layer of latent attention, by two servers."""
UNTUNED = {
    ("MiniMax-M2.5", "H200"): 2.0, ("glm-4.6", "H200"): 2.0, ("qwen3-235b-a22b-instruct-2507-fp8", "A100-SXM"): 2.3,
}  # fmt: skip
"""By the steps of prompts."""


def _learn_from_others(model: str, gpu: str) -> None:
    """Take constants from all recorded models and GPUs but these."""

    def of_others(values: Mapping[tuple[str, str], float]) -> float:
        return float(np.median([value for key, value in values.items() if key != (model, gpu)]))

    for name, release in VLLM_RELEASES.items():
        if release.chat_template_us:
            request_us, latent_us = int(of_others(BARE_REQUEST_US)), int(of_others(LATENT_US))
            template_us = int(of_others(REQUEST_US)) - request_us
            VLLM_RELEASES[name] = release._replace(
                request_us=request_us, chat_template_us=template_us, latent_host_us=latent_us
            )
    kernel_profiles.UNHIDDEN_HOST_US = of_others(UNHIDDEN_US)
    kernel_profiles.UNHIDDEN_SEQUENCE_US = of_others(SEQUENCE_US)
    kernel_profiles.UNTUNED = of_others(UNTUNED)
    measured_grids.cache_clear()


def release_of(version: str) -> str:
    """Return the latest release with known defaults that is not after a version, or else the first."""
    known = sorted(VLLM_RELEASES, key=_number_of)
    before = [each for each in known if not version or _number_of(each) <= _number_of(version)]
    return before[-1] if before else known[0]


def _number_of(version: str) -> int:
    """Return the minor version; tables write 0.10 as 0.1."""
    minor = version.split(".")[1]
    return 10 if minor == "1" else int(minor)


def means_ms(row: Row, earlier: Sequence[Row], deployment: Deployment) -> list[float]:
    """Return the means of TTFT, time between tokens and time, and the duration, behind the bursts before."""
    record = _simulated(row, earlier, deployment)
    ours = record.arrived_at >= len(earlier) * _APART_US
    columns = [each[ours] for each in (record.ttft_us, record.itl_mean_us, record.e2e_us)]
    ended, arrived = record.arrived_at[ours] + columns[-1], record.arrived_at[ours]
    return [*(float(each.mean()) / 1e3 for each in columns), float(ended.max() - arrived.min()) / 1e3]


_APART_US = 10_000_000_000
"""From one burst of a server to the next: the first has long ended."""


def _simulated(row: Row, earlier: Sequence[Row], deployment: Deployment) -> Record:
    engine = Engine(deployment.config, deployment.latency, reports_steps=False)
    if earlier:
        bursts = enumerate([*earlier, row])
        return simulate(engine, [each for place, burst in bursts for each in _arrivals(burst, place)]).requests
    arrivals = list(_arrivals(row))
    if row["rate"] not in ("", "inf"):
        return simulate(engine, arrivals).requests
    cap = int(float(row["concurrency"])) if row["concurrency"] else len(arrivals)
    return simulate_reissued(engine, arrivals, cap).requests


def _arrivals(row: Row, place: int = 0) -> Iterator[Arrival]:
    """Yield the requests of a row, behind those of as many bursts before."""
    generator = np.random.default_rng(_SEED)
    has_rate = row["rate"] not in ("", "inf")
    count = int(float(row["rate"]) * _SECONDS) if has_rate else int(float(row["requests"] or 100))
    at_s = np.cumsum(generator.exponential(1 / float(row["rate"]), count)) if has_rate else np.zeros(count)
    prompts, outputs = _lengths(generator, row, count)
    nothing = TraceRow(request_id=0, input_tokens=0, output_tokens=0, arrival_time_us=0)
    for number in range(count):
        name, output = f"{place}:{number}", outputs[number]
        blocks: BlockIdentities = UniqueBlocks(name)
        if "a prompt of their own each" in row["load"]:
            blocks = PrefixGroupBlocks(name, f"user {number % _USERS}", prompts[number] // 16)
        elif _is_fixed_burst(row):
            blocks = PrefixGroupBlocks(name, f"prompt {number}", prompts[number] // 16)
        at_us = place * _APART_US + round(at_s[number] * 1e6)
        yield Arrival(at_us, Request(name, prompts[number], output, blocks, output), nothing)


def _lengths(generator: np.random.Generator, row: Row, count: int) -> tuple[list[int], list[int]]:
    """Return the prompts and outputs of a load, in tokens."""
    means = [float(row[name].removeprefix("about ")) for name in ("isl", "osl")]
    if row["load"] != "sharegpt":
        prompts, outputs = ([max(1, round(mean))] * count for mean in means)
        return prompts, outputs
    starts_with_answer = generator.random(count) < _STARTS_WITH_ANSWER
    prompts, outputs = (
        _with_mean(
            mean, np.where(starts_with_answer, *(_drawn(generator, count, each) for each in reversed(quantiles)))
        )
        for mean, quantiles in zip(means, _QUANTILES, strict=True)
    )
    return prompts, outputs


def _drawn(generator: np.random.Generator, count: int, quantiles: Sequence[int]) -> npt.NDArray[np.float64]:
    drawn: npt.NDArray[np.float64] = np.exp(np.interp(generator.random(count), _SHARES, np.log(quantiles)))
    return drawn


def _with_mean(mean: float, drawn: npt.NDArray[np.float64]) -> list[int]:
    for _ in range(_ROUNDS):
        drawn = np.clip(drawn * mean / drawn.mean(), _SHORTEST, _LONGEST)
    return [round(each) for each in drawn.tolist()]


if __name__ == "__main__":
    run_command(main)
