"""Files of a run of Vidur and SimAI: tables of metrics of requests and operators, traces of its events, its cluster.

They are request_metrics.csv, operation_metrics.csv, cpu_operation_metrics.csv, chrome_trace.json, event_trace.json and
cluster.json.
"""

import json
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.bench.vidur.batches import Batches, BatchLog
from blis_sim.bench.vidur.distributions import Values
from blis_sim.bench.vidur.replica import TimedJob
from blis_sim.bench.vidur.simulation import Simulated
from blis_sim.bench.vidur.times import OPERATIONS, BatchTimes
from blis_sim.engine.units import Micros
from replay.metrics_dir.tables import SIMAI_COLUMNS, VIDUR_COLUMNS, JsonItems, RowFile, write_csv
from replay.metrics_dir.timeline import ChromeTrace, EventTrace, Place
from traces.text_file import write_text

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


CPU_OPERATIONS = (
    "schedule",
    "sample_e2e",
    "prepare_inputs_e2e",
    "model_execution_e2e",
    "process_model_outputs",
    "ray_comm_time",
)


def operation_columns(simulated: Simulated, batches: Batches) -> dict[str, Values]:
    """Return the milliseconds of each operator in one layer by batch, those of the first stage; NaN where it rests."""
    cluster, logs = simulated.cluster, simulated.logs
    pools = [place for place, pool in enumerate(cluster.pools) for _ in range(pool.num_replicas)]
    found = np.zeros((len(batches), len(OPERATIONS)))
    columns = (batches.replicas, batches.entries, batches.repeats)
    for number, (replica, entry, repeat) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        log, times = logs[replica], simulated.times[pools[replica]]
        assert isinstance(times, BatchTimes)
        decodes = log.decodes[entry]
        found[number] = times.operations_ms(
            log.prefill_tokens[entry],
            decodes,
            log.contexts[entry] + repeat * decodes,
            log.prefills[entry],
            log.prefill_granules[entry] if cluster.is_original else log.prefill_contexts[entry],
            log.prefill_squares[entry],
            sends=bool(log.stages),
        )
    return {name: found[:, place] for place, name in enumerate(OPERATIONS)}


def cpu_columns(simulated: Simulated, batches: Batches) -> dict[str, Values]:
    """Return the milliseconds of the CPU's work, of which nothing is measured, and those of the model, by batch."""
    seconds = batches.seconds.copy()
    for number, log in enumerate(simulated.logs):
        if log.stages:
            mine, stage = np.flatnonzero(batches.replicas == number), log.stages[0]
            seconds[mine] = (np.array(stage.ends) - np.array(stage.starts))[: len(mine)]
    nothing = np.zeros(len(batches))
    return {name: seconds * 1e3 if name == "model_execution_e2e" else nothing for name in CPU_OPERATIONS}


def write_operations(columns: dict[str, Values], path: Path) -> None:
    """Write a row for each batch; cells of operators that rest are empty."""
    cells = [[None if np.isnan(each) else each for each in column.tolist()] for column in columns.values()]
    rows = ([number, *row] for number, row in enumerate(zip(*cells, strict=True)))
    write_csv(path, ("Batch Id", *columns), rows)


BatchSpans = tuple[int, int, list[int], list[int], list[tuple[float, float]]]
"""The number of a batch, its replica, its requests, the tokens of each, and its span in each stage."""
_BATCHES_AT_ONCE = 1 << 16


def write_chrome_trace(simulated: Simulated, batches: Batches, folder: Path) -> None:
    """Write the batches of all stages: as Vidur, or with names, requests and their ways as --metrics-dir has them."""
    with RowFile(folder / "chrome_trace.json") as file:
        if simulated.cluster.is_original:
            _write_as_vidur(simulated, batches, JsonItems(file, '{"traceEvents":[', "]}\n"))
        else:
            _write_with_requests(simulated, batches, ChromeTrace(file))


def _write_as_vidur(simulated: Simulated, batches: Batches, items: JsonItems) -> None:
    for number, replica, jobs, tokens, spans in _batch_spans(simulated, batches):
        args = {"batch_id": number, "batch_size": len(jobs), "request_ids": jobs, "num_tokens": tokens}
        for stage, (start, end) in enumerate(spans):
            times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
            items.add({"name": str(jobs), "ph": "X", **times, "pid": replica, "tid": stage, "args": args})
    items.end()


def _write_with_requests(simulated: Simulated, batches: Batches, trace: ChromeTrace) -> None:
    prompts, decodes = batches.prefill_tokens.tolist(), batches.decodes.tolist()
    for number, replica, jobs, tokens, spans in _batch_spans(simulated, batches):
        stages = [(_micros(start), _micros(end)) for start, end in spans]
        trace.batch(replica, number, stages, jobs, len(jobs), (len(jobs), prompts[number], decodes[number]), tokens)
    places = [_Places(number, log) for number, log in enumerate(simulated.logs)]
    num_prefill = simulated.cluster.pools[0].num_replicas
    for job in simulated.jobs:
        decode = places[job.replica if job.decode_replica is None else num_prefill + job.decode_replica]
        way = [places[job.replica].from_(job.scheduled_at), places[job.replica].until(job.prefilled_at)]
        way.append(decode.until(job.completed_at))
        trace.request(job.index, list(_phases(job)), [each for each in way if each is not None])
    trace.end()


