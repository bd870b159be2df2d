"""From a spec to its requests, equal for equal seeds, also at another rate."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from typing import Any, TypeVar

import numpy as np

from blis_sim.options.file_fields import number_text
from blis_sim.options.option import LEAST_RATE, MOST_RATE
from traces.rows import TraceRow
from traces.text_file import TraceError
from traces.workload.distributions import Ints, LengthProfile, Streams, draw_turns
from traces.workload.inference_perf import has_waiting_requests, inference_perf_sources, staged_rows
from traces.workload.request import Round, Session, Workload, WorkloadRequest
from traces.workload.sources import (
    NEVER,
    AnyDrawn,
    DrawnRequests,
    SelectedRequests,
    Source,
    Users,
    check_size,
    check_users,
    draw,
    draw_agents,
    in_order,
    request_of,
    requests_per_session,
    rows_of,
    sources_of,
)
from traces.workload.spec import (
    VIDUR_QPS,
    Arrival,
    Client,
    Cohort,
    InferencePerf,
    Lifecycle,
    Vidur,
    Window,
    WorkloadSpec,
    read_spec,
)
from traces.workload.vidur import vidur_requests

# From a spec to its requests, equal for equal seeds; concurrency users send their next request after a think time.

_ROUNDS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _LaterRounds:
    """The endless rounds of a user after its first. Each iteration begins anew and gives the same ones."""

    profile: LengthProfile
    streams: Streams

    def __iter__(self) -> Iterator[Round]:
        rounds = _rounds(self.profile, self.streams)
        next(rounds)
        return rounds


def _rounds(profile: LengthProfile, streams: Streams) -> Iterator[Round]:
    for block in count():
        turns = draw_turns(profile, streams.part(block), _ROUNDS_AT_ONCE)
        yield from turns.rounds(profile.client.think_time_us)


def user_sessions(users: Users, timeout_us: int) -> Iterator[Session]:
    """One session per user. The users begin spread evenly over one think time."""
    client = users.client
    for number in range(client.concurrency):
        streams = users.streams.part(number)
        arrival_us = number * client.think_time_us // client.concurrency
        first = next(_rounds(users.profile, streams))
        own = first._replace(think_time_us=0)._asdict()
        session_id = f"concurrency_{users.label}_user_{number}"
        request = request_of(client, arrival_us, timeout_us, session_id=session_id, **own)
        yield Session(first=request, later=_LaterRounds(users.profile, streams), timeout_us=timeout_us)


def generate(spec: WorkloadSpec, timeout_us: int | None = None) -> Workload:
    """The requests and sessions of a checked spec. `timeout_us` replaces the timeouts of clients, 0 is never.

    The first `num_requests` of all requests in order of arrival are kept. Rounds of sessions count as if replies took
    no time. Sessions that have begun by then run to their end. Raises TraceError for a spec that never ends, or whose
    requests exceed any memory.
    """
    found = _generated(spec, timeout_us)
    if found.sessions or not found.requests or len(found.requests) >= spec.num_requests:
        return found
    note = f"{len(found.requests)} of the {spec.num_requests} requests of num_requests arrive before the workload ends"
    return replace(found, notes=(*found.notes, note))


def _generated(spec: WorkloadSpec, timeout_us: int | None) -> Workload:
    if spec.vidur is not None:
        return _of_vidur(spec, spec.vidur, timeout_us or 0)
    if spec.scenario is not None:
        from traces.workload.adaptive import scenario_requests  # few specs are scenarios

        return _limited_to_spec(spec, scenario_requests(spec.scenario, spec.seed), timeout_us or 0)
    if spec.inference_perf is not None and has_waiting_requests(spec.inference_perf):
        return _of_stages(spec, spec.inference_perf, timeout_us or 0)
    sources, users = _sources(_with_all_priorities(spec))
    if not spec.num_requests and not spec.horizon and (users or not all(map(_has_end, sources))):
        raise TraceError("the workload never ends: expected num_requests or horizon to bound it, got neither")
    limit_us = spec.horizon or NEVER
    if not spec.num_requests:
        check_users([each.client for each in users], spec.horizon)
    drawn, reach_us = _draw_enough(sources, spec.num_requests, limit_us)
    kept = list(_kept(drawn, reach_us, spec.num_requests or None))
    if any(each.drawn.source.client.agent is not None for each in kept):
        timeouts_us = [_timeout_us(each.drawn.source.client, timeout_us) for each in kept]
        graph = rows_of(
            [SelectedRequests(each.drawn, each.places, own) for each, own in zip(kept, timeouts_us, strict=True)]
        )
        return _of_rows(spec, graph.rows, graph.fixed_sessions)
    requests, sessions = _in_order(kept, timeout_us)
    for each in users:
        waiting = islice(user_sessions(each, _timeout_us(each.client, timeout_us)), spec.num_requests or None)
        sessions += takewhile(lambda session: session.first.arrival_us <= limit_us, waiting)
    sessions.sort(key=lambda session: session.first.arrival_us)
    return Workload(
        requests=requests,
        sessions=sessions,
        max_requests=spec.num_requests if users and spec.num_requests else None,
        horizon_us=spec.horizon or None,
        goodput_slo_targets=spec.goodput_slo_targets,
        notes=spec.notes,
    )


def _with_all_priorities(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec in which traffic without a priority and without an SLO class has priority 0 beside some with a priority.

    It is what a server takes of a request that names none.
    """
    if all(each.priority is None for each in (*spec.clients, *spec.cohorts)):
        return spec

    def priority_of(each: Client | Cohort) -> int | None:
        return 0 if each.priority is None and not each.slo_class else each.priority

    clients = tuple(replace(each, priority=priority_of(each)) for each in spec.clients)
    cohorts = tuple(replace(each, priority=priority_of(each)) for each in spec.cohorts)
    return replace(spec, clients=clients, cohorts=cohorts)


