"""Trust in step times: the error that a latency model had where it was measured."""

from collections.abc import Sequence
from typing import NamedTuple

from blis_sim.engine.latency.kernels.evidence import MEASURED

_OF_FITTED = 0.05
"""Median error of E2E on servers with GPUs that the shipped coefficients were compared with: 4.0 % and 1.9 %."""
UNKNOWN = 0.3
"""Assumed where nothing was measured: coefficients learned elsewhere were 32 % off in TPOT."""


class Sureness(NamedTuple):
    """The latency model of a deployment, its error as a share of a step's time, and where that figure comes from."""

    latency_model: str
    step_error: float
    because: str


def sureness(latency_model: str, deployment_notes: Sequence[str]) -> Sureness:
    """Return the expected error of step times, by the notes of the deployment that they are for."""
    notes = [each for each in deployment_notes if "step times" in each or "coefficients were learned" in each]
    for name, errors in MEASURED.items():
        if any(f"{name} were measured" in each for each in notes):
            because = f"{name} were measured to be {errors.tpot:.0%} off in TPOT, {errors.ttft:.0%} in TTFT (medians)"
            return Sureness(latency_model, max(errors.tpot, 0.01), because)
    if latency_model == "fitted" and not any("warning" in each for each in notes):
        return Sureness("fitted", _OF_FITTED, "learned coefficients were within 5 % on servers with this GPU (medians)")
    because = "nothing like this deployment was measured"
    return Sureness(latency_model, UNKNOWN, f"{because}; {UNKNOWN:.0%} is assumed")