class _Places:
    """The batches of one replica by their instants."""

    def __init__(self, replica: int, log: BatchLog) -> None:
        self._replica = replica
        self._starts = np.array(log.stages[0].starts if log.stages else log.starts)
        self._ends = np.array(log.stages[-1].ends if log.stages else log.ends)

    def from_(self, at: float | None) -> Place | None:
        """Return the first batch that starts at an instant or after it."""
        return None if at is None else self._place(int(np.searchsorted(self._starts, at)))

    def until(self, at: float | None) -> Place | None:
        """Return the batch that ends at an instant."""
        return None if at is None else self._place(int(np.searchsorted(self._ends, at)))

    def _place(self, place: int) -> Place | None:
        return Place(self._replica, _micros(float(self._starts[place]))) if place < len(self._starts) else None


def _phases(job: TimedJob) -> Iterator[tuple[str, Micros, Micros]]:
    """Yield the phases of a request as far as it has come."""
    names = ["waiting", "prefill", "decode"]
    instants = [job.arrived_at, job.scheduled_at, job.prefilled_at, job.completed_at]
    if job.decode_replica is not None:
        names.insert(2, "KV transfer")
        instants.insert(3, job.decode_arrived_at)
    for name, start, end in zip(names, instants, instants[1:], strict=False):
        if start is None or end is None:
            return
        yield name, _micros(start), _micros(end)


def _batch_spans(simulated: Simulated, batches: Batches) -> Iterator[BatchSpans]:
    """Yield all batches in the order of their numbers."""
    logs = simulated.logs
    firsts = [np.cumsum(log.sizes) - np.array(log.sizes) for log in logs]
    batch_places = [np.cumsum(log.numbers) - np.array(log.numbers) for log in logs]
    latest: dict[int, tuple[int, list[int], list[int]]] = {}
    columns = (batches.replicas, batches.entries, batches.repeats, batches.starts, batches.ends)
    for begin in range(0, len(batches), _BATCHES_AT_ONCE):
        rows = zip(*(column[begin : begin + _BATCHES_AT_ONCE].tolist() for column in columns), strict=True)
        for number, (replica, entry, repeat, start, end) in enumerate(rows, begin):
            log, known = logs[replica], latest.get(replica)
            if known is None or known[0] != entry:
                first = int(firsts[replica][entry])
                last = first + log.sizes[entry]
                known = latest[replica] = entry, log.jobs[first:last].tolist(), log.tokens[first:last].tolist()
            spans = [(start, end)]
            if log.stages:
                place = int(batch_places[replica][entry]) + repeat
                spans = [(stage.starts[place], stage.ends[place]) for stage in log.stages]
            yield number, replica, known[1], known[2], spans


def write_event_trace(simulated: Simulated, batches: Batches, folder: Path) -> None:
    """Write arrivals, first batches, ends of batches and of requests in the order of time."""
    events: list[tuple[float, str, dict[str, Any]]] = []
    columns = (batches.replicas.tolist(), batches.ends.tolist(), batches.starts.tolist(), batches.sizes.tolist())
    for number, (replica, end, start, size) in enumerate(zip(*columns, strict=True)):
        details = {"batch_id": number, "replica_id": replica, "started_at": start, "batch_size": size}
        events.append((end, "batch_end", details))
    for job in simulated.jobs:
        for at, name in ((job.scheduled_at, "request_scheduled"), (job.completed_at, "request_end")):
            if at is not None:
                events.append((at, name, {"request_id": job.index, "replica_id": job.replica}))
    events.sort(key=itemgetter(0))
    with RowFile(folder / "event_trace.json") as file:
        trace = EventTrace(file)
        for job in sorted(simulated.jobs, key=lambda job: job.arrived_at):
            trace.add_arrival(_micros(job.arrived_at), job.index)
        for at, name, details in events:
            trace.add_event(_micros(at), name, **details)
        trace.end(_micros(max([0.0, *(job.arrived_at for job in simulated.jobs)])))


def write_cluster(simulated: Simulated, folder: Path) -> None:
    """Write the sizes of the replicas."""
    model, replicas = simulated.cluster.model, list[dict[str, Any]]()
    sizes = ("num_layers", "num_q_heads", "num_kv_heads", "embedding_dim", "mlp_hidden_dim", "use_gated_mlp")
    for pool in simulated.cluster.pools:
        own = {"num_pipeline_stages": pool.num_stages, "num_tensor_parallel_workers": pool.tp}
        for _ in range(pool.num_replicas):
            known = {name: getattr(model, name) for name in (*sizes, "vocab_size")}
            replicas.append({"id": len(replicas), **known, **own})
    write_text(folder / "cluster.json", json.dumps({"replicas": replicas}))


def _micros(seconds: float) -> Micros:
    return round(seconds * 1e6)
