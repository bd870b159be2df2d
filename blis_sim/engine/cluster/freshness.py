"""How old what a router knows of the instances may get."""

from dataclasses import dataclass

from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

DEFAULT_REFRESH_INTERVAL_US: Micros = 50_000
DEFAULT_CACHE_DELAY_US: Micros = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """How old what the router knows may get; 0 for never old. Raises EngineError for negative ones."""

    refresh_interval_us: Micros = DEFAULT_REFRESH_INTERVAL_US
    """Of the figures in snapshots."""
    cache_delay_us: Micros = DEFAULT_CACHE_DELAY_US
    """Of what is known about the content of KV caches."""

    def __post_init__(self) -> None:
        for name in ("refresh_interval_us", "cache_delay_us"):
            if (value := getattr(self, name)) < 0:
                raise EngineError(f"{name} must be at least 0, got {value}")
