"""Concurrency users: each sends its next request when it has thought about the last reply, without end."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from traces.workload.request import Round, Session, WorkloadRequest
from traces.workload.sources import Users
from traces.workload.streams import Streams
from traces.workload.turns import Habits, draw_turns

_ROUNDS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _LaterRounds:
    """The endless rounds of a user after its first. Each iteration begins anew and gives the same ones."""

    habits: Habits
    streams: Streams

    def __iter__(self) -> Iterator[Round]:
        rounds = _rounds(self.habits, self.streams)
        next(rounds)
        return rounds


def _rounds(habits: Habits, streams: Streams) -> Iterator[Round]:
    for block in count():
        turns = draw_turns(habits, streams.part(block), _ROUNDS_AT_ONCE)
        yield from turns.rounds(habits.client.think_time_us)


def user_sessions(users: Users, timeout_us: int) -> Iterator[Session]:
    """One session per user. The users begin spread evenly over one think time."""
    client = users.client
    for number in range(client.concurrency):
        streams = users.streams.part(number)
        arrival_us = number * client.think_time_us // client.concurrency
        first = next(_rounds(users.habits, streams))
        request = WorkloadRequest(
            arrival_us=arrival_us,
            client_id=client.id,
            tenant_id=client.tenant_id,
            slo_class=client.slo_class,
            model=client.model,
            adapter=client.adapter,
            prefix_group=client.prefix_group,
            prefix_tokens=client.prefix_tokens,
            input_tokens=first.input_tokens,
            output_tokens=first.output_tokens,
            streaming=client.streaming,
            deadline_us=arrival_us + timeout_us if timeout_us else 0,
            slo_target_us=client.slo_target_us,
            session_id=f"concurrency_{users.label}_user_{number}",
            round_index=0,
            think_time_us=0,
            keeps_context=False,
            text_tokens=first.text_tokens,
            image_tokens=first.image_tokens,
            audio_tokens=first.audio_tokens,
            video_tokens=first.video_tokens,
            reason_ratio=first.reason_ratio,
        )
        yield Session(first=request, later=_LaterRounds(users.habits, streams), timeout_us=timeout_us)
