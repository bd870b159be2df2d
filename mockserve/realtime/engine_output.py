"""An engine as those see it who hand its tokens over: whose overheads count, who is told what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blis_sim.engine.core import Engine
from blis_sim.engine.kv_cache.changes import CacheChange
from mockserve.flight import FlightRecorder


def _ignore_cache_changes(_changes: Sequence[CacheChange]) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class EngineOutput:
    """One engine, and who hears of it."""

    engine: Engine
    recorder: FlightRecorder
    tell_cache_changes: Callable[[Sequence[CacheChange]], None] = _ignore_cache_changes
    """Who wants to know what happens to the content of the prefix cache, step by step."""
    num_outputs: int = 0
    """Tokens that the latest step produced."""
