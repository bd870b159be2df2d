"""From a spec to the sources of its requests: clients, their times, and the random numbers that decide.

A source is one client, or where windows have habits of their own one client in one of its windows.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.options.addition import added_up
from traces.workload.arrivals import Renewal, Stretched, Timeline, gaps_of
from traces.workload.cohorts import all_clients
from traces.workload.spec import Arrival, Client, Window, WorkloadSpec
from traces.workload.streams import Streams, client_streams
from traces.workload.turns import Habits

Span: TypeAlias = tuple[int, int]
"""Start and end of a stretch of time in microseconds, the end excluded."""
Spans: TypeAlias = tuple[Span, ...] | None
"""Spans in which a client is active; None is always."""


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
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
        spans: added_up(total for other, total in totals.items() if spans == other or _overlap(spans, other))
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
    habits: Habits
    timeline: Timeline
    streams: Streams

    @property
    def client(self) -> Client:
        return self.habits.client


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """A client whose users each wait for their reply."""

    label: str
    habits: Habits
    streams: Streams

    @property
    def client(self) -> Client:
        return self.habits.client


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
        Users(label=label, habits=_habits(client), streams=streams)
        for client, label, streams in everyone
        if client.concurrency
    ]
    at_a_rate = [each for each in everyone if not each[0].concurrency]
    by_window = any(window.has_own_habits for client, _, _ in at_a_rate for window in client.windows or ())
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
    """What the share of the aggregate rate is proportional to."""
    return client.rate_fraction if window is None or window.trace_rate is None else window.trace_rate


def _spans(client: Client, window: Window | None) -> Spans:
    if window is not None:
        return ((window.start_us, window.end_us),)
    return None if client.windows is None else merged((each.start_us, each.end_us) for each in client.windows)


def _source(client: Client, label: str, streams: Streams, window: Window | None, rate: float) -> Source:
    if window is None:
        timeline: Timeline = renewal(client.arrival, rate, _spans(client, None))
    else:
        timeline = _filled(client.arrival, window, rate)
    return Source(label=label, habits=_habits(client, window), timeline=timeline, streams=streams)


def renewal(arrival: Arrival, rate: float, spans: Spans) -> Renewal:
    """Arrivals at a rate (requests per second), inside `spans` only."""
    gaps, mean_gap_us = gaps_of(arrival, rate)
    return Renewal(gaps=gaps, mean_gap_us=mean_gap_us, spread=max(1.0, arrival.cv or 1.0), windows=spans)


def stretched(arrival: Arrival, rate: float, start_us: int, duration_us: float, num_gaps: int) -> Stretched:
    """A fixed number of arrivals, the last of them at the end."""
    gaps, _ = gaps_of(arrival, rate)
    return Stretched(gaps=gaps, num_gaps=num_gaps, start_us=start_us, duration_us=duration_us, keeps_last=True)


def _filled(arrival: Arrival, window: Window, aggregate_share: float) -> Stretched:
    """Arrivals that fill one window: as many gaps as its rate asks for, the last one ending with it.

    Without an aggregate rate the window has its own.
    """
    rate = aggregate_share or window.trace_rate or 0.0
    gaps, _ = gaps_of(window.arrival or arrival, rate)
    duration_us = window.end_us - window.start_us
    # Lest a rate of a third of 6 make one gap more.
    num_gaps = math.ceil(rate * duration_us / 1e6 - 1e-9)
    return Stretched(gaps=gaps, num_gaps=num_gaps, start_us=window.start_us, duration_us=duration_us)


def _habits(client: Client, window: Window | None = None) -> Habits:
    own_input = None if window is None else window.input_distribution
    own_output = None if window is None else window.output_distribution
    return Habits(client, own_input or client.input_distribution, own_output or client.output_distribution)
