"""chrome_trace.json, event_trace.json and cluster.json of a run of Vidur."""

import json
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.bench.vidur.batch_log import BatchLog
from blis_sim.bench.vidur.batches import Batches
from blis_sim.bench.vidur.replica import TimedJob
from blis_sim.bench.vidur.simulation import Simulated
from blis_sim.engine.units import Micros
from replay.metrics_dir.chrome_trace import ChromeTrace, Place
from replay.metrics_dir.event_trace import EventTrace
from replay.metrics_dir.tables import JsonItems, RowFile
from traces.text_file import write_text

Drawn = tuple[int, int, list[int], list[int], list[tuple[float, float]]]
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
    for number, replica, jobs, tokens, spans in _drawn(simulated, batches):
        args = {"batch_id": number, "batch_size": len(jobs), "request_ids": jobs, "num_tokens": tokens}
        for stage, (start, end) in enumerate(spans):
            times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
            items.add({"name": str(jobs), "ph": "X", **times, "pid": replica, "tid": stage, "args": args})
    items.end()


def _write_with_requests(simulated: Simulated, batches: Batches, trace: ChromeTrace) -> None:
    prompts, decodes = batches.prefill_tokens.tolist(), batches.decodes.tolist()
    for number, replica, jobs, tokens, spans in _drawn(simulated, batches):
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


def _drawn(simulated: Simulated, batches: Batches) -> Iterator[Drawn]:
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
            trace.arrives(_micros(job.arrived_at), job.index)
        for at, name, details in events:
            trace.happens(_micros(at), name, **details)
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
