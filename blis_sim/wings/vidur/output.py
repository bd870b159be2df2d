"""The output folder of Vidur and SimAI: configuration, requests, batches, operators and traces of events."""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.batches import BatchLog, Column, Columns, columns_of
from blis_sim.wings.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.wings.vidur.latency import OPERATIONS, OperatorLatency
from blis_sim.wings.vidur.plots import write_plots
from blis_sim.wings.vidur.replica import TimedJob, micros
from blis_sim.wings.vidur.settings import chosen, values_of
from blis_sim.wings.vidur.simulation import Simulated
from replay.metrics_dir.tables import (
    SIMAI_COLUMNS,
    VIDUR_COLUMNS,
    Cell,
    ChromeTrace,
    EventTrace,
    JsonItems,
    Place,
    RequestMetrics,
    RowFile,
    request_row,
    write_csv,
)
from traces.text_file import write_text

_LENGTHS = VIDUR_COLUMNS[-6:]
_COUNTED = ("request_num_tokens", "request_num_prefill_tokens", "request_num_decode_tokens")
"""Columns of whole numbers that Vidur writes with a point."""
_CPU_OPERATIONS = (
    "schedule",
    "sample_e2e",
    "prepare_inputs_e2e",
    "model_execution_e2e",
    "process_model_outputs",
    "ray_comm_time",
)


def new_folder(options: Any) -> Path:
    """Make the folder of a run: of its instant, in the folder that the options name. Raises OptionError."""
    folder = Path(options.metrics_config_output_dir, datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f"))
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise OptionError(f"--metrics_config_output_dir: cannot make the folder {folder}: {error.strerror}") from error
    return folder


def write_folder(options: Any, simulated: Simulated, folder: Path) -> None:
    """Write all requested files. Raises BlisError."""
    given, operations = values_of(options, vidur.METRICS), dict[str, Column]()
    write_text(folder / "config.json", json.dumps(described(options, folder), indent=4))
    requests = request_columns(simulated, of_simai=options.compat == "simai" or len(simulated.cluster.pools) > 1)
    if given["store_request_metrics"]:
        _write_columns(folder / "request_metrics.csv", requests)
    batches = columns_of(simulated.logs, simulated.limit_s)
    if given["store_batch_metrics"] and given["keep_individual_batch_metrics"]:
        write_batches(batches, folder / "batch_metrics.csv")
    if given["store_operation_metrics"] and isinstance(simulated.latencies[0], OperatorLatency):
        of_layers, of_cpu = operation_columns(simulated, batches), cpu_columns(simulated, batches)
        operations = {**of_layers, **of_cpu}
        if given["keep_individual_batch_metrics"]:
            _write_operations(folder / "operation_metrics.csv", of_layers)
            _write_operations(folder / "cpu_operation_metrics.csv", of_cpu)
    if given["enable_chrome_trace"]:
        write_chrome_trace(simulated, batches, folder)
    if given["write_json_trace"]:
        write_event_trace(simulated, batches, folder)
        write_cluster(simulated, folder)
    write_plots(options, simulated, requests, batches, operations, folder)


def described(options: Any, folder: Path) -> dict[str, Any]:
    """Return the configuration as Vidur writes it."""
    replica = values_of(options, vidur.REPLICA)
    predictor = _named(options, vidur.PREDICTOR)
    if options.compat == "vidur":
        for each in vidur.SETTINGS:
            if each.is_of_simai:
                replica.pop(each.name, None)
                predictor.pop(each.name, None)
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
        "execution_time_predictor_config": predictor,
        "metrics_config": {**values_of(options, vidur.METRICS), "output_dir": str(folder)},
    }


def _described_requests(options: Any) -> dict[str, Any]:
    named = _named(options, vidur.REQUESTS)
    if named["name"] == "trace_replay":
        return named
    lengths = _named(options, vidur.LENGTHS)
    seed, name = named.pop("seed"), named.pop("name")
    generators = {"length_generator_config": lengths, "interval_generator_config": _named(options, vidur.INTERVALS)}
    return {"seed": seed, **generators, **named, "max_tokens": lengths["max_tokens"], "name": name}


def _named(options: Any, choice: vidur.Choice) -> dict[str, Any]:
    group = chosen(options, choice)
    return {**values_of(options, group), "name": group.name}


def _write_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    write_csv(path, tuple(columns), zip(*columns.values(), strict=True))


