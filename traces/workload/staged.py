"""Requests of an `inference_perf` section that wait for others: of concurrent stages, and of conversations that end."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from blis_sim.options.limits import MOST_TOKENS
from traces.graph import ids_text, renumbered
from traces.rows import TraceRow
from traces.text_file import TraceError
from traces.workload.arrivals import Ints
from traces.workload.inference_perf import users_of
from traces.workload.lengths import sample
from traces.workload.spec import ACCUMULATE, ConcurrentStage, InferencePerf
from traces.workload.streams import Quantity, Streams, client_streams

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
