"""The pictures of a run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from blis_sim.report.figures import Panel, Target, cdf_panel, heat_panel, time_panel
from blis_sim.report.tables import duration
from replay.analysis.clusters import engine_names
from replay.analysis.steady import waiting_at
from replay.simulation.record import NEVER, Floats, Ints, Record
from replay.simulation.simulate import Simulated
from traces import SloTargets

_NUM_SAMPLES = 240
_MOST_INTERVALS = 60
_MOST_TARGETS = 3


@dataclass(frozen=True, slots=True)
class _Departures:
    """The instants of each request's admission and departure; `NEVER` where unknown or not reached."""

    scheduled_at: Ints
    left_at: Ints


def panels_of(simulated: Simulated, targets: Mapping[str, SloTargets]) -> list[Panel]:
    """Return the panels of a run in which a request completed; none otherwise."""
    record = simulated.requests
    if not record.is_completed.any():
        return []
    end_us = max(int(simulated.simulation.clock), 1)
    instants = np.linspace(0, end_us, _NUM_SAMPLES).astype(np.int64)
    at_s = instants / 1e6
    lines = {
        "running": (at_s, _running_at(_departures_of(record), instants).astype(np.float64)),
        "waiting": (at_s, waiting_at(record, instants).astype(np.float64)),
    }
    return [
        time_panel("Requests running and waiting", "requests", lines, is_stepped=True),
        _throughput_panel(record, end_us),
        _latency_panel("TTFT over time", record, record.ttft_us, end_us, _limits_of(targets, "ttft_ms")),
        _latency_panel("E2E over time", record, record.e2e_us, end_us, _limits_of(targets, "e2e_ms")),
        *_latency_panels(record, targets),
        _kv_panel(simulated, instants),
        *_instance_panels(simulated, instants),
    ]


def _limits_of(targets: Mapping[str, SloTargets], name: str) -> list[Target]:
    limits = {slo_class: getattr(each, name) for slo_class, each in targets.items() if getattr(each, name)}
    many = len(limits) > 1
    return [
        Target(limit_ms, f"target{f' of {slo_class}' if many else ''}, {duration(limit_ms)}")
        for slo_class, limit_ms in list(limits.items())[:_MOST_TARGETS]
    ]


def _departures_of(record: Record) -> _Departures:
    """Return when requests were admitted and left; those that are still there, or gave up, never left."""
    arrived_at, delay_us = record.arrived_at, record.scheduling_delay_us
    scheduled_at = np.where(delay_us == NEVER, NEVER, arrived_at + delay_us)
    return _Departures(scheduled_at, np.where(record.is_completed, arrived_at + record.e2e_us, NEVER))


def _running_at(ends: _Departures, instants: Ints, members: Ints | None = None) -> Ints:
    """Return how many admitted requests that complete are there at each instant."""
    is_there = (ends.scheduled_at != NEVER) & (ends.left_at != NEVER)
    if members is not None:
        is_there &= members.astype(np.bool_)
    begun, left = np.sort(ends.scheduled_at[is_there]), np.sort(ends.left_at[is_there])
    return np.searchsorted(begun, instants, side="right") - np.searchsorted(left, instants, side="right")


def _throughput_panel(record: Record, end_us: int) -> Panel:
    edges = np.linspace(0, end_us, _MOST_INTERVALS + 1)
    width_s = end_us / _MOST_INTERVALS / 1e6
    completed = record.is_completed
    first_at = (record.arrived_at + record.ttft_us)[completed].astype(np.float64)
    last_at = (record.arrived_at + record.e2e_us)[completed].astype(np.float64)
    tokens = record.output_tokens[completed].astype(np.float64)
    produced = _tokens_by(first_at, last_at, tokens, edges)
    middles_s = (edges[1:] + edges[:-1]) / 2 / 1e6
    lines = {"output tokens": (middles_s, np.diff(produced) / width_s)}
    return time_panel("Output tokens per second", "output tokens/s", lines)


