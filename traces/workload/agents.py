"""Sessions of agents: how their turns, helpers and joins are laid out, and how long each request is.

The draws of a session do not depend on how many sessions there are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from blis_sim.options.limits import MOST_TOKENS
from traces.text_file import TraceError
from traces.workload.lengths import Ints, sample
from traces.workload.request import WorkloadRequest
from traces.workload.sources import Source
from traces.workload.spec import Agent, Distribution
from traces.workload.streams import Quantity, Streams

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
            group, prefix_tokens = self._prefix(place)
            yield WorkloadRequest(
                arrival_us=arrival_us,
                client_id=client.id,
                tenant_id=client.tenant_id,
                slo_class=client.slo_class,
                model=client.model,
                adapter=client.adapter,
                prefix_group=group,
                prefix_tokens=prefix_tokens,
                input_tokens=self.prompt_tokens[place] - prefix_tokens,
                output_tokens=self.output_tokens[place],
                streaming=client.streaming,
                deadline_us=arrival_us + timeout_us if timeout_us else 0,
                slo_target_us=client.slo_target_us,
                session_id=f"{self.source.label}_agent_{session}",
                round_index=place - layout.first_places[session],
                think_time_us=self.pause_us[place],
                priority=client.priority,
                slo_e2e_us=client.slo_e2e_us,
            )

    def _prefix(self, place: int) -> tuple[str, int]:
        return _prefix_of(self.source, self.layout.is_spawned[place])


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


def requests_per_agent(source: Source) -> float:
    """About how many requests an agent of this source sends. Raises TraceError for one that is longer than any."""
    assert source.client.agent is not None
    layout = _layout(source.client.agent, source.streams, _SESSIONS_TO_GUESS_FROM, source.label)
    return len(layout.parents) / _SESSIONS_TO_GUESS_FROM


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
        _lay_out(layout, num_turns, fan_outs, lengths, is_spawned=agent.helper_context != FORK)
    return layout


def _lay_out(
    layout: _Layout, num_turns: int, fan_outs: Iterator[int], lengths: Iterator[int], *, is_spawned: bool
) -> None:
    """Add a session: every turn but the last may start helpers, which the next one joins."""
    turn = layout.add((), None)
    for _ in range(num_turns - 1):
        ends = []
        for _ in range(next(fan_outs)):
            asked = layout.add((turn,), None if is_spawned else turn, is_spawned=is_spawned)
            for _ in range(next(lengths) - 1):
                asked = layout.add((asked,), asked, is_spawned=is_spawned)
            ends.append(asked)
        turn = layout.add(tuple(ends) or (turn,), turn, joins=bool(ends))


def _check_length(label: str, num_requests: Sequence[int] | Ints) -> None:
    most = max(num_requests, default=0)
    if most > MAX_REQUESTS_OF_A_SESSION:
        raise TraceError(
            f"{label}: the distributions of an agent draw {most:.3g} requests for one session, expected at most"
            f" {MAX_REQUESTS_OF_A_SESSION}"
        )