def _of_stages(spec: WorkloadSpec, section: InferencePerf, timeout_us: int) -> Workload:
    """The workload of requests that wait for others; conversations of stages with rates keep to their times."""
    rows = staged_rows(section, spec.seed)
    if spec.horizon and section.stages:
        rows = [row for row in rows if row.arrival_time_us <= spec.horizon]
    if spec.num_requests:
        rows = rows[: spec.num_requests]
    if timeout_us:
        rows = [replace(row, deadline_us=row.arrival_time_us + timeout_us) for row in rows]
    return _of_rows(spec, rows, frozenset(row.session_id for row in rows) if section.stages else frozenset())


def _of_rows(spec: WorkloadSpec, rows: list[TraceRow], fixed_sessions: frozenset[str]) -> Workload:
    return Workload(
        requests=[],
        sessions=[],
        max_requests=None,
        horizon_us=spec.horizon or None,
        goodput_slo_targets=spec.goodput_slo_targets,
        notes=spec.notes,
        rows=rows,
        fixed_sessions=fixed_sessions,
    )


def _of_vidur(spec: WorkloadSpec, section: Vidur, timeout_us: int) -> Workload:
    return _limited_to_spec(spec, vidur_requests(section, spec.seed, spec.num_requests, spec.horizon), timeout_us)


def _limited_to_spec(spec: WorkloadSpec, requests: list[WorkloadRequest], timeout_us: int) -> Workload:
    """The workload of these requests, as far as the spec takes them."""
    if spec.horizon:
        requests = [request for request in requests if request.arrival_us <= spec.horizon]
    if spec.num_requests:
        requests = requests[: spec.num_requests]
    if timeout_us:
        requests = [request._replace(deadline_us=request.arrival_us + timeout_us) for request in requests]
    return Workload(
        requests=requests,
        sessions=[],
        max_requests=None,
        horizon_us=spec.horizon or None,
        goodput_slo_targets=spec.goodput_slo_targets,
        notes=spec.notes,
    )


def _sources(spec: WorkloadSpec) -> tuple[list[Source], list[Users]]:
    if spec.inference_perf is not None:
        return inference_perf_sources(spec.inference_perf, spec.seed), []
    return sources_of(spec)


def _has_end(source: Source) -> bool:
    return source.timeline.end_us is not None or _is_single(source)


def _is_single(source: Source) -> bool:
    multi_turn = source.client.multi_turn
    return multi_turn is not None and multi_turn.single_session


def _timeout_us(client: Client, override_us: int | None) -> int:
    return client.timeout_us if override_us is None else override_us


def _draw_enough(sources: Sequence[Source], num_requested: int, limit_us: int) -> tuple[list[AnyDrawn], int]:
    """Return drawn requests of sources, and the instant until which they are complete. Draws at least `num_requested`
    requests, or all up to the limit."""
    last_start_us = max((source.timeline.end_us or NEVER for source in sources if not _is_single(source)), default=0)
    last_start_us = min(last_start_us, limit_us)
    until_us = min(last_start_us, _guess(sources, num_requested)) if num_requested else last_start_us
    while True:
        check_size(sources, until_us, num_requested)
        drawn = [
            draw(source, until_us) if source.client.agent is None else draw_agents(source, until_us)
            for source in sources
        ]
        if until_us >= last_start_us:
            if last_start_us == NEVER:
                num_drawn = sum(len(each.arrival_us) for each in drawn)
                if num_drawn < num_requested:
                    raise TraceError(
                        f"the workload has {num_drawn} of the {num_requested} requests of num_requests before"
                        f" {NEVER:.2g} us: give it fewer or higher rates"
                    )
            return drawn, limit_us
        if sum(int(np.count_nonzero(each.arrival_us <= until_us)) for each in drawn) >= num_requested:
            return drawn, until_us
        until_us = min(last_start_us, 2 * until_us)


