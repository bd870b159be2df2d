"""What to know of learned coefficients before a deployment is timed with them."""

from collections.abc import Iterator

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.model_spec import ModelSpec

SHIPPED = "the shipped coefficients"
GPUS_MEASURED = ("H100", "RTX-PRO-6000")
TPS_MEASURED = (1, 2, 4)
EXPERTS_MEASURED = "mixtral-8x7b"
"""The servers whose recordings were compared with predictions by the shipped coefficients (docs/published.md) had these
GPUs, were sharded over so many of them, and of models with experts ran this one."""


def notes_on_coefficients(
    learned_for: str, path: str | None, model: ModelSpec, gpu: GpuSpec, tp: int, engine: str
) -> Iterator[str]:
    """Yield a line on each difference between the deployment that coefficients were learned for and this one.

    The coefficients of the file `path`, or those that ship where it is None, were learned for `learned_for`.
    """
    origin = f"{SHIPPED} were" if path is None else f"{path} was"
    used_for = f"{model.name} on {gpu.name} with tp {tp}"
    if learned_for != used_for:
        more = _more_on_shipped(model, gpu, tp) if path is None else ""
        yield f"warning: {origin} learned for {learned_for}, not for {used_for}{more}"
    if engine != "vllm":
        yield f"warning: {origin} learned with --engine vllm, not with {engine}"


def _more_on_shipped(model: ModelSpec, gpu: GpuSpec, tp: int) -> str:
    """Whether there is any measurement of such a deployment, and how to get coefficients of one's own."""
    unknown = [
        what
        for what, is_unknown in (
            (f"on {gpu.name}", gpu.name not in GPUS_MEASURED),
            (f"with tp {tp}", tp not in TPS_MEASURED),
            ("with quantised weights", model.bytes_per_weight < model.bytes_per_activation),
            ("with experts but those of Mixtral-8x7B", model.is_moe and not model.name.startswith(EXPERTS_MEASURED)),
        )
        if is_unknown
    ]
    measured = f"; nothing was measured {', nor '.join(unknown)}" if unknown else ""
    return f"{measured}; `blis fit` learns those of your own server, for --coefficients FILE"
