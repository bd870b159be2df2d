"""Which errors to expect of predictions from kernels, by what was measured."""

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

FULL = "bfloat16"


class MedianErrors(NamedTuple):
    """Medians of absolute errors of a class of deployments, as fractions."""

    tpot: float
    ttft: float


MEASURED: dict[str, MedianErrors] = {
    "dense models in FP8": MedianErrors(0.046, 0.102),
    "dense models in NVFP4": MedianErrors(0.068, 0.169),
    "experts in MXFP4": MedianErrors(0.050, 0.083),
    "experts in FP8 by blocks": MedianErrors(0.073, 0.176),
    "experts in NVFP4": MedianErrors(0.056, 0.158),
    "latent attention, experts in INT4": MedianErrors(0.042, 0.082),
    "latent attention, experts in NVFP4": MedianErrors(0.039, 0.173),
    "models in 16 bits": MedianErrors(0.027, 0.058),
}
"""By class: docs/silicon.md, and for 16 bits the eight servers of docs/published.md, predicted from kernels."""
_LAYERS: dict[type, str] = {
    LatentAttention: "latent attention",
    SparseLatentAttention: "sparse latent attention",
    DeltaNet: "gated delta nets",
}
_FORMATS = {
    "fp8": "FP8", "block fp8": "FP8 by blocks", "nvfp4": "NVFP4", "mxfp4": "MXFP4", MXFP4_BY_MARLIN: "MXFP4",
    "int4": "INT4",
}  # fmt: skip


def class_of(operations: StepOperations) -> str:
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


def expectation(operations: StepOperations) -> str:
    """Return what errors to expect, in words."""
    name = class_of(operations)
    known = MEASURED.get(name)
    if known is None:
        return f"nothing was measured of {name}"
    return f"{name} were measured to be {known.tpot:.0%} off in TPOT and {known.ttft:.0%} in TTFT (medians)"