def _guess(sources: Sequence[Source], num_requested: int) -> int:
    """An instant by which most likely so many requests have arrived."""
    rate = session_rate = think_us = 0.0
    spread = 1.0
    for source in sources:
        multi_turn = source.client.multi_turn
        rounds = requests_per_session(source)
        if multi_turn is not None:
            think_us = max(think_us, (multi_turn.max_rounds - 1) * multi_turn.think_time_us)
        if not _is_single(source):
            rate += rounds / max(source.timeline.mean_gap_us, 1)
            session_rate += 1 / max(source.timeline.mean_gap_us, 1)
            spread = max(spread, source.timeline.spread)
    if rate <= 0:
        return NEVER
    start_us = min(source.timeline.start_us for source in sources)
    enough = num_requested + 4 * spread * math.sqrt(num_requested) + 8
    # When so many sessions have begun, their first rounds are enough, however long they think.
    return int(min(NEVER, start_us + min(think_us + enough / rate, enough / session_rate))) + 1


@dataclass(frozen=True, slots=True)
class _KeptRequests:
    """Requests of one source that are kept: where they are there, and where in the order of all."""

    drawn: AnyDrawn
    places: Ints
    positions: Ints


def _in_order(
    kept_of_all: Sequence[_KeptRequests], timeout_us: int | None
) -> tuple[Sequence[WorkloadRequest], list[Session]]:
    """The first requests of all sources in order of arrival, those of one instant in the order of sources.

    A closed-loop session whose first round is among them is returned as its blueprint instead.
    """
    selected: list[SelectedRequests] = []
    positions: list[Ints] = []
    sessions: list[Session] = []
    for kept in kept_of_all:
        assert isinstance(kept.drawn, DrawnRequests)
        source_timeout_us = _timeout_us(kept.drawn.source.client, timeout_us)
        if kept.drawn.is_closed_loop:
            first_rounds = kept.places[kept.places % kept.drawn.num_rounds == 0]
            sessions += kept.drawn.sessions(first_rounds, source_timeout_us)
        else:
            selected.append(SelectedRequests(kept.drawn, kept.places.astype(np.int32), source_timeout_us))
            positions.append(kept.positions)
    return in_order(selected, positions), sessions


def _kept(drawn: Sequence[AnyDrawn], reach_us: int, num_requested: int | None) -> Iterator[_KeptRequests]:
    if not drawn:
        return
    arrivals = np.concatenate([each.arrival_us for each in drawn])
    order = np.argsort(arrivals, kind="stable")
    order = order[: np.searchsorted(arrivals[order], reach_us, side="right")][:num_requested]
    starts = np.concatenate([[0], np.cumsum([len(each.arrival_us) for each in drawn])])
    source = np.searchsorted(starts, order, side="right") - 1
    by_source = np.argsort(source, kind="stable")
    bounds = np.searchsorted(source[by_source], np.arange(len(drawn) + 1))
    for number, each in enumerate(drawn):
        positions = by_source[bounds[number] : bounds[number + 1]]
        if len(positions):
            yield _KeptRequests(each, order[positions] - starts[number], positions)


# A workload spec at another rate: gaps shrink or grow alike, so that its shape and the shares of its clients stay.
#
# Windows, stages and conversations stay at their times and as long as they are. Users who wait for their replies have
# no rate, and send as before.

Traffic = TypeVar("Traffic", Client, Cohort)


def rate_of(spec: WorkloadSpec) -> float:
    """Return the rate of a spec in requests per second, or conversations where these are what it has a rate of.

    It is the aggregate rate, the mean of stages or windows, or that of an interval or a scenario. Raises TraceError for
    a spec without a rate.
    """
    if spec.vidur is not None:
        return _vidur_rate(spec)
    if spec.scenario is not None:
        return spec.scenario.rate_per_s
    if spec.inference_perf is not None:
        stages = spec.inference_perf.stages
        if not stages:
            raise TraceError("its concurrent stages send when replies come, and have no rate that --rate could change")
        return sum(each.rate * each.duration for each in stages) / sum(each.duration for each in stages)
    if all(each.concurrency for each in spec.clients) and not spec.cohorts:
        raise TraceError("its users send when replies come, and have no rate that --rate could change")
    return spec.aggregate_rate or _windows_rate(spec)


