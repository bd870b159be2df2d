"""Admission at a limited rate of prompt tokens."""

from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request
from blis_sim.engine.units import Micros


class TokenBucket:
    """A bucket that begins full and fills up at a steady rate; a request takes as many tokens as its prompt has."""

    reads_snapshots = False
    routed = None

    def __init__(self, capacity_tokens: float, refill_tokens_per_s: float) -> None:
        self._capacity = capacity_tokens
        self._rate = refill_tokens_per_s
        self._tokens = capacity_tokens
        self._filled_at: Micros = 0

    def admits(self, request: Request, state: RoutingState) -> bool:
        elapsed = state.now - self._filled_at
        if elapsed > 0:
            self._tokens = min(self._capacity, self._tokens + elapsed * self._rate / 1e6)
            self._filled_at = state.now
        if self._tokens < request.input_tokens:
            return False
        self._tokens -= request.input_tokens
        return True
