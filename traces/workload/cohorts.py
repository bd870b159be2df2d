"""Cohorts as clients: one for each member, active when the cohort's pattern says."""

import dataclasses
import math
from collections.abc import Iterator

from traces.workload.spec import Client, Cohort, Diurnal, Drain, Lifecycle, Spike, Traffic, Window, WorkloadSpec

HOUR_US = 3_600_000_000
_DRAIN_SEGMENTS = 10
_SHARED_FIELDS = tuple(field.name for field in dataclasses.fields(Traffic))


def all_clients(spec: WorkloadSpec) -> list[Client]:
    """The clients of a spec and the members of its cohorts. The first of a prefix group decides its length."""
    clients = [*spec.clients]
    for cohort in spec.cohorts:
        clients += _members(cohort)
    lengths: dict[str, int] = {}
    for client in clients:
        lengths.setdefault(client.prefix_group, client.prefix_tokens)
    return [
        client
        if client.prefix_tokens == lengths[client.prefix_group]
        else dataclasses.replace(client, prefix_length=lengths[client.prefix_group])
        for client in clients
    ]


def _members(cohort: Cohort) -> Iterator[Client]:
    shared = {name: getattr(cohort, name) for name in _SHARED_FIELDS}
    shared["rate_fraction"] /= cohort.population
    windows = tuple(_windows(cohort))
    shared["lifecycle"] = Lifecycle(windows=windows) if windows else None
    for number in range(cohort.population):
        group = cohort.prefix_group
        if cohort.prefix_sharing == "per_member":
            group = f"{group}-{number}"
        yield Client(**{**shared, "id": f"{cohort.id}-{number}", "prefix_group": group})


def _windows(cohort: Cohort) -> Iterator[Window]:
    """The windows of all patterns of a cohort together; a member gets its share of a spike's rate."""
    if cohort.diurnal is not None:
        yield from _diurnal_windows(cohort.diurnal)
    if cohort.spike is not None:
        yield _spike_window(cohort.spike, cohort.population)
    if cohort.drain is not None:
        yield from _drain_windows(cohort.drain)


def _diurnal_windows(diurnal: Diurnal) -> Iterator[Window]:
    trough = 1 / diurnal.peak_to_trough_ratio
    for hour in range(24):
        height = (1 + math.cos(2 * math.pi * (hour - diurnal.peak_hour) / 24)) / 2
        active_us = int(HOUR_US * (height * (1 - trough) + trough))
        if active_us:
            yield Window(start_us=hour * HOUR_US, end_us=hour * HOUR_US + active_us)


def _spike_window(spike: Spike, population: int) -> Window:
    rate = None if spike.trace_rate is None else spike.trace_rate / population
    return Window(start_us=spike.start_time_us, end_us=spike.start_time_us + spike.duration_us, trace_rate=rate)


def _drain_windows(drain: Drain) -> Iterator[Window]:
    """All of the time until the ramp starts, then ever less of each of its segments."""
    if drain.start_time_us:
        yield Window(start_us=0, end_us=drain.start_time_us)
    segment_us = drain.ramp_duration_us / _DRAIN_SEGMENTS
    for number in range(_DRAIN_SEGMENTS):
        start_us = drain.start_time_us + int(number * segment_us)
        active_us = int(segment_us * (_DRAIN_SEGMENTS - number) / _DRAIN_SEGMENTS)
        if active_us:
            yield Window(start_us=start_us, end_us=start_us + active_us)