def request_columns(simulated: Simulated, *, of_simai: bool) -> dict[str, Sequence[Any]]:
    """Return the columns of request_metrics.csv, with a cell for each request."""
    gaps: dict[int, float] = {}
    in_order = sorted(simulated.jobs, key=lambda job: job.arrived_at)
    for before, job in pairwise(in_order):
        gaps[job.index] = job.arrived_at - before.arrived_at
    rows = [_request_row(job, gaps.get(job.index), simulated) for job in simulated.jobs]
    return {name: [row[name] for row in rows] for name in (SIMAI_COLUMNS if of_simai else VIDUR_COLUMNS)}


def _request_row(job: TimedJob, gap: float | None, simulated: Simulated) -> dict[str, Cell]:
    """Return the cells of a request; of one that is not complete only what was known when it arrived.

    A restart makes what was output so far part of the prompt; the original also divides by the counts after it.
    """
    is_original, decode_replica = simulated.cluster.is_original, job.decode_replica
    row = request_row(
        RequestMetrics(
            number=job.index,
            arrived_at_s=job.arrived_at,
            inter_arrival_s=gap,
            prompt_tokens=job.prompt_tokens,
            output_tokens=job.total_tokens - job.prompt_tokens,
            num_restarts=job.num_restarts,
            scheduled_at_s=job.scheduled_at,
            first_token_at_s=job.prefilled_at,
            completed_at_s=job.completed_at,
            execution_s=job.executed_s,
            preempted_s=job.preempted_s,
            normalized_by_tokens=job.total_tokens - job.target if is_original else None,
            prefill_replica=None if decode_replica is None else job.replica,
            decode_replica=None if decode_replica is None else simulated.first_decode_replica + decode_replica,
            decode_arrived_at_s=job.decode_arrived_at,
            transfer=job.transfer,
        )
    )
    if job.completed_at is None:
        row.update(dict.fromkeys((name for name in SIMAI_COLUMNS[1:] if name not in _LENGTHS), None))
    elif is_original and job.prefilled_at is not None and job.scheduled_at is not None:
        row["prefill_time_execution_plus_preemption_normalized"] = (job.prefilled_at - job.scheduled_at) / job.target
    return {name: float(value or 0) if name in _COUNTED else value for name, value in row.items()}


def write_batches(batches: Columns, path: Path) -> None:
    """Write a row for each batch."""
    counts = ("batch_num_tokens", "batch_num_prefill_tokens", "batch_num_decode_tokens")
    cells = {name: batches[name].astype(float).tolist() for name in counts}
    cells |= {name: batches[name].tolist() for name in ("batch_size", "batch_execution_time")}
    _write_columns(path, {"Batch Id": range(len(batches["starts"])), **cells})


def operation_columns(simulated: Simulated, batches: Columns) -> dict[str, Column]:
    """Return the milliseconds of each operator in one layer by batch, those of the first stage; NaN where it rests."""
    names = ("batch_num_prefill_tokens", "batch_num_decode_tokens", "contexts", "prefills", "prefill_contexts")
    counts = zip(*(batches[name].tolist() for name in (*names, "prefill_squares")), strict=True)
    found = np.zeros((len(batches["starts"]), len(OPERATIONS)))
    for number, (replica, figures) in enumerate(zip(batches["replicas"].tolist(), counts, strict=True)):
        latency = simulated.latencies[replica >= simulated.first_decode_replica]
        assert isinstance(latency, OperatorLatency)
        found[number] = latency.operations_ms(*figures, sends=bool(simulated.logs[replica].stages))
    return {name: found[:, place] for place, name in enumerate(OPERATIONS)}


def cpu_columns(simulated: Simulated, batches: Columns) -> dict[str, Column]:
    """Return the milliseconds of the CPU's work, of which nothing is measured, and those of the model, by batch."""
    milliseconds = np.zeros(len(batches["starts"]))
    for number, log in enumerate(simulated.logs):
        mine, (starts, ends) = batches["replicas"] == number, log.spans[0]
        milliseconds[mine] = (np.array(ends) - np.array(starts))[batches["places"][mine]] * 1e3
    nothing = np.zeros(len(milliseconds))
    return {name: milliseconds if name == "model_execution_e2e" else nothing for name in _CPU_OPERATIONS}


def _write_operations(path: Path, columns: Mapping[str, Column]) -> None:
    """Write a row for each batch; cells of operators that rest are empty."""
    cells = {name: [None if np.isnan(each) else each for each in values.tolist()] for name, values in columns.items()}
    _write_columns(path, {"Batch Id": range(max(map(len, cells.values()))), **cells})


