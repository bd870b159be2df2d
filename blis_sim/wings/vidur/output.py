"""The output folder of Vidur and SimAI: configuration, requests, batches, operators and traces of events."""

import json
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_sim.engine.units import Micros
from blis_sim.options import OptionError
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.batches import BatchLog, Column, Columns, columns_of
from blis_sim.wings.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.wings.vidur.cluster import Cluster, Pool, layer_parameters
from blis_sim.wings.vidur.latency import OPERATIONS, OperatorLatency
from blis_sim.wings.vidur.replica import TimedJob, micros
from blis_sim.wings.vidur.settings import chosen, values_of
from blis_sim.wings.vidur.simulation import Simulated
from replay.metrics_dir.pictures import can_draw
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_DURATIONS = VIDUR_COLUMNS[1:-6]
"""The columns of times of complete requests, in seconds."""
_FRACTIONS = np.linspace(0, 1, 101)
_ACCURACY = 0.001
"""Largest relative error of a quantile of the original."""
_LEAST = 1e-9
"""Values up to this one have no logarithm in the original."""
_ORIGINAL_TERA = 2**40
"""Operations per second that Vidur takes for a TFLOP/s."""
_BINS = 25
_MOST_POINTS = 4000
"""Points of a line in a picture."""
_COUNTS = {
    "request_inter_arrival_delay": "s since the arrival before",
    "request_num_tokens": "tokens of a request",
    "request_num_prefill_tokens": "tokens of a prompt",
    "request_num_decode_tokens": "output tokens",
    "request_pd_ratio": "tokens of a prompt for each output token",
    "request_num_restarts": "restarts",
}
"""Figures of requests that Vidur draws as histograms, with their labels."""
_BATCH_FIGURES = {
    "batch_execution_time": "time of a batch, s",
    "batch_num_tokens": "tokens in a batch",
    "batch_num_prefill_tokens": "prompt tokens in a batch",
    "batch_num_decode_tokens": "decodes in a batch",
    "batch_size": "requests in a batch",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One file of the folder, and its picture: shares of a sample up to a value, or values over batches or time."""

    name: str
    x_label: str
    y_label: str
    x: Column
    y: Column
    table: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """The columns of the file, with the numbers of its rows where these do not count up.

    Without any there is a picture alone, a histogram of `x`.
    """


def write_plots(
    options: Any,
    simulated: Simulated,
    requests: Mapping[str, Sequence[Any]],
    batches: Columns,
    operations: Mapping[str, Column],
    folder: Path,
) -> None:
    """Write the folder. `requests` are the columns of request_metrics.csv, `operations` those of operators."""
    given, plots = values_of(options, vidur.METRICS), folder / "plots"
    draws = given["store_plots"] and can_draw()
    plots.mkdir()
    for curve in _curves(given, simulated, requests, batches, operations):
        if curve.table:
            table = {"": count(), **curve.table}
            lines = map(",".join, zip(*(map(repr, column) for column in table.values()), strict=False))
            write_text(plots / f"{curve.name}.csv", "\n".join([",".join(table), *lines, ""]))
        if draws:
            _draw(curve, plots)
    if draws and operations:
        _draw_totals(operations, plots)
    if given["store_utilization_metrics"]:
        for name, figures in use_of(options, simulated, batches).items():
            own = {f"{name}_{figure}": value for figure, value in figures.items()}
            write_text(plots / f"{name}.json", json.dumps(own))


def _curves(
    given: Mapping[str, Any],
    simulated: Simulated,
    requests: Mapping[str, Sequence[Any]],
    batches: Columns,
    operations: Mapping[str, Column],
) -> Iterator[Curve]:
    is_original, numbers = simulated.cluster.is_original, np.arange(len(batches["starts"]))
    keeps_batches = given["keep_individual_batch_metrics"]
    if given["store_request_metrics"]:
        yield from _of_requests(simulated, requests)
    for name, label in _BATCH_FIGURES.items() if given["store_batch_metrics"] and len(numbers) else ():
        yield _shares_of_batches(name, name, label, batches[name], is_original=is_original)
        if keeps_batches:
            yield _over_batches(name, label, numbers, batches[name])
    if given["store_token_completion_metrics"]:
        yield from _of_tokens(simulated)
    for name, values in operations.items():
        known = values[~np.isnan(values)]
        if len(known):
            yield _shares_of_batches(f"{name}_execution_time", name, f"{name}, ms", known, is_original=is_original)
        if keeps_batches:
            yield _over_batches(name, f"{name}, ms", np.flatnonzero(~np.isnan(values)), known)


def _of_requests(simulated: Simulated, requests: Mapping[str, Sequence[Any]]) -> Iterator[Curve]:
    jobs = simulated.jobs
    completed = [place for place, job in enumerate(jobs) if job.completed_at is not None]
    completed.sort(key=lambda place: jobs[place].completed_at or 0.0)
    numbers = np.array([jobs[place].index for place in completed], np.int64)
    for name, cells in requests.items():
        if name in _COUNTS:
            sample = np.array([each for each in cells if each is not None], np.float64)
            yield Curve(name, _COUNTS[name], "requests", sample, sample)
        elif name in _DURATIONS and completed:
            label = f"{name.replace('_', ' ')}, s{' per token' if name.endswith('normalized') else ''}"
            yield _shares_of_requests(name, label, numbers, np.array([cells[place] for place in completed]))
    for kind, times in (
        ("arrival", (job.arrived_at for job in jobs)),
        ("completion", (job.completed_at for job in jobs)),
    ):
        instants = np.sort(np.array([at for at in times if at is not None]))
        yield _sum_over_time(f"request_{kind}", "requests", instants, np.ones(len(instants), np.int64))


def _shares_of_requests(name: str, label: str, numbers: Column, values: Column) -> Curve:
    """Return the share of requests up to the value of each; `numbers` are theirs, in the order of their ends."""
    order = np.argsort(values, kind="stable")
    ascending, shares = values[order], np.arange(1, len(values) + 1) / max(len(values), 1)
    table = {
        "": order.tolist(),
        "Request Id": numbers[order].tolist(),
        name: ascending.tolist(),
        "cdf": shares.tolist(),
    }
    return Curve(name, label, "share of requests", ascending, shares, table)


def _shares_of_batches(name: str, column: str, label: str, values: Column, *, is_original: bool) -> Curve:
    """Return the value below which each hundredth of a sample lies; the original's are off by up to a thousandth."""
    points = _sketched(values) if is_original else np.quantile(values, _FRACTIONS, method="inverted_cdf").astype(float)
    table = {"cdf": _FRACTIONS.tolist(), column: points.tolist()}
    return Curve(name, label, "share of batches", points, _FRACTIONS, table)


def _sketched(values: Column) -> Column:
    """Return quantiles as a sketch has them that counts values in buckets whose bounds grow by a constant factor.

    Facts: the DDSketch of the package ddsketch.
    """
    gamma = (1 + _ACCURACY) / (1 - _ACCURACY)
    positive = values[values > _LEAST]
    keys, counts = np.unique(np.ceil(np.log(positive) / math.log(gamma) - 1e-12), return_counts=True)
    ranks = _FRACTIONS * (len(values) - 1) - (len(values) - len(positive))
    places = np.searchsorted(np.cumsum(counts), ranks, side="right")
    found = 2 / (1 + gamma) * gamma ** keys[np.minimum(places, len(keys) - 1)] if len(keys) else np.zeros(len(ranks))
    return np.where(ranks < 0, 0.0, found)


def _over_batches(name: str, label: str, numbers: Column, values: Column) -> Curve:
    table = {"Batch Id": numbers.tolist(), name: values.tolist()}
    return Curve(f"{name}_per_batch", "number of the batch", label, numbers, values, table)


def _sum_over_time(name: str, label: str, instants: Column, counts: Column) -> Curve:
    sums = counts.cumsum()
    table = {"Time (sec)": instants.tolist(), name: sums.tolist()}
    return Curve(f"{name}_time_series", "time, s", label, instants, sums, table)


def _of_tokens(simulated: Simulated) -> Iterator[Curve]:
    jobs = sorted(
        (job for job in simulated.jobs if job.prefilled_at is not None), key=lambda job: job.prefilled_at or 0
    )
    instants = np.array([job.prefilled_at for job in jobs], np.float64)
    prompts = np.array([job.prompt_tokens for job in jobs], np.int64)
    yield _sum_over_time("prefill_completion", "prompt tokens", instants, prompts)
    ends, gaps = decoded_tokens(simulated)
    yield _sum_over_time("decode_completion", "decoded tokens", ends, np.ones(len(ends), np.int64))
    if len(gaps):
        name, label = "decode_token_execution_plus_preemption_time", "s since the token before"
        yield _shares_of_batches(name, name, label, gaps, is_original=simulated.cluster.is_original)


def decoded_tokens(simulated: Simulated) -> tuple[Column, Column]:
    """Return the end of the batch of each decoded token, in order, and the time since the request's batch before."""
    ends, gaps, last = list[float](), list[float](), dict[int, float]()
    for log in simulated.logs:
        decodes = log.counts["batch_num_decode_tokens"]
        for place in log.ended(simulated.limit_s).tolist():
            end, (jobs, _) = log.ends[place], log.members[place]
            ends += [end] * decodes[place]
            gaps += [end - last.get(job, end) for job in jobs[: decodes[place]]]  # a batch has its decodes first
            last.update(dict.fromkeys(jobs, end))
    order = np.argsort(ends, kind="stable")
    return np.array(ends)[order], np.array(gaps)[order]


def use_of(options: Any, simulated: Simulated, batches: Columns) -> dict[str, dict[str, float]]:
    """Return what each file on the use of a replica or of a stage has: least, largest and mean value.

    The original numbers from 1 and has the first replica and the first stage last.
    """
    cluster, logs = simulated.cluster, simulated.logs
    pools = [pool for pool in cluster.pools for _ in range(pool.num_replicas)]
    until = float(batches["ends"].max(initial=0.0))
    found: dict[str, dict[str, float]] = {}
    for number, (log, pool) in enumerate(zip(logs, pools, strict=True)):
        name = f"replica_{_number(number, len(logs), cluster)}"
        found[f"{name}_memory_usage"] = _memory(log, pool, until, is_original=cluster.is_original)
        counts = {key: np.array(column, np.float64) for key, column in log.counts.items()}
        for stage, spans in enumerate(log.spans):
            of_stage = f"{name}_stage_{_number(stage, len(log.spans), cluster)}"
            starts, ends = (np.array(each) for each in spans)
            left = ends <= simulated.limit_s
            starts, ends = starts[left], ends[left]
            figures = {"busy_time_percent": np.full(len(starts), 100.0)}
            if cluster.model.experts is None:
                figures["mfu"] = _mfu(
                    options, cluster, pool, {key: column[left] for key, column in counts.items()}, ends - starts
                )
            for figure, values in figures.items():
                work = values * (ends - starts)
                mean = _original_mean(work, starts, ends) if cluster.is_original else _share(work.sum(), until)
                found[f"{of_stage}_{figure}"] = _summary(values.max(initial=0.0), mean)
    return dict(sorted(found.items()))


def _number(place: int, most: int, cluster: Cluster) -> int:
    return place if not cluster.is_original else place or most


def _summary(largest: float, mean: float) -> dict[str, float]:
    return {"min": 0.0, "max": float(largest), "weighted_mean": float(mean)}


def _share(work: float, span: float) -> float:
    return work / span if span else 0.0


def _memory(log: BatchLog, pool: Pool, until: float, *, is_original: bool) -> dict[str, float]:
    """The KV blocks in use. The mean of the original is that of its samples, whatever time lies between them."""
    share = 100 / pool.limits.num_blocks
    if is_original:
        mean = log.sampled_blocks / (log.num_samples + 1)  # and the 0 before all samples
    else:
        durations = np.diff(np.minimum(np.array(log.held_at), until), append=until)
        mean = _share((np.array(log.held_blocks) * durations).sum(), until)
    return _summary(log.most_blocks * share, mean * share)


def _original_mean(work: Column, starts: Column, ends: Column) -> float:
    """The original's mean begins with the first change after the instant 0."""
    if not len(starts):
        return 0.0
    first = float(starts[0]) or float(ends[0])
    return _share(work[starts != 0].sum(), float(ends[-1]) - first)


def _mfu(options: Any, cluster: Cluster, pool: Pool, counts: Columns, seconds: Column) -> Column:
    """Return the arithmetic of each batch at the peak rate of a GPU, over its time, in percent.

    The original lets each token of a prompt attend to all of them, and counts 2^40 operations for a TFLOP.
    """
    model = cluster.model
    names = ("batch_num_decode_tokens", "batch_num_prefill_tokens", "contexts", "prefill_squares", "prefill_work")
    decodes, prompts, contexts, squares, work = (counts[name] for name in names)
    own = squares + decodes if cluster.is_original else (squares + prompts) / 2
    num_layers = model.num_layers // pool.num_stages
    weights = layer_parameters(model, pool.tp) * num_layers
    attention = 4 * num_layers * (model.num_q_heads // pool.tp) * model.head_size
    operations = 2 * weights * (prompts + decodes) + attention * (own + work + contexts)
    tflops = DEVICES[values_of(options, vidur.REPLICA)["device"]][0]
    peak = tflops * (_ORIGINAL_TERA if cluster.is_original else 10**12)
    found: Column = 100 * operations / np.maximum(seconds, 1e-12) / peak
    return found


def _draw(curve: Curve, folder: Path) -> None:
    """Draw a curve as PNG. Raises BlisError."""
    from blis_sim.report.figures import Panel, draw_panels, start_axis_at_zero, use_log_scale_if_wide

    def draw(axes: "Axes") -> None:
        if not curve.table:
            axes.hist(curve.x, bins=_BINS)
        else:
            step = -(-len(curve.x) // _MOST_POINTS) or 1
            axes.plot(curve.x[::step], curve.y[::step], drawstyle="steps-post")
        if curve.y_label.startswith("share"):
            use_log_scale_if_wide(axes, "x", [float(curve.x.min()), float(curve.x.max())])
        else:
            start_axis_at_zero(axes, "x")
        start_axis_at_zero(axes, "y")

    title = curve.name.replace("_", " ").capitalize()
    panel = Panel(title=title, x_label=curve.x_label, y_label=curve.y_label, draw=draw)
    draw_panels([panel], str(folder / f"{curve.name}.png"))


def _draw_totals(operations: Mapping[str, Column], folder: Path) -> None:
    """Draw what each operator took in all batches together. Raises BlisError."""
    from blis_sim.report.figures import bar_panel, draw_panels

    sums = {name: float(np.nansum(values)) for name, values in operations.items()}
    totals = dict(sorted(sums.items(), key=lambda item: -item[1]))
    words = {name: f"{value:,.1f}" for name, value in totals.items()}
    panel = bar_panel("Total operation runtimes", "ms in one layer, all batches", totals, words)
    draw_panels([panel], str(folder / "total_operation_runtimes.png"))


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
