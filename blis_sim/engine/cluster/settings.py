"""Settings of a cluster's decisions: age of the router's figures, latencies, tie-breaking."""

from dataclasses import dataclass
from typing import Protocol

from blis_sim.engine.draws import splitmix64
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

DEFAULT_REFRESH_INTERVAL_US: Micros = 50_000
DEFAULT_CACHE_DELAY_US: Micros = 50_000
LONGEST_DELAY_S = 86_400.0
"""The longest delay of an instance or of an autoscaler, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """The largest age of the router's figures; 0 keeps them current. Raises EngineError below 0."""

    refresh_interval_us: Micros = DEFAULT_REFRESH_INTERVAL_US
    """The largest age of the figures in snapshots."""
    cache_delay_us: Micros = DEFAULT_CACHE_DELAY_US
    """The largest age of the content of KV caches."""

    def __post_init__(self) -> None:
        for name in ("refresh_interval_us", "cache_delay_us"):
            if (value := getattr(self, name)) < 0:
                raise EngineError(f"{name} must be at least 0, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Duration of the decisions about a request."""

    admission_us: Micros = 0
    """Time from the arrival of a request to the admission decision."""
    routing_us: Micros = 0
    """Time from the admission of a request until it is routed and enters its instance."""


class TieBreaker(Protocol):
    """Picks one of several equals for a request. It is called for each request, also if one is best."""

    def __call__(self, num_equals: int, input_tokens: int) -> int:
        """Return an index from 0 to `num_equals` - 1 for a request whose prompt has `input_tokens` tokens."""
        ...


DEFAULT_SEED = 42


class SeededTieBreaker:
    """Draws by a seed, the length of the prompt, and the number of earlier requests with a prompt of that length.

    A replay of a recorded server repeats the draws of the server. Requests that only the server received leave the
    draws of all other lengths as they are. So do two requests that arrived in another order, and a tie that only one of
    both had.
    """

    __slots__ = ("_base", "_num_routed")

    def __init__(self, seed: int) -> None:
        self._base = splitmix64(seed)
        self._num_routed: dict[int, int] = {}
        """Requests so far by the length of their prompts."""

    def __call__(self, num_equals: int, input_tokens: int) -> int:
        number = self._num_routed.get(input_tokens, 0)
        self._num_routed[input_tokens] = number + 1
        return splitmix64(splitmix64(self._base ^ input_tokens) ^ number) % num_equals if num_equals > 1 else 0
