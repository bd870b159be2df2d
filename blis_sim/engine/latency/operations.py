"""Latency models that have the time of each operation of a step."""

from typing import Protocol, runtime_checkable

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.model import LatencyModel


@runtime_checkable
class HasOperations(Protocol):
    """A latency model made of operations: what `operation_metrics.csv` has a column for."""

    @property
    def operation_names(self) -> tuple[str, ...]:
        """The operations, in the order of their columns."""
        ...

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        """Return the time of each operation in one step."""
        ...


def operations_of(latency: LatencyModel) -> HasOperations | None:
    """Return the model with times of operations, itself or below its wrappers; None if there is none."""
    from blis_sim.engine.latency.wrapped import WrappedLatency  # it loads numpy

    while not isinstance(latency, HasOperations):
        if not isinstance(latency, WrappedLatency):
            return None
        latency = latency.model
    return latency