def _tokens_by(first_at: Floats, last_at: Floats, tokens: Floats, instants: Floats) -> Floats:
    """Return the output tokens up to each instant: a request's first token, and its other tokens evenly after it."""
    counts = np.zeros(len(instants))
    rates = np.divide(
        np.maximum(tokens - 1, 0), last_at - first_at, out=np.zeros_like(tokens), where=last_at > first_at
    )
    for place, at in enumerate(instants):
        counts[place] = (np.clip(np.minimum(last_at, at) - first_at, 0, None) * rates + (first_at <= at)).sum()
    return counts


def _latency_panel(title: str, record: Record, column_us: Ints, end_us: int, targets: Sequence[Target]) -> Panel:
    """Return median and p99 of a latency by the time at which requests arrived."""
    known = column_us != NEVER
    places = np.minimum(record.arrived_at[known] * _MOST_INTERVALS // end_us, _MOST_INTERVALS - 1)
    values_ms = column_us[known] / 1000
    middles_s, halves, tails = [], [], []
    for place in np.unique(places):
        group = values_ms[places == place]
        middles_s.append((place + 0.5) * end_us / _MOST_INTERVALS / 1e6)
        half, tail = np.percentile(group, (50, 99))
        halves.append(half)
        tails.append(tail)
    at_s = np.array(middles_s)
    lines = {"median": (at_s, np.array(halves)), "p99": (at_s, np.array(tails))}
    return time_panel(title, f"{title.split()[0]}, ms, by arrival", lines, targets, may_be_log=True)


def _latency_panels(record: Record, targets: Mapping[str, SloTargets]) -> Iterator[Panel]:
    completed = record.is_completed
    ttft_ms = record.ttft_us[record.ttft_us != NEVER] / 1000
    itl_ms = record.itl_mean_us[completed & (record.output_tokens > 1)] / 1000
    yield cdf_panel("Distribution of TTFT", "TTFT, ms", {"TTFT": ttft_ms}, _limits_of(targets, "ttft_ms"))
    if len(itl_ms):
        label = "mean ITL per request, ms"
        limits = _limits_of(targets, "itl_ms")
        yield cdf_panel("Distribution of mean ITL per request", label, {"ITL": itl_ms}, limits)
    e2e_ms = record.e2e_us[completed] / 1000
    yield cdf_panel("Distribution of E2E", "E2E, ms", {"E2E": e2e_ms}, _limits_of(targets, "e2e_ms"))


def _kv_panel(simulated: Simulated, instants: Ints) -> Panel:
    """Return the share of the KV cache that running requests need, as if no blocks were shared."""
    record, ends = simulated.requests, _departures_of(simulated.requests)
    capacity = sum(engine.config.kv_capacity_tokens for engine in simulated.simulation.instances)
    completed = record.is_completed & (ends.scheduled_at != NEVER)
    begun, left = ends.scheduled_at[completed].astype(np.float64), ends.left_at[completed].astype(np.float64)
    first_at = (record.arrived_at + record.ttft_us)[completed].astype(np.float64)
    prompts, outputs = record.input_tokens[completed], record.output_tokens[completed].astype(np.float64)
    rates = np.divide(outputs, left - first_at, out=np.zeros_like(outputs), where=left > first_at)
    shares = []
    for at in instants:
        is_there = (begun <= at) & (at < left)
        shares.append(100 * (is_there * (prompts + np.clip(at - first_at, 0, None) * rates)).sum() / capacity)
    line = (instants / 1e6, np.array(shares))
    return time_panel("KV cache needed by running requests", "% of KV blocks", {"context of running requests": line})


def _instance_panels(simulated: Simulated, instants: Ints) -> Iterator[Panel]:
    """Yield a heat map of running requests, where there are several instances."""
    count = len(simulated.simulation.instances)
    if count < 2:
        return
    record, ends = simulated.requests, _departures_of(simulated.requests)
    rows = [_running_at(ends, instants, record.instance == number) for number in range(count)]
    names = engine_names(simulated.simulation)
    values = np.array(rows, np.float64)
    end_s = float(instants[-1]) / 1e6
    yield heat_panel("Running requests of each instance", names, end_s, values, "running requests")