def write_chrome_trace(simulated: Simulated, batches: Columns, folder: Path) -> None:
    """Write the batches of all stages: as Vidur, or with names, requests and their ways as --metrics-dir has them."""
    with RowFile(folder / "chrome_trace.json") as file:
        if simulated.cluster.is_original:
            _write_as_vidur(simulated, batches, JsonItems(file, '{"traceEvents":[', "]}\n"))
        else:
            _write_with_requests(simulated, batches, ChromeTrace(file))


def _write_as_vidur(simulated: Simulated, batches: Columns, items: JsonItems) -> None:
    for number, replica, (jobs, tokens), spans in _batch_spans(simulated, batches):
        args = {"batch_id": number, "batch_size": len(jobs), "request_ids": jobs, "num_tokens": tokens}
        for stage, (start, end) in enumerate(spans):
            times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
            items.add({"name": str(jobs), "ph": "X", **times, "pid": replica, "tid": stage, "args": args})
    items.end()


def _write_with_requests(simulated: Simulated, batches: Columns, trace: ChromeTrace) -> None:
    prompts, decodes = batches["batch_num_prefill_tokens"].tolist(), batches["batch_num_decode_tokens"].tolist()
    for number, replica, (jobs, tokens), spans in _batch_spans(simulated, batches):
        stages = [(micros(start), micros(end)) for start, end in spans]
        trace.batch(replica, number, stages, jobs, len(jobs), (len(jobs), prompts[number], decodes[number]), tokens)
    for job in simulated.jobs:
        last = job.replica if job.decode_replica is None else simulated.first_decode_replica + job.decode_replica
        way = (
            _place(simulated.logs, job.replica, job.scheduled_at, is_end=False),
            _place(simulated.logs, job.replica, job.prefilled_at, is_end=True),
            _place(simulated.logs, last, job.completed_at, is_end=True),
        )
        trace.request(job.index, list(_phases(job)), [each for each in way if each is not None])
    trace.end()


def _place(logs: Sequence[BatchLog], replica: int, at: float | None, *, is_end: bool) -> Place | None:
    """Return the batch of a replica that ends at an instant, or the first one that starts from it on."""
    starts, ends = logs[replica].spans[0][0], logs[replica].spans[-1][1]
    if at is None or (place := bisect_left(ends if is_end else starts, at)) >= len(starts):
        return None
    return Place(replica, micros(starts[place]))


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
        yield name, micros(start), micros(end)


def _batch_spans(
    simulated: Simulated, batches: Columns
) -> Iterator[tuple[int, int, tuple[list[int], list[int]], list[tuple[float, float]]]]:
    """Yield the number of each batch, its replica, its requests with the tokens of each, and its span in each stage."""
    logs = simulated.logs
    spans = [log.spans for log in logs]
    for number, (replica, place) in enumerate(
        zip(batches["replicas"].tolist(), batches["places"].tolist(), strict=True)
    ):
        yield (
            number,
            replica,
            logs[replica].members[place],
            [(starts[place], ends[place]) for starts, ends in spans[replica]],
        )


def write_event_trace(simulated: Simulated, batches: Columns, folder: Path) -> None:
    """Write arrivals, first batches, ends of batches and of requests in the order of time."""
    events: list[tuple[float, str, dict[str, Any]]] = []
    columns = (batches[name].tolist() for name in ("ends", "replicas", "starts", "batch_size"))
    for number, (end, replica, start, size) in enumerate(zip(*columns, strict=True)):
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
            trace.add_arrival(micros(job.arrived_at), job.index)
        for at, name, details in events:
            trace.add_event(micros(at), name, **details)
        trace.end(micros(max([0.0, *(job.arrived_at for job in simulated.jobs)])))


def write_cluster(simulated: Simulated, folder: Path) -> None:
    """Write the sizes of the replicas."""
    model, replicas = simulated.cluster.model, list[dict[str, Any]]()
    sizes = ("num_layers", "num_q_heads", "num_kv_heads", "embedding_dim", "mlp_hidden_dim", "use_gated_mlp")
    known = {name: getattr(model, name) for name in (*sizes, "vocab_size")}
    for pool in simulated.cluster.pools:
        own = {"num_pipeline_stages": pool.num_stages, "num_tensor_parallel_workers": pool.tp}
        replicas += [{"id": len(replicas) + number, **known, **own} for number in range(pool.num_replicas)]
    write_text(folder / "cluster.json", json.dumps({"replicas": replicas}))
