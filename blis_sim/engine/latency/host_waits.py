"""Waits of the GPU for the host, of the host for the GPU, and of tokens for each other in the API server process."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.units import Micros


@runtime_checkable
class WaitsForHost(Protocol):
    """A latency model of a server whose host does not always work while a step executes."""

    def idle_start_time(self, idle_us: Micros) -> Micros:
        """Return what a step takes longer on a GPU that has been idle for `idle_us`: nothing hides what the host does
        before a step."""
        ...

    @property
    def growth_requests(self) -> int:
        """How many requests a batch must have more than any before, to make the host wait until its step ends; 0 where
        none does."""
        ...

    @property
    def output_turn_us(self) -> float:
        """Return what handing out one token takes the API server process, which does so one after the other."""
        ...


@runtime_checkable
class WrapsModel(Protocol):
    """A latency model that wraps another one, and starts after an idle time as that one does."""

    def idle_starter(self) -> Callable[[Micros], Micros] | None: ...


def idle_starter(latency: LatencyModel) -> Callable[[Micros], Micros] | None:
    """Return the `idle_start_time` of a latency model, None where it has none."""
    if isinstance(latency, WrapsModel):
        return latency.idle_starter()
    return latency.idle_start_time if isinstance(latency, WaitsForHost) else None


def output_turn_us(latency: LatencyModel) -> float:
    """Return the `output_turn_us` of a latency model, 0 where it has none."""
    return latency.output_turn_us if isinstance(latency, WaitsForHost) else 0.0


def growth_requests(latency: LatencyModel) -> int:
    """Return the `growth_requests` of a latency model, 0 where it has none."""
    return latency.growth_requests if isinstance(latency, WaitsForHost) else 0
