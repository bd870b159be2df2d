"""Scores by what an instance has to do."""

from blis_sim.engine.cluster.scorers.scorer import Scores, from_most_to_least
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request

_LONG_QUEUE = 128
"""A queue so long is as bad as any longer one."""


def queue_depth(_request: Request, state: RoutingState) -> Scores:
    """1 for the fewest waiting requests, 0 for the most."""
    return from_most_to_least([snapshot.num_waiting for snapshot in state.candidates])


def effective_load(_request: Request, state: RoutingState) -> Scores:
    """1 for the least effective load, 0 for the most: what BLIS's published description calls queue-depth."""
    return from_most_to_least([snapshot.load for snapshot in state.candidates])


def load_balance(_request: Request, state: RoutingState) -> Scores:
    """The less effective load the better, however the others fare."""
    return [1 / (1 + snapshot.load) for snapshot in state.candidates]


def active_requests(_request: Request, state: RoutingState) -> Scores:
    """The share that the requests in flight are less than the most of any; 1 for those that have none."""
    in_flight = [snapshot.num_in_flight for snapshot in state.candidates]
    most = max(in_flight)
    return [(most - each) / most if each else 1.0 for each in in_flight]


def running_requests(_request: Request, state: RoutingState) -> Scores:
    """1 for the fewest running requests, 0 for the most."""
    return from_most_to_least([snapshot.num_running for snapshot in state.candidates])


def load_aware(_request: Request, state: RoutingState) -> Scores:
    """A half for those where nobody waits, less for others."""
    return [0.5 * (1 - min(snapshot.num_waiting, _LONG_QUEUE) / _LONG_QUEUE) for snapshot in state.candidates]


def vllm_dp(_request: Request, state: RoutingState) -> Scores:
    """What vLLM balances data-parallel ranks by: who waits counts four times as much as who runs."""
    return from_most_to_least([4 * snapshot.num_waiting + snapshot.num_running for snapshot in state.candidates])