def with_rate(spec: WorkloadSpec, rate: float) -> WorkloadSpec:
    """Return the spec at a rate, of which `rate_of` then is the value. Raises TraceError for a spec without a rate."""
    factor = rate / rate_of(spec)
    if factor == 1:
        return spec
    if spec.vidur is not None:
        return replace(spec, vidur=_faster_vidur(spec.vidur, rate, factor))
    if spec.scenario is not None:
        return replace(spec, scenario=replace(spec.scenario, rate=rate))
    if spec.inference_perf is not None:
        return replace(spec, inference_perf=_faster_stages(spec.inference_perf, factor))
    return replace(
        spec,
        aggregate_rate=rate if spec.aggregate_rate else 0.0,
        clients=tuple(_faster_client(each, factor, not spec.aggregate_rate) for each in spec.clients),
        cohorts=tuple(_faster_cohort(each, factor, not spec.aggregate_rate) for each in spec.cohorts),
    )


def read_spec_at(path: str, rate: float | None) -> WorkloadSpec:
    """Read a spec, and scale it to a rate unless that is None. Raises TraceError, which names the file."""
    spec = read_spec(path)
    if rate is None:
        return spec
    try:
        return with_rate(spec, rate)
    except TraceError as error:
        raise error if str(error).startswith(path) else TraceError(f"{path}: {error}") from None


def _vidur_rate(spec: WorkloadSpec) -> float:
    assert spec.vidur is not None
    interval = spec.vidur.interval
    if interval.type == "static":
        raise TraceError("its static intervals send all requests at once, and have no rate that --rate could change")
    if interval.type != "trace":
        return interval.qps or VIDUR_QPS[interval.type]

    arrivals = [each.arrival_us for each in generate(spec).requests]
    if len(arrivals) < 2 or arrivals[-1] == arrivals[0]:
        raise TraceError("its trace has no two requests apart, and no rate that --rate could change")
    return (len(arrivals) - 1) * 1e6 / (arrivals[-1] - arrivals[0])


def _windows_rate(spec: WorkloadSpec) -> float:
    """Return the mean rate from the first window's begin to the last window's end, of windows with rates."""
    spans = [
        (each.start_us, each.end_us, each.mean_rate or 0.0) for client in spec.clients for each in client.windows or ()
    ]
    for cohort in spec.cohorts:
        if cohort.spike is not None:
            start = cohort.spike.start_time_us
            spans.append((start, start + cohort.spike.duration_us, cohort.spike.trace_rate or 0.0))
    begin, end = min(each[0] for each in spans), max(each[1] for each in spans)
    return sum((until - since) * rate for since, until, rate in spans) / (end - begin)


def _faster_vidur(vidur: Vidur, rate: float, factor: float) -> Vidur:
    if vidur.interval.type == "trace":
        scale = (vidur.interval.time_scale_factor or 1.0) / factor
        return replace(vidur, interval=replace(vidur.interval, time_scale_factor=scale))
    return replace(vidur, interval=replace(vidur.interval, qps=rate))


def _faster_stages(section: InferencePerf, factor: float) -> InferencePerf:
    return replace(
        section, stages=tuple(replace(each, rate=_within(each.rate * factor, "a stage")) for each in section.stages)
    )


def _faster_client(client: Client, factor: float, has_own_rates: bool) -> Client:
    windows = client.windows
    if windows is None:
        return _faster_gaps(client, factor)
    faster = tuple(_faster_window(each, factor, has_own_rates) for each in windows)
    return replace(_faster_gaps(client, factor), lifecycle=Lifecycle(windows=faster))


def _faster_window(window: Window, factor: float, has_own_rates: bool) -> Window:
    changes: dict[str, Any] = {}
    if window.arrival is not None:
        changes["arrival"] = _faster_arrival(window.arrival, factor)
    for name in ("trace_rate", "end_rate") if has_own_rates else ():
        own = getattr(window, name)
        if own is not None:
            changes[name] = _within(own * factor, "a window")
    return replace(window, **changes)


def _faster_cohort(cohort: Cohort, factor: float, has_own_rates: bool) -> Cohort:
    cohort = _faster_gaps(cohort, factor)
    spike = cohort.spike
    if not has_own_rates or spike is None or spike.trace_rate is None:
        return cohort
    return replace(cohort, spike=replace(spike, trace_rate=_within(spike.trace_rate * factor, "a spike")))


def _faster_gaps(traffic: Traffic, factor: float) -> Traffic:
    return dataclasses.replace(traffic, arrival=_faster_arrival(traffic.arrival, factor))


def _faster_arrival(arrival: Arrival, factor: float) -> Arrival:
    """Return the process with shorter gaps, where shape and scale take the place of the rate."""
    if arrival.shape is None or arrival.scale is None:
        return arrival
    return replace(arrival, scale=arrival.scale / factor)


def _within(rate: float, noun: str) -> float:
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise TraceError(
            f"{noun} would have a rate of {number_text(rate)}, expected between {LEAST_RATE:g} and {MOST_RATE:g}"
        )
    return rate
