"""From a spec to the sources of its requests, sessions of agents, and the requests of a source in columns or rows."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np

from blis_sim.options.addition import sequential_sum
from blis_sim.options.option import LATEST_US, MOST_DRAWN, MOST_REQUESTS, MOST_TOKENS
from traces.rows import TraceRow
from traces.text_file import TraceError
from traces.workload.distributions import (
    FixedCountArrivals,
    Ints,
    LengthProfile,
    Quantity,
    RenewalProcess,
    Streams,
    Timeline,
    Turns,
    client_streams,
    draw_turns,
    gaps_of,
    sample,
)
from traces.workload.request import Session, WorkloadRequest, row_of
from traces.workload.spec import (
    ACCUMULATE,
    Agent,
    Arrival,
    Client,
    Cohort,
    Distribution,
    Drain,
    Lifecycle,
    MultiTurn,
    Spike,
    Traffic,
    Window,
    WorkloadSpec,
)

# From a spec to the sources of its requests: clients and members of cohorts, their times and their random numbers.
#
# A source is one client, or one client in one of its windows where windows differ in more than their rate.

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
        trough = 1 / cohort.diurnal.peak_to_trough_ratio
        for hour in range(24):
            height = (1 + math.cos(2 * math.pi * (hour - cohort.diurnal.peak_hour) / 24)) / 2
            active_us = int(HOUR_US * (height * (1 - trough) + trough))
            if active_us:
                yield Window(start_us=hour * HOUR_US, end_us=hour * HOUR_US + active_us)
    if cohort.spike is not None:
        yield _spike_window(cohort.spike, cohort.population)
    if cohort.drain is not None:
        yield from _drain_windows(cohort.drain)


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
    own = None if window is None else window.mean_rate
    return client.rate_fraction if own is None else own


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
    rate = aggregate_share or window.mean_rate or 0.0
    gaps, _ = gaps_of(window.arrival or arrival, rate)
    duration_us = window.end_us - window.start_us
    # Without rounding, a rate of a third of 6 would make one gap more.
    num_gaps = math.ceil(rate * duration_us / 1e6 - 1e-9)
    growth = 1.0 if window.end_rate is None or window.trace_rate is None else window.end_rate / window.trace_rate
    return FixedCountArrivals(
        gaps=gaps, num_gaps=num_gaps, start_us=window.start_us, duration_us=duration_us, growth=growth
    )


def _profile(client: Client, window: Window | None = None) -> LengthProfile:
    own_input = None if window is None else window.input_distribution
    own_output = None if window is None else window.output_distribution
    return LengthProfile(client, own_input or client.input_distribution, own_output or client.output_distribution)


# Sessions of agents: how their turns, helpers and joins are laid out, and how long each request is.
#
# The draws of a session do not depend on how many sessions there are.

FORK = "fork"
MAX_REQUESTS_OF_A_SESSION = 10_000
_SESSIONS_TO_GUESS_FROM = 16
_US_PER_OUTPUT_TOKEN = 1
"""Assumed time per output token before the server is known."""


class Link(NamedTuple):
    """The requests that one waits for, and the one whose prompt and reply its prompt begins with, by their places."""

    parents: tuple[int, ...]
    context: int | None
    context_tokens: int


@dataclass(slots=True)
class _Layout:
    """Requests in such an order that each stands behind those that it waits for."""

    first_places: list[int]
    session: list[int]
    parents: list[tuple[int, ...]]
    context: list[int | None]
    joins: list[bool]
    """Whether the parents are helpers whose replies the prompt has."""
    is_spawned: list[bool]
    """Whether the request is of a helper with an empty context."""

    def add(
        self, parents: tuple[int, ...], context: int | None, *, joins: bool = False, is_spawned: bool = False
    ) -> int:
        """Add a request to the last session; return its place."""
        self.session.append(len(self.first_places) - 1)
        self.parents.append(parents)
        self.context.append(context)
        self.joins.append(joins)
        self.is_spawned.append(is_spawned)
        return len(self.parents) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnAgents:
    """The requests of one source of agents, by their places. `prompt_tokens` are those of whole prompts."""

    source: Source
    arrival_us: Ints
    layout: _Layout
    prompt_tokens: list[int]
    output_tokens: list[int]
    pause_us: list[int]

    @property
    def is_closed_loop(self) -> bool:
        """Whether requests wait for replies; their arrivals are estimates then."""
        return self.source.client.closed_loop is not False

    def sessions_begun(self, places: Ints) -> Ints:
        """The places of all requests of the sessions whose first one is among these places."""
        first = np.array([*self.layout.first_places, len(self.prompt_tokens)])
        begun = np.flatnonzero(np.isin(first[:-1], places))
        return np.concatenate([np.arange(first[each], first[each + 1]) for each in begun]) if len(begun) else begun

    def links(self, places: Iterable[int]) -> Iterator[Link]:
        """Yield for each of the requests at these places those that it waits for and repeats."""
        for place in places:
            context = self.layout.context[place]
            tokens = 0 if context is None else self.prompt_tokens[context] + self.output_tokens[context]
            yield Link(self.layout.parents[place], context, tokens)

    def requests(self, places: Ints, timeout_us: int) -> Iterator[WorkloadRequest]:
        """The requests at these places, in their order."""
        client, layout = self.source.client, self.layout
        for place in places.tolist():
            session, arrival_us = layout.session[place], int(self.arrival_us[place])
            group, prefix_tokens = _prefix_of(self.source, self.layout.is_spawned[place])
            yield request_of(
                client,
                arrival_us,
                timeout_us,
                prefix_group=group,
                prefix_tokens=prefix_tokens,
                input_tokens=self.prompt_tokens[place] - prefix_tokens,
                output_tokens=self.output_tokens[place],
                session_id=f"{self.source.label}_agent_{session}",
                round_index=place - layout.first_places[session],
                think_time_us=self.pause_us[place],
            )


def _prefix_of(source: Source, is_spawned: bool) -> tuple[str, int]:
    """The group that shares the start of a prompt, and how long that is."""
    client = source.client
    assert client.agent is not None
    if not is_spawned:
        return client.prefix_group, client.prefix_tokens
    num_tokens = client.agent.helper_prefix_length
    return (f"{client.prefix_group or client.id}-helpers" if num_tokens else ""), num_tokens


def draw_agents(source: Source, until_us: int) -> DrawnAgents:
    """All sessions that a source of agents begins up to and including `until_us`. Raises TraceError for one that is
    longer than any."""
    client, streams = source.client, source.streams
    assert client.agent is not None
    starts = source.timeline.instants(streams.of(Quantity.ARRIVALS), until_us)
    layout = _layout(client.agent, streams, len(starts), source.label)
    count = len(layout.parents)
    own = sample(source.profile.input_distribution, streams.of(Quantity.INPUT_TOKENS), count)
    tasks = _drawn(client.agent.task_distribution, streams, Quantity.TASK_TOKENS, len(starts))
    if tasks is not None:
        own[layout.first_places] = tasks
    tool_time_ms = _drawn(client.agent.tool_time_ms_distribution, streams, Quantity.TOOL_TIME, count)
    output_tokens = sample(source.profile.output_distribution, streams.of(Quantity.OUTPUT_TOKENS), count).tolist()
    prefixes = {is_spawned: _prefix_of(source, is_spawned)[1] for is_spawned in (False, True)}
    prompts, arrivals, pauses = list[int](), list[int](), list[int]()
    pauses_ms: Iterable[int] = repeat(0, count) if tool_time_ms is None else tool_time_ms.tolist()
    for place, (own_tokens, pause_ms) in enumerate(zip(own.tolist(), pauses_ms, strict=True)):
        parents, context = layout.parents[place], layout.context[place]
        before = prefixes[layout.is_spawned[place]] if context is None else prompts[context] + output_tokens[context]
        replies = sum(output_tokens[each] for each in parents) if layout.joins[place] else 0
        prompts.append(before + replies + own_tokens)
        pauses.append(pause_ms * 1000 if parents else 0)
        ended_us = max((arrivals[each] + output_tokens[each] * _US_PER_OUTPUT_TOKEN for each in parents), default=None)
        arrivals.append(int(starts[layout.session[place]]) if ended_us is None else ended_us + pauses[-1])
    if max(prompts, default=0) > MOST_TOKENS:
        raise TraceError(
            f"{source.label}: an agent has a prompt of {max(prompts)} tokens, expected at most {MOST_TOKENS}"
        )
    return DrawnAgents(
        source=source,
        arrival_us=np.array(arrivals, np.int64),
        layout=layout,
        prompt_tokens=prompts,
        output_tokens=output_tokens,
        pause_us=pauses,
    )


def _drawn(distribution: Distribution | None, streams: Streams, quantity: Quantity, count: int) -> Ints | None:
    return None if distribution is None else sample(distribution, streams.of(quantity), count)


def _layout(agent: Agent, streams: Streams, num_sessions: int, label: str) -> _Layout:
    """Lay out so many sessions. Raises TraceError for one that is longer than any."""
    turns = np.maximum(1, sample(agent.turns_distribution, streams.of(Quantity.AGENT_TURNS), num_sessions))
    _check_length(label, turns)
    num_joins = int((turns - 1).sum())
    helpers = _drawn(agent.helpers_distribution, streams, Quantity.HELPERS, num_joins)
    if helpers is None:
        helpers = np.zeros(num_joins, np.int64)
    _check_length(label, helpers)
    of_session = np.repeat(np.arange(num_sessions), turns - 1)
    _check_length(label, np.bincount(of_session, helpers, num_sessions))
    num_helpers = int(helpers.sum())
    helper_turns = _drawn(agent.helper_turns_distribution, streams, Quantity.HELPER_TURNS, num_helpers)
    helper_turns = np.ones(num_helpers, np.int64) if helper_turns is None else np.maximum(1, helper_turns)
    of_session = np.repeat(of_session, helpers)
    _check_length(label, turns + np.bincount(of_session, np.minimum(helper_turns, MOST_TOKENS), num_sessions))
    layout = _Layout([], [], [], [], [], [])
    fan_outs, lengths = iter(helpers.tolist()), iter(helper_turns.tolist())
    for num_turns in turns.tolist():
        layout.first_places.append(len(layout.parents))
        # Add a session: every turn but the last may start helpers, which the next one joins.
        is_spawned = agent.helper_context != FORK
        turn = layout.add((), None)
        for _ in range(num_turns - 1):
            ends = []
            for _ in range(next(fan_outs)):
                asked = layout.add((turn,), None if is_spawned else turn, is_spawned=is_spawned)
                for _ in range(next(lengths) - 1):
                    asked = layout.add((asked,), asked, is_spawned=is_spawned)
                ends.append(asked)
            turn = layout.add(tuple(ends) or (turn,), turn, joins=bool(ends))
    return layout


def _check_length(label: str, num_requests: Sequence[int] | Ints) -> None:
    most = max(num_requests, default=0)
    if most > MAX_REQUESTS_OF_A_SESSION:
        raise TraceError(
            f"{label}: the distributions of an agent draw {most:.3g} requests for one session, expected at most"
            f" {MAX_REQUESTS_OF_A_SESSION}"
        )


# Requests of a source in columns or as rows of a trace, and how many a workload may have.

_LONG_US = 3_600_000_000
"""Longest duration of a request without a timeout."""


def check_count(expected: float) -> None:
    """Raise TraceError when a workload has about so many requests, and they are too many."""
    if expected > MOST_REQUESTS:
        raise TraceError(
            f"the workload has about {expected:.2g} requests until it ends, expected at most {MOST_REQUESTS:g}:"
            " give it num_requests, an earlier end or lower rates"
        )


def check_size(sources: Sequence[Source], until_us: int, num_requested: int) -> None:
    """Raise TraceError when these sources have too many requests up to an instant. Of them, `num_requested` are kept; 0
    keeps all."""
    expected = sum(_num_requests(source, until_us) for source in sources)
    if not num_requested:
        check_count(expected)
    elif expected > MOST_DRAWN:
        raise TraceError(
            f"the windows, stages or conversations of the workload have about {expected:.2g} requests, of which some "
            f"are kept. Expected are at most {MOST_DRAWN:g}. Make them shorter or their rates lower"
        )


def check_users(clients: Sequence[Client], until_us: int) -> None:
    """Raise TraceError when their users send too many requests up to an instant, even if each takes all of its time."""
    rounds = (until_us / (each.think_time_us + (each.timeout_us or _LONG_US)) for each in clients)
    check_count(sum(each.concurrency * num for each, num in zip(clients, rounds, strict=True)))


def requests_per_session(source: Source) -> float:
    """About how many requests belong together: rounds of a conversation, turns of an agent and its helpers."""
    if source.client.agent is not None:
        assert source.client.agent is not None
        layout = _layout(source.client.agent, source.streams, _SESSIONS_TO_GUESS_FROM, source.label)
        return len(layout.parents) / _SESSIONS_TO_GUESS_FROM
    multi_turn = source.client.multi_turn
    return 1 if multi_turn is None else multi_turn.max_rounds


def _num_requests(source: Source, until_us: int) -> float:
    """About how many are drawn."""
    multi_turn, timeline = source.client.multi_turn, source.timeline
    num_rounds = requests_per_session(source)
    if multi_turn is not None and multi_turn.single_session:
        return num_rounds
    if not isinstance(timeline, RenewalProcess):
        return num_rounds * timeline.num_gaps
    spans = ((0, until_us),) if timeline.windows is None else timeline.windows
    active_us = sum(max(0, min(end, until_us) - start) for start, end in spans)
    return num_rounds * active_us / max(timeline.mean_gap_us, 1)


NEVER = LATEST_US
"""Assumed time per output token in an open-loop session, so that its rounds are at distinct instants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRequests:
    """The requests of one source. `input_tokens` hold the context that sessions accumulate, those of `turns` do not.

    With sessions of n rounds, element s * n + r is round r of session s. Without sessions n is 1.
    """

    source: Source
    arrival_us: Ints
    input_tokens: Ints
    turns: Turns
    num_rounds: int

    @property
    def is_closed_loop(self) -> bool:
        """Whether later rounds wait for replies; their arrivals are estimates then."""
        client = self.source.client
        return client.multi_turn is not None and client.closed_loop is not False

    def requests(self, places: Ints, timeout_us: int) -> Iterator[WorkloadRequest]:
        """The requests at these places, in their order."""
        client, turns = self.source.client, self.turns
        arrivals = self.arrival_us[places]
        deadlines: Iterable[int] = (arrivals + timeout_us).tolist() if timeout_us else repeat(0)
        columns: tuple[Iterable[Any], ...] = (
            arrivals.tolist(),
            self.input_tokens[places].tolist(),
            turns.output_tokens[places].tolist(),
            *map(repeat, _labels(client)),
            repeat(client.streaming),
            deadlines,
            repeat(client.slo_target_us),
            *self._session_columns(places),
            *self._content_columns(places),
            repeat(client.priority),
            repeat(client.slo_e2e_us),
        )
        # Constant columns repeat forever. What _make does, without its call per request.
        return map(partial(tuple.__new__, WorkloadRequest), zip(*columns, strict=False))

    def sessions(self, places: Ints, timeout_us: int) -> Iterator[Session]:
        """The sessions whose first rounds are at these places, their later rounds to be released by replies."""
        multi_turn = self.source.client.multi_turn
        assert multi_turn is not None
        for place, first in zip(places.tolist(), self.requests(places, timeout_us), strict=True):
            later = self.turns.rounds(multi_turn.think_time_us, slice(place + 1, place + self.num_rounds))
            yield Session(first=first, later=tuple(later), timeout_us=timeout_us)

    def sessions_begun(self, places: Ints) -> Ints:
        """The places of all requests of the sessions whose first one is among these places."""
        first_rounds = places[places % self.num_rounds == 0]
        begun: Ints = (first_rounds[:, np.newaxis] + np.arange(self.num_rounds)).ravel()
        return begun

    def links(self, places: Iterable[int]) -> Iterator[Link]:
        """Yield for each of the requests at these places those that it waits for and repeats."""
        multi_turn, prefix_tokens = self.source.client.multi_turn, self.source.client.prefix_tokens
        is_growing = multi_turn is not None and keeps_context(multi_turn)
        for place in places:
            if not place % self.num_rounds:
                yield Link((), None, 0)
            elif is_growing:
                said = self.input_tokens[place - 1] + self.turns.output_tokens[place - 1]
                yield Link((place - 1,), place - 1, prefix_tokens + int(said))
            else:
                yield Link((place - 1,), None, 0)

    def _session_columns(self, places: Ints) -> tuple[Iterable[Any], ...]:
        """session_id, round_index, think_time_us, keeps_context."""
        multi_turn = self.source.client.multi_turn
        if multi_turn is None:
            return repeat(""), repeat(0), repeat(0), repeat(False)
        sessions, rounds = np.divmod(places, self.num_rounds)
        label = self.source.label
        return (
            [f"{label}_session_{number}" for number in sessions.tolist()],
            rounds.tolist(),
            np.where(rounds > 0, multi_turn.think_time_us, 0).tolist(),
            repeat(keeps_context(multi_turn)),
        )

    def _content_columns(self, places: Ints) -> tuple[Iterable[Any], ...]:
        """text_tokens, image_tokens, audio_tokens, video_tokens, reason_ratio."""
        turns = self.turns
        modalities = [column[places].tolist() for column in turns.modalities or ()] or [repeat(0)] * 4
        ratios = repeat(0.0) if turns.reason_percent is None else (turns.reason_percent[places] / 100).tolist()
        return (*modalities, ratios)


