"""The learned terms of the kernels latency model: a scale for each class of kernels, and what the host adds."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.fitted import REQUEST_TERMS
from blis_sim.engine.latency.kernel_steps import (
    EAGER_LAUNCH_US,
    LARGEST_STEP_TOKENS,
    HostOverheads,
    KernelScales,
    KernelSteps,
)
from blis_sim.engine.latency.kernels.grids import TOKEN_CLASSES, KernelGrids, graph_sizes
from blis_sim.engine.latency.kernels.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.kernels.sources import decode_rows, grids_of, has_one_attention_call
from blis_sim.engine.specs import GpuSpec, ModelSpec
from calibrate.fit.terms import EXPECTED_OF_HOST, Expectation, Terms

Floats = npt.NDArray[np.float64]

SCALES = tuple(each.name for each in fields(KernelScales))
_HOST_OF_STEPS = ("burst", "burst_again", "step_us", "prompt_us", "request_us")
_HOST_OF_REQUESTS = tuple(name for name in REQUEST_TERMS if name != "output_turn_us")
EXPECTED: dict[str, Expectation] = {
    **dict.fromkeys(SCALES, Expectation(1.0, 0.05)),
    "all_reduce": Expectation(1.0, 0.3),  # links differ more than GPUs
    "elementwise": Expectation(1.0, 0.3),  # small kernels were not measured
    "burst": Expectation(0.02, 0.01),
    "burst_again": Expectation(0.08, 0.04),
    **EXPECTED_OF_HOST,
}
MIN_SCALE = 0.8
"""Least scale of a class of kernels: what a recording seems to show beyond it belongs to terms that recordings hardly
separate from kernels."""
TERMS = Terms((*SCALES, *_HOST_OF_STEPS), _HOST_OF_REQUESTS, EXPECTED, least=dict.fromkeys(SCALES, MIN_SCALE))


@dataclass(frozen=True, slots=True)
class KernelsDeployment:
    """The deployment that scales and host overheads are learned for."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    grids: KernelGrids
    sizes: tuple[int, ...]
    launch_us: float = 0.0
    decode_rows: int = 0
    has_one_attention_call: bool = False

    @property
    def latency_model(self) -> str:
        return "kernels"

    @property
    def terms(self) -> Terms:
        return TERMS

    @property
    def growth_requests(self) -> int:
        return 0

    def alternatives(self) -> "tuple[KernelsDeployment, ...]":
        return (self,)

    def learnable(self) -> tuple[str, ...]:
        rows = zip(TOKEN_CLASSES, self.grids.token_us, strict=True)
        missing = {name for name, row in rows if not row.any()}
        return tuple(name for name in TERMS.names if name not in missing)

    def latency(self, values: Floats) -> KernelSteps:
        named = TERMS.by_name(values)
        scales = KernelScales(**{name: named.pop(name) for name in SCALES})
        host = HostOverheads(**named)
        return KernelSteps(
            self.grids,
            host,
            scales,
            self.sizes,
            self.launch_us,
            self.decode_rows,
            has_one_attention_call=self.has_one_attention_call,
        )

    def sections(self, values: Mapping[str, float]) -> dict[str, dict[str, float]]:
        host = {name: value for name, value in values.items() if name not in SCALES}
        return {"scales": {name: values[name] for name in SCALES}, "host": host}

    def basis(self, values: Floats, shapes: npt.NDArray[np.int64]) -> Floats:
        """Return what each coefficient is multiplied by; the least time of eager steps is left out."""
        plain = replace(self.latency(values), scales=KernelScales())
        shape = dict(zip(BatchShape._fields, shapes.T.astype(np.float64), strict=True))
        num_tokens = shape["prefill_tokens"] + shape["decode_requests"]
        padded = np.array([*self.sizes, 0.0])[np.searchsorted(self.sizes, num_tokens)]
        tokens = np.where(padded, padded, num_tokens)
        sampling = np.minimum(shape["prefill_requests"] + shape["decode_requests"], LARGEST_STEP_TOKENS)
        points = self.grids.tokens
        rows = zip(TOKEN_CLASSES, self.grids.token_us, strict=True)
        columns = {name: np.interp(tokens, points, row) for name, row in rows}
        columns["head"] = np.interp(sampling, points, self.grids.head_us)
        parts = [plain.parts_us(BatchShape(*row)) for row in shapes.tolist()]
        names = ("prompt_attention", "decode_attention", "burst", "burst_again")
        columns |= dict(zip(names, np.array(parts, dtype=np.float64).reshape(-1, len(names)).T, strict=True))
        columns |= {
            "step_us": np.ones(len(shapes)),
            "prompt_us": shape["prefill_requests"],
            "request_us": shape["decode_requests"],
        }
        return np.column_stack([columns[name] for name in TERMS.step])


def kernels_deployment(
    model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement, max_num_seqs: int
) -> KernelsDeployment:
    """Return a deployment with its kernel times. Raises EngineError where there are none."""
    grids = grids_of(model, gpu, placement)
    operations = operations_of(model, placement)
    return KernelsDeployment(
        model,
        gpu,
        placement.tp,
        grids,
        () if placement.eager else graph_sizes(gpu.compute_capability, max_num_seqs),
        launch_us=EAGER_LAUNCH_US if placement.eager else 0.0,
        decode_rows=decode_rows(operations, gpu),
        has_one_attention_call=has_one_attention_call(operations, gpu),
    )
