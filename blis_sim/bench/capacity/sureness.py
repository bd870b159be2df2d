"""Trust in a plan: the measured errors of its latency model, and steps that are off by as much."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blis_sim.bench.capacity.candidates import Candidate
from blis_sim.engine.latency.kernels.evidence import MEASURED

_OF_FITTED = 0.05
"""Median error of E2E on servers with GPUs that the shipped coefficients were compared with: 4.0 % and 1.9 %."""
UNKNOWN = 0.3
"""Assumed where nothing was measured: coefficients learned elsewhere were 32 % off in TPOT."""


@dataclass(frozen=True, slots=True)
class Sureness:
    """The latency model of a deployment, its error as a share of a step's time, and where that figure comes from."""

    latency_model: str
    step_error: float
    because: str


def sureness_of(candidate: Candidate) -> Sureness:
    """Return the expected error of the step times behind a candidate, by the notes of its latency model."""
    notes = [each for each in candidate.notes if "step times" in each or "coefficients were learned" in each]
    for name, errors in MEASURED.items():
        if any(f"{name} were measured" in each for each in notes):
            because = f"{name} were measured to be {errors.tpot:.0%} off in TPOT, {errors.ttft:.0%} in TTFT (medians)"
            return Sureness(candidate.latency_model, max(errors.tpot, 0.01), because)
    if candidate.latency_model == "fitted" and not any("warning" in each for each in notes):
        return Sureness("fitted", _OF_FITTED, "learned coefficients were within 5 % on servers with this GPU (medians)")
    because = "nothing like this deployment was measured"
    return Sureness(candidate.latency_model, UNKNOWN, f"{because}; {UNKNOWN:.0%} is assumed")


def scaled(candidate: Candidate, factor: float) -> Candidate:
    """Return the candidate on a clock on which its steps take `factor` times as long: requests come so much faster."""
    return replace(
        candidate,
        settings={**candidate.settings, "rate": candidate.settings["rate"] * factor},
        busy_instances=_times(candidate.busy_instances, factor),
    )


def _times(values: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(each * factor for each in values)