_LABELS = ("client_id", "tenant_id", "slo_class", "model", "adapter", "prefix_group", "prefix_tokens")


def _labels(client: Client) -> tuple[Any, ...]:
    """Return the values of `_LABELS`."""
    who = (client.id, client.tenant_id, client.slo_class, client.model, client.adapter)
    return (*who, client.prefix_group, client.prefix_tokens)


def request_of(client: Client, arrival_us: int, timeout_us: int, **own: Any) -> WorkloadRequest:
    """Return a request of a client; `own` are its lengths, its place in a session, and other labels."""
    known = dict(zip(_LABELS, _labels(client), strict=True)) | {
        "arrival_us": arrival_us,
        "streaming": client.streaming,
        "deadline_us": arrival_us + timeout_us if timeout_us else 0,
        "slo_target_us": client.slo_target_us,
        "priority": client.priority,
        "slo_e2e_us": client.slo_e2e_us,
    }
    return WorkloadRequest(**known | own)


def keeps_context(multi_turn: MultiTurn) -> bool:
    """Whether each prompt of a session holds all before it."""
    return multi_turn.context_growth == ACCUMULATE


def draw(source: Source, until_us: int) -> DrawnRequests:
    """All requests, or all sessions, that a source begins up to and including `until_us`.

    A single session is drawn whenever it begins. Rounds of a session follow each other as if each reply took a
    microsecond per token.
    """
    multi_turn = source.client.multi_turn
    if multi_turn is None:
        arrivals = source.timeline.instants(source.streams.of(Quantity.ARRIVALS), until_us)
        turns = draw_turns(source.profile, source.streams, len(arrivals))
        return DrawnRequests(
            source=source, arrival_us=arrivals, input_tokens=turns.input_tokens, turns=turns, num_rounds=1
        )
    starts = _first_start(source) if multi_turn.single_session else _starts(source, until_us)
    turns = draw_turns(source.profile, source.streams, len(starts) * multi_turn.max_rounds)
    by_session = (len(starts), multi_turn.max_rounds)
    inputs, outputs = turns.input_tokens.reshape(by_session), turns.output_tokens.reshape(by_session)
    replied = np.cumsum(outputs, axis=1) - outputs
    thought = np.arange(multi_turn.max_rounds) * multi_turn.think_time_us
    arrivals = starts[:, np.newaxis] + thought + replied * _US_PER_OUTPUT_TOKEN
    if keeps_context(multi_turn):
        inputs = np.cumsum(inputs, axis=1) + replied
    return DrawnRequests(
        source=source,
        arrival_us=arrivals.ravel(),
        input_tokens=inputs.ravel(),
        turns=turns,
        num_rounds=multi_turn.max_rounds,
    )


