"""How much a workload is, so that one that no memory has room for is refused before it is drawn."""

from collections.abc import Sequence

from blis_sim.options.limits import MOST_DRAWN, MOST_REQUESTS
from traces.errors import TraceError
from traces.workload.agents import requests_per_agent
from traces.workload.arrivals import Renewal
from traces.workload.sources import Source
from traces.workload.spec import Client

_LONG_US = 3_600_000_000
"""Longest duration of a request without a timeout."""


def check_count(expected: float) -> None:
    """Raise TraceError when a workload has about so many requests, and they are too many."""
    if expected > MOST_REQUESTS:
        raise TraceError(
            f"the workload has about {expected:.2g} requests until it ends, expected at most {MOST_REQUESTS:g}:"
            " give it num_requests, an earlier end or lower rates"
        )


def check_size(sources: Sequence[Source], until_us: int, num_wanted: int) -> None:
    """Raise TraceError when these sources have too many requests up to an instant, of which `num_wanted` are kept, or
    all with 0."""
    expected = sum(_num_requests(source, until_us) for source in sources)
    if not num_wanted:
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
    if not isinstance(timeline, Renewal):
        return num_rounds * timeline.num_gaps
    spans = ((0, until_us),) if timeline.windows is None else timeline.windows
    active_us = sum(max(0, min(end, until_us) - start) for start, end in spans)
    return num_rounds * active_us / max(timeline.mean_gap_us, 1)
