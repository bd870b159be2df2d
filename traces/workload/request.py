"""Elements of a workload: requests known up front, and sessions whose later requests wait for replies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traces.rows import TraceRow
from traces.slo import SloTargets


class WorkloadRequest(NamedTuple):
    """One request to be sent. A tuple, as workloads have millions of them. Times are microseconds, from 0 on.

    Its prompt is the shared start of `prefix_group`, `prefix_tokens` long, and `input_tokens` of its own.
    """

    arrival_us: int
    input_tokens: int
    output_tokens: int
    client_id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    adapter: str = ""
    prefix_group: str = ""
    prefix_tokens: int = 0
    streaming: bool | None = None
    """Whether its reply is to be streamed; None leaves that to the sender."""
    deadline_us: int = 0
    """When it is given up, on the clock of arrivals; 0 is never."""
    slo_target_us: int = 0
    session_id: str = ""
    round_index: int = 0
    think_time_us: int = 0
    """Pause between the reply before it in its session and this request."""
    keeps_context: bool = False
    """Whether `input_tokens` begin with all earlier prompts and replies of its session."""
    text_tokens: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    reason_ratio: float = 0.0
    priority: int | None = None
    """vLLM's: the smaller the more urgent; None leaves it to the SLO class."""
    slo_e2e_us: int = 0
    """Target time to its last token; 0 is none."""


class Round(NamedTuple):
    """A later round of a session: `input_tokens` are those of the new turn alone."""

    input_tokens: int
    output_tokens: int
    think_time_us: int
    text_tokens: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    reason_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation in which each request waits for the reply before it. `later` may be endless.

    `timeout_us` is how long each request may take, 0 is forever.
    """

    first: WorkloadRequest
    later: Iterable[Round]
    timeout_us: int

    def next_request(
        self, previous: WorkloadRequest, num_replied_tokens: int, next_round: Round, arrival_us: int
    ) -> WorkloadRequest:
        """The request after `previous`, which was answered with `num_replied_tokens`."""
        context_tokens = previous.input_tokens + num_replied_tokens if previous.keeps_context else 0
        turn = next_round._replace(input_tokens=context_tokens + next_round.input_tokens)
        return previous._replace(
            arrival_us=arrival_us,
            deadline_us=arrival_us + self.timeout_us if self.timeout_us else 0,
            round_index=previous.round_index + 1,
            **turn._asdict(),
        )


class SessionProgress:
    """The progress of a session: the request that was sent last, and the next round, None at the end."""

    __slots__ = ("_later", "next_round", "previous", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.previous = session.first
        self._later = iter(session.later)
        self.next_round = next(self._later, None)

    def next_request(self, arrival_us: int, num_replied_tokens: int) -> WorkloadRequest:
        """The next request, after a reply of so many tokens."""
        assert self.next_round is not None
        self.previous = self.session.next_request(self.previous, num_replied_tokens, self.next_round, arrival_us)
        self.next_round = next(self._later, None)
        return self.previous


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All that a spec generates: `requests` and `sessions` ascend by (first) arrival.

    With agents all requests are `rows` of a trace instead, which name those that they wait for. Rows of
    `fixed_sessions` are sent at their own times all the same. At most `max_requests` of the requests that follow in
    time, those of sessions included, are to be sent. None that arrives after `horizon_us` is sent; a limit of None
    limits nothing.
    """

    requests: Sequence[WorkloadRequest]
    sessions: list[Session]
    max_requests: int | None
    horizon_us: int | None
    goodput_slo_targets: Mapping[str, SloTargets]
    notes: tuple[str, ...]
    rows: list[TraceRow] = field(default_factory=list)
    fixed_sessions: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is sent."""
        return not (self.requests or self.sessions or self.rows)

    @property
    def last_arrival_us(self) -> int:
        """When the last request, or the first one of the last session, arrives; 0 of an empty workload."""
        if self.rows:
            return self.rows[-1].arrival_time_us
        last = list(self.requests[-1:]) or [session.first for session in self.sessions[-1:]]
        return max((request.arrival_us for request in last), default=0)


def row_of(request: WorkloadRequest, number: int) -> TraceRow:
    """The row of a generated request: fields of both have the same names, but for three."""
    values = request._asdict()
    del values["keeps_context"]
    return TraceRow(
        request_id=number,
        arrival_time_us=values.pop("arrival_us"),
        prefix_length=values.pop("prefix_tokens"),
        vllm_priority=values.pop("priority"),
        **values,
    )
