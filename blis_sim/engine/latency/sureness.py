"""Expected errors of the step times of a latency model, from measurements."""

from collections.abc import Sequence
from typing import NamedTuple

from blis_sim.engine.latency.kernels.operations import (
    MXFP4_BY_MARLIN,
    DeltaNet,
    Experts,
    LatentAttention,
    Matmul,
    SparseLatentAttention,
    StepOperations,
)
from blis_sim.engine.specs import GpuSpec, ModelSpec

FULL = "bfloat16"


class MedianErrors(NamedTuple):
    """Medians of absolute errors of a class of deployments, as fractions."""

    tpot: float
    ttft: float


MEASURED: dict[str, MedianErrors] = {
    "dense models in FP8": MedianErrors(0.059, 0.093),
    "dense models in NVFP4": MedianErrors(0.059, 0.164),
    "experts in MXFP4": MedianErrors(0.047, 0.079),
    "experts in FP8 by blocks": MedianErrors(0.055, 0.190),
    "experts in NVFP4": MedianErrors(0.034, 0.176),
    "latent attention, experts in INT4": MedianErrors(0.036, 0.072),
    "latent attention, experts in NVFP4": MedianErrors(0.045, 0.162),
    "models in 16 bits": MedianErrors(0.024, 0.066),
}
"""By class: docs/silicon.md, and for 16 bits the eight servers of docs/published.md, predicted from kernels."""


class E2eErrors(NamedTuple):
    """Means of absolute errors of E2E over servers of one kind, as fractions, by how their steps were predicted."""

    kernels: float
    fitted: float


ONE_H100, SEVERAL_H100S = "dense models with grouped KV heads on one H100", "such models on several H100s"
WITHOUT_GROUPS, WITH_EXPERTS = "dense models without grouped KV heads on H100s", "models with experts on H100s"
ANOTHER_GPU = "models on another GPU"
IN_16_BITS: dict[str, E2eErrors] = {
    ONE_H100: E2eErrors(0.0162, 0.0156),
    SEVERAL_H100S: E2eErrors(0.02225, 0.0595),
    WITHOUT_GROUPS: E2eErrors(0.063, 0.073),
    WITH_EXPERTS: E2eErrors(0.001, 0.0325),
    ANOTHER_GPU: E2eErrors(0.0215, 0.1945),
}
"""Models in 16 bits: docs/models.md, from the recordings not learned from of docs/accuracy.md and the servers of
docs/published.md. Without recordings of the server, other formats were only measured with kernels closer."""
_LAYERS: dict[type, str] = {
    LatentAttention: "latent attention",
    SparseLatentAttention: "sparse latent attention",
    DeltaNet: "gated delta nets",
}
_FORMATS = {
    "fp8": "FP8", "block fp8": "FP8 by blocks", "nvfp4": "NVFP4", "mxfp4": "MXFP4", MXFP4_BY_MARLIN: "MXFP4",
    "int4": "INT4",
}  # fmt: skip


def kernels_are_closer(model: ModelSpec, gpu: GpuSpec, tp: int) -> bool:
    """Return whether kernels predicted servers like a deployment closer than the shipped coefficients did."""
    if model.bytes_per_weight < model.bytes_per_activation:
        return True
    errors = IN_16_BITS[server_kind(model, gpu, tp)]
    return errors.kernels < errors.fitted


def server_kind(model: ModelSpec, gpu: GpuSpec, tp: int) -> str:
    """Return the kind of server among those of `IN_16_BITS` that a deployment is most like."""
    if gpu.name != "H100":
        return ANOTHER_GPU
    if model.is_moe:
        return WITH_EXPERTS
    if model.num_kv_heads >= model.num_heads:
        return WITHOUT_GROUPS
    return ONE_H100 if tp == 1 else SEVERAL_H100S


def deployment_class(operations: StepOperations) -> str:
    """Return the class of a deployment, by its attention and by the weights that most of its time goes to."""
    experts = [each for each, _ in operations.per_token if isinstance(each, Experts)]
    matmuls = [each for each, _ in operations.per_token if isinstance(each, Matmul)]
    weights = experts[0].weights if experts else max(matmuls, key=lambda each: each.rows * each.columns).weights
    if weights == FULL:
        kind = "models in 16 bits"
    else:
        kind = f"{'experts' if experts else 'dense models'} in {_FORMATS.get(weights, weights)}"
    layers = {_LAYERS.get(type(each), "") for each, _ in operations.attention} - {""}
    return ", ".join((*sorted(layers), kind))


def expected_kernel_errors(operations: StepOperations) -> str:
    """Return the expected errors in words."""
    name = deployment_class(operations)
    known = MEASURED.get(name)
    if known is None:
        return f"nothing was measured of {name}"
    return f"{name} were measured to be {known.tpot:.0%} off in TPOT and {known.ttft:.0%} in TTFT (medians)"


_FITTED_ERROR = 0.05
"""Median error of E2E on servers with GPUs that the shipped coefficients were compared with: 4.0 % and 1.9 %."""
UNKNOWN = 0.3
"""Assumed where nothing was measured: coefficients learned elsewhere were 32 % off in TPOT."""


class ErrorEstimate(NamedTuple):
    """The latency model of a deployment, its error as a share of a step's time, and where that figure comes from."""

    latency_model: str
    step_error: float
    error_source: str


def sureness(latency_model: str, deployment_notes: Sequence[str]) -> ErrorEstimate:
    """Return the expected error of step times, by the notes of the deployment that they are for."""
    notes = [each for each in deployment_notes if "step times" in each or "coefficients were learned" in each]
    for name, errors in MEASURED.items():
        if any(f"{name} were measured" in each for each in notes):
            error_source = (
                f"{name} were measured to be {errors.tpot:.0%} off in TPOT, {errors.ttft:.0%} in TTFT (medians)"
            )
            return ErrorEstimate(latency_model, max(errors.tpot, 0.01), error_source)
    if latency_model == "fitted" and not any("warning" in each for each in notes):
        return ErrorEstimate(
            "fitted", _FITTED_ERROR, "learned coefficients were within 5 % on servers with this GPU (medians)"
        )
    error_source = "nothing like this deployment was measured"
    return ErrorEstimate(latency_model, UNKNOWN, f"{error_source}; {UNKNOWN:.0%} is assumed")
