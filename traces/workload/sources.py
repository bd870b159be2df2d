"""From a spec to the sources of its requests: clients and members of cohorts, their times and their random numbers.

A source is one client, or one client in one of its windows where windows differ in more than their rate.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.options.addition import sequential_sum
from traces.workload.arrivals import FixedCountArrivals, RenewalProcess, Timeline, gaps_of
from traces.workload.lengths import LengthProfile
from traces.workload.spec import (
    Arrival,
    Client,
    Cohort,
    Diurnal,
    Drain,
    Lifecycle,
    Spike,
    Traffic,
    Window,
    WorkloadSpec,
)
from traces.workload.streams import Streams, client_streams

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


Span: TypeAlias = tuple[int, int]
"""Start and end of a stretch of time in microseconds, the end excluded."""
Spans: TypeAlias = tuple[Span, ...] | None
"""Spans in which a client is active; None is always."""


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Equal time as ascending spans that do not touch."""
    result: list[Span] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def shares(weights: Sequence[tuple[float, Spans]]) -> list[float]:
    """The share of each: its weight among all whose time overlaps its own, itself included."""
    totals: dict[Spans, float] = {}
    for weight, spans in weights:
        totals[spans] = totals.get(spans, 0.0) + weight
    active = {
        spans: sequential_sum(total for other, total in totals.items() if spans == other or _overlap(spans, other))
        for spans in totals
    }
    return [weight / active[spans] for weight, spans in weights]


def _overlap(one: Spans, other: Spans) -> bool:
    if one is None or other is None:
        return True
    # Most pairs are apart as a whole.
    if one[-1][1] <= other[0][0] or other[-1][1] <= one[0][0]:
        return False
    return any(start < end2 and start2 < end for start, end in one for start2, end2 in other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A client during one timeline. `label` names its sessions, and no other source has it."""

    label: str
    profile: LengthProfile
    timeline: Timeline
    streams: Streams

    @property
    def client(self) -> Client:
        return self.profile.client


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """A client whose users each wait for their reply."""

    label: str
    profile: LengthProfile
    streams: Streams

    @property
    def client(self) -> Client:
        return self.profile.client


def named(clients: list[Client], seed: int) -> Iterator[tuple[Client, str, Streams]]:
    """Each client with a label and streams that no other client has, even one of the same id."""
    seen: Counter[str] = Counter()
    for client in clients:
        occurrence = seen[client.id]
        seen[client.id] += 1
        label = f"{client.id}#{occurrence + 1}" if occurrence else client.id
        yield client, label, client_streams(seed, client.id, occurrence)


def sources_of(spec: WorkloadSpec) -> tuple[list[Source], list[Users]]:
    """The sources of a spec that has clients or cohorts."""
    everyone = list(named(all_clients(spec), spec.seed))
    users = [
        Users(label=label, profile=_profile(client), streams=streams)
        for client, label, streams in everyone
        if client.concurrency
    ]
    at_a_rate = [each for each in everyone if not each[0].concurrency]
    by_window = any(window.overrides_client for client, _, _ in at_a_rate for window in client.windows or ())
    divided = _by_window(at_a_rate) if by_window else [(each, None) for each in at_a_rate]
    fractions = shares([(_weight(each[0], window), _spans(each[0], window)) for each, window in divided])
    sources = [
        _source(*each, window, spec.aggregate_rate * fraction)
        for (each, window), fraction in zip(divided, fractions, strict=True)
    ]
    return sources, users


_Named = tuple[Client, str, Streams]


def _by_window(everyone: list[_Named]) -> list[tuple[_Named, Window | None]]:
    """Each client in each of its windows, apart; clients without windows as they are."""
    divided: list[tuple[_Named, Window | None]] = []
    for client, label, streams in everyone:
        if client.windows is None:
            divided.append(((client, label, streams), None))
        for number, window in enumerate(client.windows or ()):
            divided.append(((client, f"{label}_window_{number}", streams.part(number)), window))
    return divided


def _weight(client: Client, window: Window | None) -> float:
    """Return the weight of a client's share of the aggregate rate."""
    return client.rate_fraction if window is None or window.trace_rate is None else window.trace_rate


def _spans(client: Client, window: Window | None) -> Spans:
    if window is not None:
        return ((window.start_us, window.end_us),)
    return None if client.windows is None else merge_spans((each.start_us, each.end_us) for each in client.windows)


def _source(client: Client, label: str, streams: Streams, window: Window | None, rate: float) -> Source:
    if window is None:
        timeline: Timeline = renewal_process(client.arrival, rate, _spans(client, None))
    else:
        timeline = _filled(client.arrival, window, rate)
    return Source(label=label, profile=_profile(client, window), timeline=timeline, streams=streams)


def renewal_process(arrival: Arrival, rate: float, spans: Spans) -> RenewalProcess:
    """Arrivals at a rate (requests per second), inside `spans` only."""
    gaps, mean_gap_us = gaps_of(arrival, rate)
    return RenewalProcess(gaps=gaps, mean_gap_us=mean_gap_us, spread=max(1.0, arrival.cv or 1.0), windows=spans)


def fixed_count_arrivals(
    arrival: Arrival, rate: float, start_us: int, duration_us: float, num_gaps: int
) -> FixedCountArrivals:
    """A fixed number of arrivals, the last of them at the end."""
    gaps, _ = gaps_of(arrival, rate)
    return FixedCountArrivals(gaps=gaps, num_gaps=num_gaps, start_us=start_us, duration_us=duration_us, keeps_last=True)


def arrivals_before_end(
    arrival: Arrival, rate: float, start_us: int, duration_us: float, count: int
) -> FixedCountArrivals:
    """A fixed number of arrivals, all of them before the end: those of the process, given how many there are."""
    gaps, _ = gaps_of(arrival, rate)
    return FixedCountArrivals(gaps=gaps, num_gaps=count + 1, start_us=start_us, duration_us=duration_us)


def _filled(arrival: Arrival, window: Window, aggregate_share: float) -> FixedCountArrivals:
    """Arrivals that fill one window: as many gaps as its rate asks for, the last one ending with it.

    Without an aggregate rate the window has its own.
    """
    rate = aggregate_share or window.trace_rate or 0.0
    gaps, _ = gaps_of(window.arrival or arrival, rate)
    duration_us = window.end_us - window.start_us
    # Without rounding, a rate of a third of 6 would make one gap more.
    num_gaps = math.ceil(rate * duration_us / 1e6 - 1e-9)
    return FixedCountArrivals(gaps=gaps, num_gaps=num_gaps, start_us=window.start_us, duration_us=duration_us)


def _profile(client: Client, window: Window | None = None) -> LengthProfile:
    own_input = None if window is None else window.input_distribution
    own_output = None if window is None else window.output_distribution
    return LengthProfile(client, own_input or client.input_distribution, own_output or client.output_distribution)
