"""Requests of a source in columns or as rows of a trace, and how many a workload may have."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

from blis_sim.options.limits import LATEST_US, MOST_DRAWN, MOST_REQUESTS
from traces.rows import TraceRow
from traces.text_file import TraceError
from traces.workload.agents import DrawnAgents, Link, requests_per_agent
from traces.workload.arrivals import Ints, RenewalProcess
from traces.workload.lengths import Turns, draw_turns
from traces.workload.request import Session, WorkloadRequest, row_of
from traces.workload.sources import Source
from traces.workload.spec import ACCUMULATE, Client, MultiTurn
from traces.workload.streams import Quantity

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
            f"the windows, stages or conversations of the workload have about {expected:.2g} requests, of which some"
            f" are kept, expected at most {MOST_DRAWN:g}: make them shorter or their rates lower"
        )


def check_users(clients: Sequence[Client], until_us: int) -> None:
    """Raise TraceError when their users send too many requests up to an instant, even if each takes all of its time."""
    rounds = (until_us / (each.think_time_us + (each.timeout_us or _LONG_US)) for each in clients)
    check_count(sum(each.concurrency * num for each, num in zip(clients, rounds, strict=True)))


def requests_per_session(source: Source) -> float:
    """About how many requests belong together: rounds of a conversation, turns of an agent and its helpers."""
    if source.client.agent is not None:
        return requests_per_agent(source)
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
_US_PER_OUTPUT_TOKEN = 1
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


def _labels(client: Client) -> tuple[Any, ...]:
    """client_id, tenant_id, slo_class, model, adapter, prefix_group, prefix_tokens."""
    who = (client.id, client.tenant_id, client.slo_class, client.model, client.adapter)
    return (*who, client.prefix_group, client.prefix_tokens)


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
