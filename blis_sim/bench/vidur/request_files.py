"""request_metrics.csv of Vidur and SimAI: what each request experienced."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blis_sim.bench.vidur.replica import TimedJob
from blis_sim.bench.vidur.simulation import Simulated
from replay.metrics_dir.request_rows import SIMAI_COLUMNS, VIDUR_COLUMNS
from replay.metrics_dir.tables import write_csv

_NUM_TIMES = 14
DURATIONS = VIDUR_COLUMNS[1 : 1 + _NUM_TIMES]
"""The columns of times of complete requests, in seconds."""
_NUM_INSTANTS = len(SIMAI_COLUMNS) - len(VIDUR_COLUMNS)


def request_columns(simulated: Simulated, *, of_simai: bool) -> dict[str, Sequence[Any]]:
    """Return the columns with a cell for each request."""
    cluster = simulated.cluster
    num_prefill = cluster.pools[0].num_replicas if of_simai else None
    rows = request_rows(simulated.jobs, is_original=cluster.is_original, num_prefill=num_prefill)
    return dict(zip(SIMAI_COLUMNS if of_simai else VIDUR_COLUMNS, zip(*rows, strict=True), strict=True))


def write_requests(columns: dict[str, Sequence[Any]], path: Path) -> None:
    """Write a row for each request."""
    write_csv(path, tuple(columns), zip(*columns.values(), strict=True))


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
