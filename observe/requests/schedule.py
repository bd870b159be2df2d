"""The schedule of the requests to send. Pure: the clock is the dispatcher's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from observe.requests.lengths import Lengths
from traces import TraceRow
from traces.workload import WorkloadRequest

SHARED_PREFIX = "shared"

_MOST_SPARE_CONNECTIONS = 32
_SPARE_WINDOW_US = 100_000


@dataclass(frozen=True, slots=True)
class Repeated:
    """The start of a prompt that is that of request `number`, of which it has the first `num_tokens`.

    `parts` say which words of their own requests contributed: number, where these begin in prompts, and up to where
    they are repeated, in tokens.
    """

    number: int
    num_tokens: int
    parts: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One request to be. `at_us` counts from the start of the run.

    Its prompt is the shared start of `prefix_group`, `prefix_tokens` long, and `input_tokens` of its own, unless it
    has a `prompt` already; then `input_tokens` are an estimate. The rest labels the row it becomes.
    """

    at_us: int
    input_tokens: int
    output_tokens: int
    prompt: str = ""
    prefix_group: str = ""
    prefix_tokens: int = 0
    client_id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    session_id: str = ""
    round_index: int = 0
    think_time_us: int = 0
    earlier: tuple[str, ...] = ()
    """Earlier prompts and replies of the conversation, in turn; `turn_tokens` then counts the request's own words."""
    earlier_tokens: tuple[int, ...] = ()
    """How many tokens these turns were planned to have, for requests of a graph."""
    begins_with: str = ""
    """Words of another prompt that its last turn begins with."""
    turn_tokens: int = 0
    context_tokens: int = 0
    """Tokens of `earlier`, or of a prompt that is repeated, which the server's prefix cache can find."""
    number: int | None = None
    """The number in the recording; None counts requests as they are sent."""
    parents: tuple[int, ...] = ()
    """The numbers of requests that must be answered before it is sent."""
    context_of: int | None = None
    """The number of the request that `context_tokens` are of; None for the round before."""
    repeats: Repeated | None = None
    model: str = ""
    timeout_us: int = 0
    """After how long it is given up; 0 leaves that to the run."""
    priority: int | None = None
    """vLLM's: the smaller the more urgent; None for a request without one."""
    slo_e2e_us: int = 0
    """Target time to its last token; 0 leaves that to its SLO class."""


def constant_arrivals_us(rate: float, count: int) -> list[int]:
    """Evenly spaced arrivals, the first one interval after the start. Rounding does not add up."""
    return [round(place * 1e6 / rate) for place in range(1, count + 1)]


def poisson_arrivals_us(rate: float, count: int, random: Random) -> list[int]:
    """Arrivals with independent exponential gaps."""
    return [round(at * 1e6) for at in accumulate(random.expovariate(rate) for _ in range(count))]


def plan_synthetic(
    arrivals_us: Sequence[int], prompt: Lengths, output: Lengths, *, prefix_tokens: int, random: Random
) -> list[Planned]:
    """Requests at these times, with lengths drawn for each; all share one prefix when it has tokens."""
    return [
        Planned(
            at_us=at_us,
            input_tokens=prompt.draw(random),
            output_tokens=output.draw(random),
            prefix_group=SHARED_PREFIX if prefix_tokens else "",
            prefix_tokens=prefix_tokens,
        )
        for at_us in arrivals_us
    ]


def plan_from_trace(rows: Sequence[TraceRow]) -> list[Planned]:
    """The requests of a recording at their own times, the first at 0, in the order in which they arrived.

    The prompt is as long as the server counted it, else as long as it was meant to be. A request that never got an
    output requests one token.
    """
    in_order = sorted(rows, key=lambda row: row.arrival_time_us)
    return [_planned(row, row.arrival_time_us - in_order[0].arrival_time_us) for row in in_order]


def plan_from_requests(requests: Sequence[WorkloadRequest]) -> list[Planned]:
    """The requests that a workload spec generates, at their own times."""
    return [
        Planned(
            at_us=request.arrival_us,
            input_tokens=max(1, request.input_tokens),
            output_tokens=max(1, request.output_tokens),
            prefix_group=request.prefix_group if request.prefix_tokens else "",
            prefix_tokens=request.prefix_tokens,
            client_id=request.client_id,
            tenant_id=request.tenant_id,
            slo_class=request.slo_class,
            session_id=request.session_id,
            round_index=request.round_index,
            model=request.model,
            timeout_us=max(0, request.deadline_us - request.arrival_us) if request.deadline_us else 0,
            priority=request.priority,
            slo_e2e_us=request.slo_e2e_us,
        )
        for request in requests
    ]


def peak_arrivals(plan: Sequence[Planned], window_us: int) -> int:
    """The most arrivals that any stretch of time of this length holds; the plan is in order of time."""
    return max(_arrivals_in_window([planned.at_us for planned in plan], window_us), default=0)


def num_spare_connections(plan: Sequence[Planned]) -> int:
    """How many connections to hold open beside the busy ones: for the densest moment of the plan, within reason."""
    return min(peak_arrivals(plan, _SPARE_WINDOW_US) + 1, _MOST_SPARE_CONNECTIONS)


def mean_rate(plan: Sequence[Planned]) -> float:
    """Requests per second from the first arrival to the last; 0 when that takes no time."""
    span_us = plan[-1].at_us - plan[0].at_us
    return (len(plan) - 1) * 1e6 / span_us if span_us else 0.0


def _planned(row: TraceRow, at_us: int) -> Planned:
    prefix_tokens = row.prefix_length if row.prefix_group else 0
    total = row.server_input_tokens or row.prefix_length + row.input_tokens
    return Planned(
        at_us=at_us,
        input_tokens=max(1, total - prefix_tokens),
        output_tokens=max(1, row.output_tokens),
        prefix_group=row.prefix_group if prefix_tokens else "",
        prefix_tokens=prefix_tokens,
        client_id=row.client_id,
        tenant_id=row.tenant_id,
        slo_class=row.slo_class,
        session_id=row.session_id,
        round_index=row.round_index,
        priority=row.vllm_priority,
        slo_e2e_us=row.slo_e2e_us,
    )


def _arrivals_in_window(arrivals_us: Sequence[int], window_us: int) -> Iterator[int]:
    """For each arrival the number of those in the window that ends with it."""
    oldest = 0
    for place, at_us in enumerate(arrivals_us):
        while arrivals_us[oldest] <= at_us - window_us:
            oldest += 1
        yield place - oldest + 1
