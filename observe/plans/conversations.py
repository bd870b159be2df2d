"""Closed loop: sessions in which each request waits for the reply before it, and may carry all that was said."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from observe.client.exchange import Outcome
from observe.dispatch import Sent
from observe.requests.schedule import Planned, plan_from_requests
from traces.workload import Round, Session, WorkloadRequest


@dataclass(slots=True)
class _Talk:
    """A session under way: the request that was sent last, and the rounds after it."""

    session: Session
    previous: WorkloadRequest
    later: Iterator[Round]


class Conversations:
    """What each session sends when a reply has come. A session ends with its rounds, or with a request that failed.

    At most `max_follow_ups` requests follow, and none that would be due after `horizon_us`; None limits nothing.
    """

    def __init__(self, sessions: Sequence[Session], max_follow_ups: int | None, horizon_us: int | None) -> None:
        self._talks = {each.first.session_id: _Talk(each, each.first, iter(each.later)) for each in sessions}
        self._num_left = max_follow_ups
        self._horizon_us = horizon_us

    def follow_up(self, sent: Sent, ended_us: int) -> Planned | None:
        """The request after one that ended at this instant of the schedule; None when the session is over."""
        planned = sent.prepared.planned
        talk = self._talks.get(planned.session_id)
        if talk is None:
            return None
        coming = next(talk.later, None) if sent.outcome.status == "ok" and self._num_left != 0 else None
        due_us = ended_us + (coming.think_time_us if coming is not None else 0)
        if coming is None or (self._horizon_us is not None and due_us > self._horizon_us):
            del self._talks[planned.session_id]
            return None
        if self._num_left is not None:
            self._num_left -= 1
        talk.previous = talk.session.next_request(talk.previous, sent.outcome.output_tokens, coming, due_us)
        (following,) = plan_from_requests([talk.previous])
        if not talk.previous.keeps_context:
            return replace(following, think_time_us=coming.think_time_us)
        return replace(
            following,
            think_time_us=coming.think_time_us,
            earlier=(*planned.earlier, sent.prepared.turn, sent.outcome.reply.said),
            turn_tokens=coming.input_tokens,
            context_tokens=_repeated_tokens(planned, sent.outcome),
        )


def _repeated_tokens(planned: Planned, outcome: Outcome) -> int:
    """How many tokens the next prompt begins with that this one and its reply have.

    Models are not shown what they thought before, so a prompt after a reply with thoughts goes on another way.
    """
    prompt_tokens = outcome.reply.prompt_tokens or planned.prefix_tokens + planned.input_tokens
    return prompt_tokens + (outcome.output_tokens if outcome.reply.is_all_said else 0)
