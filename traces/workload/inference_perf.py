"""The `inference_perf` section of a spec: users in groups with a shared prompt, rates in stages, and conversations."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from blis_sim.options.option import MOST_TOKENS
from traces.graph import ids_text, renumbered
from traces.rows import TraceRow
from traces.text_file import TraceError
from traces.workload.distributions import Ints, LengthProfile, Quantity, Streams, Timeline, client_streams, sample
from traces.workload.sources import Source, arrivals_before_end, fixed_count_arrivals, named, renewal_process
from traces.workload.spec import (
    ACCUMULATE,
    Arrival,
    Client,
    ConcurrentStage,
    Distribution,
    InferencePerf,
    MultiTurn,
    Reasoning,
    Stage,
)

# The `inference_perf` section of a spec: users in groups that share a system prompt, at rates that come in stages.

_POISSON = Arrival(process="poisson")
_EVEN = Arrival(process="constant")


def inference_perf_sources(section: InferencePerf, seed: int) -> list[Source]:
    """Return every user in every stage. A stage sends exactly rate times duration requests."""
    users = users_of(section)
    several = len(section.stages) > 1
    sources: list[Source] = []
    start_s, num_before = 0.0, 0
    for number, stage in enumerate(section.stages):
        prefix = f"stage-{number}-" if several else ""
        clients = [dataclasses.replace(user, id=prefix + user.id) for user in users]
        total = int(stage.rate * stage.duration)
        is_single = not several and not section.process
        places = _single_shares(total, len(users)) if is_single else _shares(section, num_before, total)
        sources += _stage_sources(section, clients, places, stage, round(start_s * 1e6), seed)
        start_s += stage.duration
        num_before += total
    return sources


def _single_shares(total: int, num_users: int) -> list[tuple[int, int]]:
    """The first users take what does not divide evenly, as in the original."""
    return [(number, total // num_users + (number < total % num_users)) for number in range(num_users)]


def _shares(section: InferencePerf, num_before: int, total: int) -> list[tuple[int, int]]:
    """For each user its turn in the stage, and how many requests it sends.

    Users take turns through all stages, each one of the next group.
    """
    shared = section.shared_prefix
    num_groups, num_each = shared.num_unique_system_prompts, shared.num_users_per_system_prompt
    num_users = num_groups * num_each
    turns = [
        (user * num_groups + group - num_before) % num_users for group in range(num_groups) for user in range(num_each)
    ]
    return [(turn, max(0, -(-(total - turn) // num_users))) for turn in turns]


def users_of(section: InferencePerf) -> list[Client]:
    """The users as clients that send at a rate yet to be said."""
    shared = section.shared_prefix
    return [
        Client(
            id=f"prompt-{prompt}-user-{user}",
            tenant_id=f"prompt-{prompt}",
            slo_class="standard",
            prefix_group=f"prompt-{prompt}" if shared.system_prompt_len else "",
            prefix_length=shared.system_prompt_len,
            arrival=_POISSON,
            streaming=section.streaming,
            input_distribution=shared.question_distribution or _constant(shared.question_len),
            output_distribution=shared.output_distribution or _constant(shared.output_len),
        )
        for prompt in range(shared.num_unique_system_prompts)
        for user in range(shared.num_users_per_system_prompt)
    ]


def _constant(tokens: int) -> Distribution:
    return Distribution(type="constant", params={"value": tokens})


def _stage_sources(
    section: InferencePerf,
    clients: list[Client],
    places: list[tuple[int, int]],
    stage: Stage,
    start_us: int,
    seed: int,
) -> Iterator[Source]:
    rate = stage.rate / len(clients)
    duration_us = stage.duration * 1e6
    for (turn, share), (client, label, streams) in zip(places, named(clients, seed), strict=True):
        timeline: Timeline
        several = len(section.stages) > 1
        if section.shared_prefix.enable_multi_turn_chat:
            if not share:
                continue
            think_time_us = round(1e6 / rate)
            client = conversing(client, share, think_time_us, section.shared_prefix.context_growth)
            # A conversation begins when it begins, even after a short single stage.
            timeline = renewal_process(_POISSON, rate, None)
            if several:
                room_us = max(1.0, duration_us - (share - 1) * think_time_us)
                timeline = arrivals_before_end(_POISSON, rate, start_us, room_us, 1)
        elif section.process == "constant":
            # A user of N sends every N-th request; all requests are evenly apart, half a gap from begin and end.
            first_us = start_us + round((turn + 0.5 - len(clients)) * 1e6 / stage.rate)
            timeline = fixed_count_arrivals(_EVEN, rate, first_us, share * 1e6 / rate, share)
        elif several or section.process:
            timeline = arrivals_before_end(_POISSON, rate, start_us, duration_us, share)
        else:
            timeline = fixed_count_arrivals(_POISSON, rate, start_us, duration_us, share)
        profile = LengthProfile(client, client.input_distribution, client.output_distribution)
        yield Source(label=label, profile=profile, timeline=timeline, streams=streams)


def conversing(client: Client, num_rounds: int, think_time_us: int, context_growth: str = "") -> Client:
    """The client as one that has a single conversation."""
    multi_turn = MultiTurn(
        max_rounds=num_rounds, think_time_us=think_time_us, single_session=True, context_growth=context_growth
    )
    return dataclasses.replace(client, reasoning=Reasoning(multi_turn=multi_turn))


# Requests of an `inference_perf` section that wait for others: of concurrent stages, and of conversations that end.

_MOST_ROWS = 1_000_000
_MOST_PARENTS = 10_000_000


def has_waiting_requests(section: InferencePerf) -> bool:
    """Whether the requests of a section are rows that name those that they wait for."""
    return bool(section.concurrent_stages or section.shared_prefix.turns_per_conversation)


def staged_rows(section: InferencePerf, seed: int) -> list[TraceRow]:
    """The requests of all stages; users take turns, in a random order. Raises TraceError.

    Times of arrival of requests that wait take 1 us for each token of a reply.
    """
    stages = section.concurrent_stages
    num_rows = sum(int(stage.rate * stage.duration) for stage in section.stages)
    num_rows += sum(stage.num_requests for stage in stages)
    _check_size(num_rows, "requests", _MOST_ROWS)
    levels = [stage.concurrency_level for stage in stages]
    _check_size(sum(one * other for one, other in itertools.pairwise(levels)), "waits for stages", _MOST_PARENTS)
    streams = client_streams(seed, "inference_perf", 0)
    rows = _Rows(section, streams, num_rows)
    for at_us in _instants(section, streams):
        rows.add((), at_us)
    before: list[int] = []
    for stage in stages:
        before = _add_stage(rows, stage, before)
    by_time = sorted(rows.made, key=lambda row: row.arrival_time_us)
    ids = {row.request_id: number for number, row in enumerate(by_time)}
    return [renumbered(row, number, ids) for number, row in enumerate(by_time)]


def _check_size(number: int, noun: str, most: int) -> None:
    if number > most:
        raise TraceError(f"inference_perf: expected at most {most} {noun}, got {number}")


def _instants(section: InferencePerf, streams: Streams) -> Iterator[int]:
    """When the requests of the stages are due, as many in each as its rate says."""
    random = streams.of(Quantity.ARRIVALS)
    start_us = 0.0
    for stage in section.stages:
        count = int(stage.rate * stage.duration)
        is_even = section.process == "constant"
        shares = (np.arange(count) + 0.5) / max(1, count) if is_even else np.sort(random.random(count))
        yield from (start_us + shares * stage.duration * 1e6).astype(np.int64).tolist()
        start_us += stage.duration * 1e6


def _add_stage(rows: "_Rows", stage: ConcurrentStage, before: Sequence[int]) -> list[int]:
    """Add a stage that begins after the requests `before`; return the last ones of it."""
    level = stage.concurrency_level
    made: list[int] = []
    for number in range(stage.num_requests):
        made.append(rows.add(made[number - level : number - level + 1] if number >= level else before, 0))
    return made[-level:]


class _Rows:
    """The requests so far. Each is of the next user, whose conversation it goes on with in a multi-turn chat."""

    def __init__(self, section: InferencePerf, streams: Streams, count: int) -> None:
        self._shared = section.shared_prefix
        users = users_of(section)
        order = streams.of(Quantity.HELPERS).permutation(len(users)).tolist()
        self._users = [users[place] for place in order]
        self._questions: Ints = sample(users[0].input_distribution, streams.of(Quantity.INPUT_TOKENS), count)
        self._replies: Ints = sample(users[0].output_distribution, streams.of(Quantity.OUTPUT_TOKENS), count)
        self._last_of: dict[int, TraceRow] = {}
        self._num_conversations = [0] * len(users)
        self.made: list[TraceRow] = []

    def add(self, waits_for: Sequence[int], at_us: int) -> int:
        """Add a request that waits for others, or is due at this time; return its number."""
        number = len(self.made)
        user = number % len(self._users)
        client, shared = self._users[user], self._shared
        before = self._last_of.get(user) if shared.enable_multi_turn_chat else None
        if before is not None and before.round_index + 1 == shared.turns_per_conversation:
            before = None
        self._num_conversations[user] += before is None
        parents = list(dict.fromkeys([*waits_for, *([] if before is None else [before.request_id])]))
        context = 0
        if before is not None and shared.context_growth == ACCUMULATE:
            context = before.input_tokens + before.output_tokens
        own = int(self._questions[number]) + (shared.dynamic_system_prompt_len if before is None else 0)
        row = TraceRow(
            request_id=number,
            client_id=client.id,
            tenant_id=client.tenant_id,
            slo_class=client.slo_class,
            session_id=f"{client.id}-{self._num_conversations[user]}" if shared.enable_multi_turn_chat else "",
            round_index=0 if before is None else before.round_index + 1,
            prefix_group=client.prefix_group,
            prefix_length=client.prefix_length,
            streaming=client.streaming,
            input_tokens=context + own,
            output_tokens=int(self._replies[number]),
            arrival_time_us=max([at_us, *(self._ended_us(each) for each in parents)]),
            parents=ids_text(parents),
            think_time_us=0 if before is None else shared.tool_time_us,
            context_of=str(before.request_id) if context and before is not None else "",
            context_tokens=client.prefix_length + context if context else 0,
        )
        if context + own > MOST_TOKENS:
            raise TraceError(f"{client.id}: a prompt has {context + own} tokens, expected at most {MOST_TOKENS}")
        self._last_of[user] = row
        self.made.append(row)
        return number

    def _ended_us(self, number: int) -> int:
        return self.made[number].arrival_time_us + self.made[number].output_tokens
