"""Errors of a latency model on servers that were measured, for deployments like them."""

from collections.abc import Mapping

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.catalogue.models import short_name
from blis_sim.engine.latency.coefficients_file import unlike_measured
from blis_sim.engine.model_spec import ModelSpec

_LEARNED = ("qwen3-14b", "H100", 1)
"""The deployment that the shipped coefficients were learned for."""
_OF_LEARNED: Mapping[str, str] = {"fitted": "7.1, 0.8, 0.7 %", "trained-physics": "28.8, 10.5, 9.7 %"}
_OF_GPU: Mapping[str, Mapping[str, str]] = {
    "H100": {"fitted": "4.8, 3.5, 3.6 %", "trained-physics": "30.3, 14.6, 14.5 %"},
    "RTX-PRO-6000": {"fitted": "7.7, 1.9, 1.4 %", "trained-physics": "24.6, 9.0, 10.4 %"},
}
"""Errors of TTFT, E2E and the time between tokens, as in docs/models.md."""


def expected_error(latency_model: str, model: ModelSpec, gpu: GpuSpec, tp: int) -> str:
    """Return in words what to expect of a latency model, from the servers that its predictions were compared with."""
    if (short_name(model.name), gpu.name, tp) == _LEARNED and latency_model in _OF_LEARNED:
        figures, of = _OF_LEARNED[latency_model], "of each request, on this deployment"
    else:
        unlike = unlike_measured(model, gpu, tp)
        if unlike:
            return f"not known: nothing was measured {', nor '.join(unlike)}"
        figures, of = _OF_GPU[gpu.name].get(latency_model, ""), f"in the median of servers with {gpu.name}"
    return f"off by {figures} of TTFT, E2E and time between tokens {of}" if figures else "not measured"
