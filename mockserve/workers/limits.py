"""What one job of a worker process may take."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """The system counts whole seconds of CPU, so a job may get up to one more. `wall_s` is for a starved machine."""

    cpu_s: int = 1
    memory_bytes: int = 80 * MIB
    """What a job may allocate beyond the worker's own size."""
    kept_bytes: int = 16 * MIB
    """A worker that has grown by more than this ends after its job, which gives the memory back."""
    wall_s: float = 10.0
