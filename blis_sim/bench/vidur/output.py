"""The output folder of Vidur: `config.json`, `request_metrics.csv` and `batch_metrics.csv`."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.bench.vidur.options import chosen, values_of
from blis_sim.bench.vidur.replica import BatchLog, TimedJob
from blis_sim.bench.vidur.simulation import Simulated
from replay.metrics_dir.request_rows import SIMAI_COLUMNS, VIDUR_COLUMNS
from traces.text_file import write_text, writing

BATCH_COLUMNS = (
    "Batch Id",
    "batch_num_tokens",
    "batch_num_prefill_tokens",
    "batch_num_decode_tokens",
    "batch_size",
    "batch_execution_time",
)
_NUM_TIMES = 14
_NUM_INSTANTS = len(SIMAI_COLUMNS) - len(VIDUR_COLUMNS)


def new_folder(options: Any) -> Path:
    """Make the folder of a run: of its instant, in the folder that the options name. Raises BenchError."""
    folder = Path(options.metrics_config_output_dir, datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise BenchError(f"--metrics_config_output_dir: cannot make the folder {folder}: {error.strerror}") from error
    return folder


def write_config(options: Any, folder: Path) -> None:
    """Write what the command line comes to."""
    write_text(folder / "config.json", json.dumps(described(options, folder), indent=4))


def described(options: Any, folder: Path) -> dict[str, Any]:
    """Return the configuration as Vidur writes it."""
    replica = values_of(options, vidur.REPLICA)
    if options.compat == "vidur":
        for each in vidur.SIMAI_REPLICA:
            del replica[each.name]
    model, device, network = replica["model_name"], replica["device"], replica["network_device"]
    tflops, gib = DEVICES[device]
    replica["world_size"] = replica["num_pipeline_stages"] * replica["tensor_parallel_size"]
    replica["model_config"] = MODELS[model].described()
    replica["device_config"] = {"fp16_tflops": tflops, "total_memory_gb": gib, "name": device}
    replica["node_config"] = {"num_devices_per_node": NODES[network][0], "name": network}
    return {
        **values_of(options, vidur.MAIN),
        "cluster_config": {
            **values_of(options, vidur.CLUSTER),
            "replica_config": replica,
            "global_scheduler_config": _named(options, vidur.GLOBAL_SCHEDULER),
            "replica_scheduler_config": _named(options, vidur.REPLICA_SCHEDULER),
        },
        "request_generator_config": _described_requests(options),
        "execution_time_predictor_config": _described_predictor(options),
        "metrics_config": {**values_of(options, vidur.METRICS), "output_dir": str(folder)},
    }


def _described_predictor(options: Any) -> dict[str, Any]:
    of_simai = {each.name for each in vidur.SIMAI_PREDICTOR} if options.compat == "vidur" else set()
    return {name: value for name, value in _named(options, vidur.PREDICTOR).items() if name not in of_simai}


def _described_requests(options: Any) -> dict[str, Any]:
    named = _named(options, vidur.REQUESTS)
    if named["name"] == "trace_replay":
        return named
    lengths = _named(options, vidur.LENGTHS)
    seed = named.pop("seed")
    generators = {"length_generator_config": lengths, "interval_generator_config": _named(options, vidur.INTERVALS)}
    name = named.pop("name")
    return {"seed": seed, **generators, **named, "max_tokens": lengths["max_tokens"], "name": name}


def _named(options: Any, choice: vidur.Choice) -> dict[str, Any]:
    group = chosen(options, choice)
    return {**values_of(options, group), "name": group.name}


def write_requests(simulated: Simulated, folder: Path, *, of_simai: bool) -> None:
    """Write a row for each request."""
    with writing(folder / "request_metrics.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        cluster = simulated.cluster
        writer.writerow(SIMAI_COLUMNS if of_simai else VIDUR_COLUMNS)
        num_prefill = cluster.pools[0].num_replicas if of_simai else None
        writer.writerows(request_rows(simulated.jobs, is_original=cluster.is_original, num_prefill=num_prefill))


def request_rows(jobs: Sequence[TimedJob], *, is_original: bool, num_prefill: int | None = None) -> Iterator[list[Any]]:
    """Yield the cells of each request; of one that is not complete only what was known when it arrived.

    With `num_prefill`, the replicas before those that only decode, there are the cells of SimAI, too.
    """
    previous: dict[int, float] = {}
    before: TimedJob | None = None
    for job in sorted(jobs, key=lambda each: each.arrived_at):
        if before is not None:
            previous[job.index] = job.arrived_at - before.arrived_at
        before = job
    for job in jobs:
        prompt, output = job.prompt_tokens, job.total_tokens - job.prompt_tokens
        known = [previous.get(job.index), float(prompt + output), float(prompt), float(output), prompt / output]
        times: list[float | None] = [None] * _NUM_TIMES
        if job.completed_at is not None:
            times = _times(job, is_original)
        instants = [] if num_prefill is None else _instants(job, num_prefill)
        yield [job.index, *times, *instants, *known, job.num_restarts]


def _times(job: TimedJob, is_original: bool) -> list[float | None]:
    """The times of a complete request, and their shares for each token.

    A restart makes what was output so far part of the prompt; the original also divides by the counts after it.
    """
    assert job.completed_at is not None
    assert job.prefilled_at is not None
    assert job.scheduled_at is not None
    prompt = job.target if is_original else job.prompt_tokens
    output = job.total_tokens - prompt
    e2e_s, executed_s = job.completed_at - job.arrived_at, job.executed_s
    both_s, prefill_s = executed_s + job.preempted_s, job.prefilled_at - job.scheduled_at
    return [
        e2e_s,
        e2e_s / output,
        executed_s,
        executed_s / output,
        executed_s,
        executed_s / output,
        job.preempted_s,
        job.scheduled_at - job.arrived_at,
        both_s,
        both_s / output,
        job.prefilled_at - job.arrived_at,
        prefill_s,
        prefill_s / prompt,
        (job.completed_at - job.prefilled_at) / output,
    ]


def _instants(job: TimedJob, num_prefill: int) -> list[float | int | str | None]:
    """Return the cells that SimAI adds: instants, replicas, and the way of the KV cache."""
    if job.completed_at is None or job.prefilled_at is None:
        return [None] * _NUM_INSTANTS
    decode_arrived_at = math.inf if job.decode_arrived_at is None else job.decode_arrived_at
    decode_s = job.completed_at - job.prefilled_at
    instants = [job.arrived_at, job.arrived_at, job.scheduled_at, job.prefilled_at, decode_arrived_at]
    found: list[float | int | str | None] = [*instants, job.completed_at, job.preempted_s, decode_s]
    found += [None, None] if job.decode_replica is None else [job.replica, num_prefill + job.decode_replica]
    transfer = job.transfer
    if transfer is None:
        return [*found, math.inf, math.inf, 0, None, None]
    found += [transfer.size_bytes, transfer.duration_s, transfer.bytes_per_s]
    return [*found, transfer.bytes_per_value, transfer.dtype]


def write_batches(logs: Sequence[BatchLog], folder: Path) -> None:
    """Write a row for each batch of all replicas, in the order in which they were composed."""
    starts, ends, numbers, sizes, decodes, prompts = (
        np.concatenate([np.array(getattr(log, name)) for log in logs])
        for name in ("starts", "ends", "numbers", "sizes", "decodes", "prefill_tokens")
    )
    sizes, decodes, prompts = (np.repeat(each, numbers) for each in (sizes, decodes, prompts))
    is_ended = np.concatenate([_ended(log) for log in logs])
    order = np.argsort(starts, kind="stable")
    order = order[is_ended[order]]
    columns = [prompts + decodes, prompts, decodes, sizes, ends - starts]
    with writing(folder / "batch_metrics.csv") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(BATCH_COLUMNS)
        cells = [
            column[order].astype(float if place < 3 else column.dtype).tolist() for place, column in enumerate(columns)
        ]
        writer.writerows(zip(range(len(order)), *cells, strict=True))


def _ended(log: BatchLog) -> "np.typing.NDArray[np.bool_]":
    """Whether each batch had ended when the simulation did."""
    found = np.ones(len(log), np.bool_)
    found[log.unfinished] = False
    return found
