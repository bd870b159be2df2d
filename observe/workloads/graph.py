"""The requests of a trace with what they repeat of each other, and a closed loop in which they wait for replies."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from observe.dispatch import SentRequest
from observe.requests import PlannedRequest, RepeatedPrefix, plan_from_trace
from traces import TraceRow
from traces.graph import Dependencies, context_of, dependencies_of, ids_in, renumbered, repeated_places

GRAPH_COLUMNS = frozenset({"think_time_us", "context_tokens", "parents", "context_of"})


@dataclass(frozen=True, slots=True)
class _CompletedTurns:
    """Turns and reply of a request that was answered, with their tokens, for those that repeat it."""

    turns: tuple[str, ...]
    tokens: tuple[int, ...]
    repeats_whole: int
    """Tokens that a prompt begins with which goes on behind the reply."""
    prompt_tokens: int
    """Tokens of its prompt as planned."""


class Graph:
    """A closed loop: a request is sent when all that it waits for have been answered, and its pause is over.

    One that is not answered drops all that wait for it, and none is sent that would be due after `horizon_us`; None
    limits nothing.
    """

    columns = GRAPH_COLUMNS

    def __init__(
        self, plan: Sequence[PlannedRequest], waits: Mapping[int, Dependencies], horizon_us: int | None = None
    ) -> None:
        self._plan = plan
        self._horizon_us = horizon_us
        self._waits = waits
        self._left = {place: len(its.places) for place, its in waits.items()}
        self._ready_us: dict[int, int] = {}
        self._followers: dict[int, list[int]] = {}
        for place, its in waits.items():
            for each in its.places:
                self._followers.setdefault(each, []).append(place)
        self._completed_turns: dict[int, _CompletedTurns] = {}
        self._repeaters: dict[int, int] = {}
        for planned in plan:
            if planned.repeats is not None:
                self._repeaters[planned.repeats.number] = self._repeaters.get(planned.repeats.number, 0) + 1
        self.num_waiting = len(self._left)

    @property
    def first(self) -> list[PlannedRequest]:
        """The requests that wait for nothing."""
        return [planned for place, planned in enumerate(self._plan) if place not in self._waits]

    def follow_up(self, sent: SentRequest, ended_us: int) -> list[PlannedRequest]:
        """The requests that have waited for this reply alone, with the instants of the schedule at which they are due.

        Nothing follows a request that failed.
        """
        place = sent.prepared.request_id
        if sent.outcome.status != "ok":
            return []
        if place in self._repeaters:
            self._completed_turns[place] = _completed_turns(sent)
        ready = []
        for each in self._followers.get(place, ()):
            self._ready_us[each] = max(self._ready_us.get(each, 0), ended_us)
            self._left[each] -= 1
            due_us = self._ready_us[each] + self._waits[each].pause_us
            if not self._left[each] and (self._horizon_us is None or due_us <= self._horizon_us):
                ready.append(self._due(each))
        self.num_waiting -= len(ready)
        return ready

    def _due(self, place: int) -> PlannedRequest:
        pause_us = self._waits[place].pause_us
        planned = replace(self._plan[place], at_us=self._ready_us[place] + pause_us, think_time_us=pause_us)
        repeats = planned.repeats
        content = None if repeats is None else self._completed_turns.get(repeats.number)
        if repeats is None or content is None:
            return planned
        self._repeaters[repeats.number] -= 1
        if not self._repeaters[repeats.number]:
            del self._completed_turns[repeats.number]
        return _after_repeated_prefix(planned, repeats, content)


def _completed_turns(sent: SentRequest) -> _CompletedTurns:
    planned, outcome = sent.prepared.planned, sent.outcome
    prompt_tokens = planned.prefix_tokens + planned.input_tokens
    own_tokens = prompt_tokens - sum(planned.earlier_tokens)
    counted = outcome.reply.prompt_tokens or prompt_tokens
    return _CompletedTurns(
        turns=(*planned.earlier, sent.prepared.turn, outcome.reply.content),
        tokens=(*planned.earlier_tokens, own_tokens, planned.output_tokens),
        repeats_whole=counted + (outcome.output_tokens if outcome.reply.is_all_content else 0),
        prompt_tokens=prompt_tokens,
    )


def _after_repeated_prefix(
    planned: PlannedRequest, repeats: RepeatedPrefix, content: _CompletedTurns
) -> PlannedRequest:
    """The request with the words that were really said before it, and words of its own to its length."""
    total = planned.prefix_tokens + planned.input_tokens
    *prompt, reply = content.tokens
    if repeats.num_tokens >= content.prompt_tokens + reply / 2:
        return replace(
            planned,
            earlier=content.turns,
            earlier_tokens=content.tokens,
            turn_tokens=max(1, total - sum(content.tokens)),
            context_tokens=content.repeats_whole,
        )
    # Of a prompt that is repeated in part, the turns are kept that fit, the last one cut between words.
    left, place = repeats.num_tokens, 0
    while place + 2 < len(prompt) and left >= prompt[place] + prompt[place + 1]:
        left -= prompt[place] + prompt[place + 1]
        place += 2
    words = content.turns[place].split(" ")
    num_words = min(len(words), round(len(words) * left / max(1, prompt[place])))
    kept = min(left, prompt[place])
    return replace(
        planned,
        earlier=content.turns[:place],
        earlier_tokens=content.tokens[:place],
        begins_with=" ".join(words[:num_words]),
        turn_tokens=max(1, total - sum(content.tokens[:place]) - kept),
        context_tokens=sum(content.tokens[:place]) + kept,
    )


def requests_of_trace(
    rows: Sequence[TraceRow], num_requests: int | None
) -> tuple[list[TraceRow], list[PlannedRequest]]:
    """The first requests of a trace, each numbered by its place, and what is to be sent for them."""
    in_order = sorted(rows, key=lambda row: row.arrival_time_us)[:num_requests]
    ids = {row.request_id: place for place, row in enumerate(in_order)}
    if any(row.parents or row.context_of for row in in_order):
        in_order = [renumbered(row, place, ids) for place, row in enumerate(in_order)]
    else:
        in_order = [replace(row, request_id=place) for place, row in enumerate(in_order)]
    repeated = repeated_places(in_order)
    plan = plan_from_trace(in_order)
    if not repeated and not any(row.parents for row in in_order):
        return in_order, plan
    for place in _in_repeat_order(repeated, len(plan)):
        row, planned, before = in_order[place], plan[place], repeated.get(place)
        planned = replace(planned, number=place, parents=ids_in(row.parents), think_time_us=row.think_time_us)
        plan[place] = planned if before is None else _repeating(planned, row, plan[before], before)
    return in_order, plan


def _in_repeat_order(repeated: Mapping[int, int], count: int) -> Iterator[int]:
    """All places, each behind the one that it repeats."""
    done: set[int] = set()
    for place in range(count):
        chain: dict[int, None] = {}
        at: int | None = place
        while at is not None and at not in done and at not in chain:
            chain[at] = None
            at = repeated.get(at)
        yield from reversed(chain)
        done.update(chain)


def _repeating(planned: PlannedRequest, row: TraceRow, other: PlannedRequest, number: int) -> PlannedRequest:
    """The request with the start of its prompt as that of another one."""
    total = planned.prefix_tokens + planned.input_tokens
    num_tokens = min(row.context_tokens, total - 1)
    if not planned.prefix_tokens and other.prefix_tokens:
        shared = min(other.prefix_tokens, num_tokens)
        planned = replace(planned, prefix_group=other.prefix_group, prefix_tokens=shared, input_tokens=total - shared)
    starts = 0 if other.repeats is None else other.repeats.num_tokens
    parts = () if other.repeats is None else other.repeats.parts
    kept = tuple((owner, start, min(end, num_tokens)) for owner, start, end in parts if start < num_tokens)
    if starts < num_tokens:
        kept = (*kept, (number, starts, num_tokens))
    return replace(
        planned,
        repeats=RepeatedPrefix(number, num_tokens, kept),
        context_of=context_of(row),
        context_tokens=min(num_tokens, other.prefix_tokens + other.input_tokens),
    )


def graph_of(
    rows: Sequence[TraceRow],
    plan: Sequence[PlannedRequest],
    *,
    is_real: bool,
    think_time_us: int | None = None,
    fixed_sessions: Container[str] = frozenset(),
    horizon_us: int | None = None,
) -> Graph | None:
    """The closed loop of these requests; None where none waits for another."""
    waits = dependencies_of(rows, is_real=is_real, think_time_us=think_time_us, fixed_sessions=fixed_sessions)
    return Graph(plan, waits, horizon_us) if waits else None
