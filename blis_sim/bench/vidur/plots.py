"""The folder `plots` of Vidur: tables of distributions and sums over time, use of replicas, and pictures of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.batches import Batches, BatchLog, is_ended
from blis_sim.bench.vidur.distributions import (
    Curve,
    Numbers,
    Values,
    series,
    shares_of_batches,
    shares_of_requests,
    use_of,
)
from blis_sim.bench.vidur.files import DURATIONS
from blis_sim.bench.vidur.settings import values_of
from blis_sim.bench.vidur.simulation import Simulated
from replay.metrics_dir.pictures import can_draw
from traces.text_file import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class DecodedTokens:
    """Each decoded token: the end of its batch, and the time since the batch of the same request before."""

    ends: npt.NDArray[np.float64]
    gaps: npt.NDArray[np.float64]


def decoded_tokens(logs: Sequence[BatchLog]) -> DecodedTokens:
    """Return the tokens decoded by replicas, whose logs keep the requests of batches, in the order of their ends."""
    ends, gaps, last = list[float](), list[float](), dict[int, float]()
    for log in logs:
        _add(log, last, ends, gaps)
    order = np.argsort(ends, kind="stable")
    return DecodedTokens(np.array(ends)[order], np.array(gaps)[order])


def _add(log: BatchLog, last: dict[int, float], ends: list[float], gaps: list[float]) -> None:
    """Add the tokens of one replica. `last` has the end of the latest batch of each request."""
    ended, place, member = is_ended(log).tolist(), 0, 0
    for number, size, decodes in zip(log.numbers, log.sizes, log.decodes, strict=True):
        of_batches = [log.ends[each] for each in range(place, place + number) if ended[each]]
        jobs = log.jobs[member : member + size]
        place, member = place + number, member + size
        if not of_batches:
            continue
        first = of_batches[0]
        ends += [first] * decodes
        gaps += [first - last.get(job, first) for job in jobs[:decodes]]  # a batch has its decodes first
        for before, end in pairwise(of_batches):
            ends += [end] * decodes
            gaps += [end - before] * decodes
        last.update(dict.fromkeys(jobs, of_batches[-1]))


_TIME = "time, s"
_BATCH = "number of the batch"
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


def write_plots(
    options: Any,
    simulated: Simulated,
    requests: Mapping[str, Sequence[Any]],
    batches: Batches,
    operations: Mapping[str, Values],
    folder: Path,
) -> None:
    """Write the folder. `requests` are the columns of request_metrics.csv, `operations` those of operators."""
    given, plots = values_of(options, vidur.METRICS), folder / "plots"
    draws = given["store_plots"] and can_draw()
    plots.mkdir()
    for curve in _curves(given, simulated, requests, batches, operations):
        if curve.header:
            write_text(plots / f"{curve.name}.csv", "\n".join([curve.header, *curve.rows, ""]))
        if draws:
            _draw(curve, plots)
    if draws and operations:
        _draw_totals(operations, plots)
    if given["store_utilization_metrics"]:
        for name, figures in use_of(options, simulated).items():
            own = {f"{name}_{figure}": value for figure, value in figures.items()}
            write_text(plots / f"{name}.json", json.dumps(own))


def _curves(
    given: Mapping[str, Any],
    simulated: Simulated,
    requests: Mapping[str, Sequence[Any]],
    batches: Batches,
    operations: Mapping[str, Values],
) -> Iterator[Curve]:
    is_original = simulated.cluster.is_original
    if given["store_request_metrics"]:
        yield from _of_requests(simulated, requests)
    if given["store_batch_metrics"] and len(batches):
        for name, (label, values) in _figures(batches).items():
            yield shares_of_batches(name, name, label, values, is_original=is_original)
            if given["keep_individual_batch_metrics"]:
                numbers = np.arange(len(batches))
                yield series(f"{name}_per_batch", "Batch Id", name, (_BATCH, label), numbers, values)
    if given["store_token_completion_metrics"]:
        yield from _of_tokens(simulated, is_original=is_original)
    for name, values in operations.items():
        label, known = f"{name}, ms", values[~np.isnan(values)]
        if len(known):
            yield shares_of_batches(f"{name}_execution_time", name, label, known, is_original=is_original)
        if given["keep_individual_batch_metrics"]:
            numbers = np.flatnonzero(~np.isnan(values))
            yield series(f"{name}_per_batch", "Batch Id", name, (_BATCH, label), numbers, known)


def _figures(batches: Batches) -> dict[str, tuple[str, Numbers]]:
    return {
        "batch_execution_time": ("time of a batch, s", batches.seconds),
        "batch_num_tokens": ("tokens in a batch", batches.num_tokens),
        "batch_num_prefill_tokens": ("prompt tokens in a batch", batches.prefill_tokens),
        "batch_num_decode_tokens": ("decodes in a batch", batches.decodes),
        "batch_size": ("requests in a batch", batches.sizes),
    }


def _of_requests(simulated: Simulated, requests: Mapping[str, Sequence[Any]]) -> Iterator[Curve]:
    jobs = simulated.jobs
    completed = sorted(
        (place for place, job in enumerate(jobs) if job.completed_at is not None), key=_completions(simulated)
    )
    numbers = [jobs[place].index for place in completed]
    for name, cells in requests.items():
        if name in _COUNTS:
            sample = np.array([each for each in cells if each is not None], np.float64)
            yield Curve(name, _COUNTS[name], "requests", sample, sample, is_histogram=True)
        elif name in DURATIONS and completed:
            label = f"{name.replace('_', ' ')}, s{' per token' if name.endswith('normalized') else ''}"
            yield shares_of_requests(name, label, numbers, np.array([cells[place] for place in completed]))
    arrivals = np.sort(np.array([job.arrived_at for job in jobs]))
    ends = np.sort(np.array([job.completed_at for job in jobs if job.completed_at is not None]))
    for kind, instants in (("arrival", arrivals), ("completion", ends)):
        yield _sum_over_time(f"request_{kind}", "requests", instants, np.ones(len(instants), np.int64))


def _completions(simulated: Simulated) -> Any:
    return [job.completed_at for job in simulated.jobs].__getitem__


def _sum_over_time(name: str, label: str, instants: Values, counts: Numbers) -> Curve:
    sums: Numbers = counts.cumsum()
    return series(f"{name}_time_series", "Time (sec)", name, (_TIME, label), instants, sums)


def _of_tokens(simulated: Simulated, *, is_original: bool) -> Iterator[Curve]:
    jobs = sorted(
        (job for job in simulated.jobs if job.prefilled_at is not None), key=lambda job: job.prefilled_at or 0
    )
    instants = np.array([job.prefilled_at for job in jobs], np.float64)
    prompts = np.array([job.prompt_tokens for job in jobs], np.int64)
    yield _sum_over_time("prefill_completion", "prompt tokens", instants, prompts)
    tokens = decoded_tokens(simulated.logs)
    yield _sum_over_time("decode_completion", "decoded tokens", tokens.ends, np.ones(len(tokens.ends), np.int64))
    if len(tokens.gaps):
        name = "decode_token_execution_plus_preemption_time"
        yield shares_of_batches(name, name, "s since the token before", tokens.gaps, is_original=is_original)


def _draw(curve: Curve, folder: Path) -> None:
    """Draw a curve as PNG. Raises BlisError."""
    from blis_sim.pictures.style import Panel, draw_panels, start_axis_at_zero, use_log_scale_if_wide

    def draw(axes: "Axes") -> None:
        if curve.is_histogram:
            axes.hist(curve.x, bins=_BINS)
        else:
            step = -(-len(curve.x) // _MOST_POINTS) or 1
            axes.plot(curve.x[::step], curve.y[::step], drawstyle="steps-post")
        if curve.has_shares:
            use_log_scale_if_wide(axes, "x", [float(curve.x.min()), float(curve.x.max())])
        else:
            start_axis_at_zero(axes, "x")
        start_axis_at_zero(axes, "y")

    title = curve.name.replace("_", " ").capitalize()
    panel = Panel(title=title, x_label=curve.x_label, y_label=curve.y_label, draw=draw)
    draw_panels([panel], str(folder / f"{curve.name}.png"))


def _draw_totals(operations: Mapping[str, Numbers], folder: Path) -> None:
    """Draw what each operator took in all batches together. Raises BlisError."""
    from blis_sim.pictures.panels import bar_panel
    from blis_sim.pictures.style import draw_panels

    sums = {name: float(np.nansum(values)) for name, values in operations.items()}
    totals = dict(sorted(sums.items(), key=lambda item: -item[1]))
    words = {name: f"{value:,.1f}" for name, value in totals.items()}
    panel = bar_panel("Total operation runtimes", "ms in one layer, all batches", totals, words)
    draw_panels([panel], str(folder / "total_operation_runtimes.png"))