def _starts(source: Source, until_us: int) -> Ints:
    return source.timeline.instants(source.streams.of(Quantity.ARRIVALS), until_us)


def _first_start(source: Source) -> Ints:
    """Return the only start of a source with a single session; None if its windows have no arrival."""
    timeline = source.timeline
    end_us = NEVER if timeline.end_us is None else timeline.end_us
    until_us = timeline.start_us + int(4 * timeline.mean_gap_us) + 1
    while True:
        starts = _starts(source, min(until_us, end_us))[:1]
        if len(starts) or until_us >= end_us:
            return starts
        until_us *= 2


AnyDrawn: TypeAlias = DrawnRequests | DrawnAgents


@dataclass(frozen=True, slots=True)
class SelectedRequests:
    """Requests of one source, by their places there, and how long each may take (0: forever)."""

    drawn: AnyDrawn
    places: Ints
    timeout_us: int


_MADE_AT_ONCE = 256
"""How many requests are made at once, and of many sources for each of them in a quarter."""


class RequestsInOrder(Sequence[WorkloadRequest]):
    """Requests of some sources in order of arrival. They are drawn, but each is made only when it is asked for."""

    def __init__(self, selected: Sequence[SelectedRequests], sources: Ints, places: Ints) -> None:
        """`sources` and `places` say of each request in order its place among `selected` and its place there; the
        places of `selected` are not read."""
        self._selected, self._sources, self._places = selected, sources, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> WorkloadRequest: ...

    @overload
    def __getitem__(self, place: slice) -> "RequestsInOrder": ...

    def __getitem__(self, place: int | slice) -> "WorkloadRequest | RequestsInOrder":
        if isinstance(place, slice):
            return RequestsInOrder(self._selected, self._sources[place], self._places[place])
        return self._made(self._sources[[place]], self._places[[place]])[0]

    def __iter__(self) -> Iterator[WorkloadRequest]:
        size = max(_MADE_AT_ONCE, _MADE_AT_ONCE // 4 * len(self._selected))
        for first in range(0, len(self), size):
            yield from self._made(self._sources[first : first + size], self._places[first : first + size])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def labels_of(self, name: str) -> tuple[list[str], Ints] | None:
        """The values of a field that all requests of a client share, and for each request the index of its value; None
        for another field."""
        if name == "session_id" and all(each.drawn.source.client.multi_turn is None for each in self._selected):
            return [""], np.zeros(len(self), np.int8)
        if name not in _CLIENT_LABELS:
            return None
        return [getattr(each.drawn.source.client, name) for each in self._selected], self._sources

    def _made(self, sources: Ints, places: Ints) -> list[WorkloadRequest]:
        if len(self._selected) == 1:
            return list(self._selected[0].drawn.requests(places, self._selected[0].timeout_us))
        order = np.argsort(sources, kind="stable")
        counts = np.bincount(sources, minlength=len(self._selected))
        ends = np.cumsum(counts)
        made: list[WorkloadRequest] = []
        for number in np.flatnonzero(counts).tolist():
            its = order[ends[number] - counts[number] : ends[number]]
            made += self._selected[number].drawn.requests(places[its], self._selected[number].timeout_us)
        by_place = np.empty_like(order)
        by_place[order] = np.arange(len(order))
        return [made[place] for place in by_place.tolist()]


def in_order(selected: Sequence[SelectedRequests], positions: Sequence[Ints]) -> Sequence[WorkloadRequest]:
    """Requests by their positions in the order of all; those of `selected` are not kept."""
    if not selected:
        return []
    sources = np.repeat(np.arange(len(selected), dtype=np.min_scalar_type(len(selected))), list(map(len, positions)))
    places = np.concatenate([each.places for each in selected])
    if len(selected) > 1:
        order = np.argsort(np.concatenate(positions))
        sources, places = sources[order], places[order]
    return RequestsInOrder([replace(each, places=each.places[:0]) for each in selected], sources, places)


_CLIENT_LABELS = frozenset({"tenant_id", "slo_class", "model", "adapter"})


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by arrival, numbered by their place, and the sessions whose rows are sent at their own times."""

    rows: list[TraceRow]
    fixed_sessions: frozenset[str]


def rows_of(selected: Sequence[SelectedRequests]) -> Rows:
    """The rows of these requests, with those that closed-loop sessions send later."""
    found: list[tuple[int, int, int, WorkloadRequest, Link]] = []
    for number, each in enumerate(selected):
        places = each.drawn.sessions_begun(each.places) if each.drawn.is_closed_loop else each.places
        requests = each.drawn.requests(places, each.timeout_us)
        links = each.drawn.links(places.tolist())
        found += (
            (request.arrival_us, number, place, request, link)
            for place, request, link in zip(places.tolist(), requests, links, strict=True)
        )
    found.sort(key=lambda each: each[:3])
    ids = {(source, place): number for number, (_, source, place, _, _) in enumerate(found)}
    return Rows(
        rows=[_linked(row_of(each[3], number), each[1], each[4], ids) for number, each in enumerate(found)],
        fixed_sessions=frozenset(_fixed_sessions(selected, found)),
    )


def _linked(row: TraceRow, source: int, link: Link, ids: dict[tuple[int, int], int]) -> TraceRow:
    context = None if link.context is None else ids[source, link.context]
    if not link.parents and context is None:
        return row
    return replace(
        row,
        parents=" ".join(str(ids[source, each]) for each in link.parents),
        context_of="" if context is None else str(context),
        context_tokens=link.context_tokens,
    )


def _fixed_sessions(
    selected: Sequence[SelectedRequests], found: Iterable[tuple[int, int, int, WorkloadRequest, Link]]
) -> Iterator[str]:
    for _, source, _, request, _ in found:
        if request.session_id and not selected[source].drawn.is_closed_loop:
            yield request.session_id
