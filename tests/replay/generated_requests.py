"""Generated workloads put together by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

from traces.workload.request import Round, Session, Workload, WorkloadRequest


def sent(arrival_us: int = 0, input_tokens: int = 10, output_tokens: int = 3, **fields: Any) -> WorkloadRequest:
    """A request with default fields unless given."""
    return WorkloadRequest(arrival_us=arrival_us, input_tokens=input_tokens, output_tokens=output_tokens, **fields)


def conversation(*pauses_us: int, name: str = "s", arrival_us: int = 0, timeout_us: int = 0, **fields: Any) -> Session:
    """A session of 10 input and 3 output tokens a round, with these pauses between its rounds."""
    deadline_us = arrival_us + timeout_us if timeout_us else 0
    first = sent(arrival_us, session_id=name, deadline_us=deadline_us, **fields)
    later = [Round(first.input_tokens, first.output_tokens, pause_us) for pause_us in pauses_us]
    return Session(first=first, later=later, timeout_us=timeout_us)


def workload(
    requests: Iterable[WorkloadRequest] = (),
    sessions: Sequence[Session] = (),
    max_requests: int | None = None,
    horizon_us: int | None = None,
) -> Workload:
    """All of this together."""
    return Workload(
        requests=list(requests),
        sessions=list(sessions),
        max_requests=max_requests,
        horizon_us=horizon_us,
        goodput_slo_targets={},
        notes=(),
    )
