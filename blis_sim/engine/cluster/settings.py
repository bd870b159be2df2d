"""Settings of a cluster's decisions: age of the router's figures, latencies, tie-breaking."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

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


TieBreaker: TypeAlias = Callable[[int], int]
"""Picks one of `n` equals: called with `n`, returns an index from 0 to n - 1."""


DEFAULT_SEED = 42


class SeededTieBreaker:
    """Draws from a seed; two runs with one seed get equal draws."""

    __slots__ = ("_base", "_num_draws")

    def __init__(self, seed: int) -> None:
        self._base = splitmix64(seed)
        self._num_draws = 0

    def __call__(self, num_equals: int) -> int:
        self._num_draws += 1
        return splitmix64(self._base ^ self._num_draws) % num_equals
