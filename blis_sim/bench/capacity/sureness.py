"""Trust in a plan: the measured errors of its latency model, and steps that are off by as much."""

from collections.abc import Sequence
from dataclasses import replace

from blis_sim.bench.capacity.candidates import Candidate
from blis_sim.engine.latency.sureness import Sureness, sureness

__all__ = ["Sureness", "scaled", "sureness_of"]


def sureness_of(candidate: Candidate) -> Sureness:
    """Return the expected error of the step times behind a candidate."""
    return sureness(candidate.latency_model, candidate.notes)


def scaled(candidate: Candidate, factor: float) -> Candidate:
    """Return the candidate on a clock on which its steps take `factor` times as long: requests come so much faster."""
    return replace(
        candidate,
        settings={**candidate.settings, "rate": candidate.settings["rate"] * factor},
        busy_instances=_times(candidate.busy_instances, factor),
    )


def _times(values: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(each * factor for each in values)
