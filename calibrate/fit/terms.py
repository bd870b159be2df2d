"""The terms of a latency model that is learned: those of the fitted model, and of the kernels model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.fitted import (
    FULLY_HOT_US,
    LONGEST_BURST_US,
    REQUEST_TERMS,
    SMALL_TILE_TOKENS,
    STEP_TERMS,
    SUSTAINED_TOKENS,
    TILE_TOKENS,
    Fitted,
    RequestCoefficients,
    StepCoefficients,
    all_reduce_us,
)
from blis_sim.engine.latency.kernel_profiles import decode_rows, grids_of, has_one_attention_call
from blis_sim.engine.latency.kernels import (
    EAGER_LAUNCH_US,
    LARGEST_STEP_TOKENS,
    TOKEN_CLASSES,
    HostOverheads,
    KernelGrids,
    KernelScales,
    KernelSteps,
    graph_sizes,
)
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.step_work import step_work
from blis_sim.engine.specs import GpuSpec, ModelSpec

# The terms of a latency model that is learned; those of the fitted one, with values expected of them.

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Expectation:
    """A term's value before any measurement, and how far from it would still be no surprise."""

    mean: float
    spread: float


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a latency model: those of steps, those outside of steps, and what is expected of each.

    `together` expects something of the sum of several.
    """

    step: tuple[str, ...]
    request: tuple[str, ...]
    expected: Mapping[str, Expectation]
    together: tuple[tuple[tuple[str, ...], Expectation], ...] = ()
    least: Mapping[str, float] = field(default_factory=dict)
    """The least values of terms; 0 of those that are not here."""

    def least_values(self) -> Floats:
        """Return the least value of each term."""
        return np.array([self.least.get(name, 0.0) for name in self.names])

    @property
    def names(self) -> tuple[str, ...]:
        """All terms: those of steps come first."""
        return (*self.step, *self.request)

    def place(self, name: str) -> int:
        """Return where a term stands among `names`."""
        return self.names.index(name)

    def by_name(self, values: Floats) -> dict[str, float]:
        """Return coefficients, in the order of `names`, by name; negative ones become 0."""
        return {name: max(0.0, float(value)) for name, value in zip(self.names, values, strict=True)}

    def expected_values(self) -> Floats:
        """Return where learning starts."""
        return np.array([self.expected[name].mean for name in self.names])

    def expected_spreads(self) -> Floats:
        """Return how far from there nothing would be a surprise."""
        return np.array([self.expected[name].spread for name in self.names])


EXPECTED_OF_HOST: dict[str, Expectation] = {
    "step_us": Expectation(300.0, 300.0),
    "prompt_us": Expectation(300.0, 300.0),
    "request_us": Expectation(8.0, 8.0),
    "arrival_us": Expectation(3000.0, 2000.0),
    "arrival_token_us": Expectation(1.5, 0.5),
    "output_us": Expectation(900.0, 500.0),
    "output_request_us": Expectation(40.0, 20.0),
}
"""Expected overheads of the host, whatever model times the steps."""

EXPECTED: dict[str, Expectation] = {
    "weights": Expectation(1.1, 0.05),  # kernels stream large weights at nine tenths of the peak bandwidth
    "layer_us": Expectation(30.0, 10.0),  # about ten small kernels of 3 us
    "tokens": Expectation(0.35, 0.4),
    "tiles": Expectation(0.9, 0.4),
    "small_tiles": Expectation(0.2, 0.3),
    "attention": Expectation(1.6, 0.25),  # measured kernels: 1.4 on Hopper, 1.75 to 1.95 on other GPUs
    "kv": Expectation(1.1, 0.05),  # read like weights
    "all_reduce": Expectation(1.0, 0.5),
    "decodes": Expectation(0.4, 0.3),
    "burst": Expectation(0.03, 0.015),
    "burst_again": Expectation(0.14, 0.07),
    "sustained": Expectation(0.05, 0.05),
    "idle_start_us": Expectation(2500.0, 2500.0),
    "output_turn_us": Expectation(25.0, 100.0),
    **EXPECTED_OF_HOST,
}
COMPUTE_TERMS = ("tokens", "tiles", "small_tiles")
EXPECTED_COMPUTE = Expectation(1.45, 0.1)
"""Expected sum of the compute terms: large multiplications reach about 70 % of the peak arithmetic rate."""


GROWTH_REQUESTS = 8
"""With a host that waits for growing batches, every batch does that has so many requests more: vLLM pads batches to
multiples of 8."""
LEAST: dict[str, float] = {"weights": 1.0, "kv": 1.0}
"""No memory is read at more than its peak bandwidth."""

TERMS = Terms(STEP_TERMS, REQUEST_TERMS, EXPECTED, ((COMPUTE_TERMS, EXPECTED_COMPUTE),), LEAST)


@dataclass(frozen=True, slots=True)
class FittedDeployment:
    """The deployment that the coefficients of the fitted latency model are learned for."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    growth_requests: int = 0
    """How many requests a batch must have more than any before, to make the host wait; 0 where none does."""
    latency_model: ClassVar[str] = "fitted"
    terms: ClassVar[Terms] = TERMS

    def alternatives(self) -> "tuple[FittedDeployment, ...]":
        """Return the deployments to choose from, which differ in what is no number: this one first."""
        other = 0 if self.growth_requests else GROWTH_REQUESTS
        return self, replace(self, growth_requests=other)

    def learnable(self) -> tuple[str, ...]:
        """Return the terms that have any effect."""
        return tuple(name for name in TERMS.names if self.tp > 1 or name != "all_reduce")

    def latency(self, values: Floats) -> Fitted:
        """Return the latency model with these coefficients, in the order of the terms."""
        named = TERMS.by_name(values)
        step = StepCoefficients(**{name: named[name] for name in STEP_TERMS})
        request = RequestCoefficients(**{name: named[name] for name in REQUEST_TERMS})
        return Fitted(self.model, self.gpu, self.tp, step, request, self.growth_requests)

    def sections(self, values: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Return the coefficients as the sections of a file."""
        step = {name: values[name] for name in STEP_TERMS}
        return {"step": step, "request": {name: values[name] for name in REQUEST_TERMS}}

    def basis(self, values: Floats, shapes: npt.NDArray[np.int64]) -> Floats:
        """Return what each coefficient of steps is multiplied by, for rows of the fields of `BatchShape`."""
        latency = self.latency(values)
        work = step_work(self.model, self.gpu, self.tp, 1, "naive", head_size=self.model.attention_head_size)
        shape = dict(zip(BatchShape._fields, shapes.T.astype(np.float64), strict=True))
        num_tokens = shape["prefill_tokens"] + shape["decode_requests"]
        tiled = np.ceil(num_tokens / TILE_TOKENS) * TILE_TOKENS
        small = np.ceil(num_tokens / SMALL_TILE_TOKENS) * SMALL_TILE_TOKENS
        token_us, step = work.token_compute(1), latency.step
        compute_us = token_us * (step.tokens * num_tokens + step.tiles * tiled + step.small_tiles * small)
        weights_us = work.weights_read(num_tokens)
        memory_us = step.weights * weights_us + step.layer_us * work.num_layers
        is_compute_bound = compute_us > memory_us
        prompt_compute_us = token_us * shape["prefill_tokens"]
        recent = np.minimum(token_us * shape["recent_prefill_tokens"], LONGEST_BURST_US) / LONGEST_BURST_US
        columns: dict[str, Floats] = {
            "weights": np.where(is_compute_bound, 0.0, weights_us),
            "layer_us": np.where(is_compute_bound, 0.0, float(work.num_layers)),
            "tokens": np.where(is_compute_bound, token_us * num_tokens, 0.0),
            "tiles": np.where(is_compute_bound, token_us * tiled, 0.0),
            "small_tiles": np.where(is_compute_bound, token_us * small, 0.0),
            "attention": work.attention_pair_us * (shape["prefill_context_work"] + shape["prefill_tokens_squared"] / 2),
            "kv": work.decode_kv(0, 1.0) * (shape["decode_context_tokens"] + shape["decode_requests"]),
            "all_reduce": all_reduce_us(work, 0) + work.all_reduce(1) * num_tokens,
            "decodes": token_us * (shape["decode_requests"] + shape["draft_tokens"]),
            "burst": np.minimum(prompt_compute_us, LONGEST_BURST_US),
            "burst_again": np.minimum(prompt_compute_us, FULLY_HOT_US) * recent,
            "sustained": token_us * np.maximum(num_tokens - SUSTAINED_TOKENS, 0.0),
            "step_us": np.ones(len(shapes)),
            "prompt_us": shape["prefill_requests"],
            "request_us": shape["decode_requests"],
            "idle_start_us": np.zeros(len(shapes)),
        }
        return np.column_stack([columns[name] for name in STEP_TERMS])


# The learned terms of the kernels latency model: a scale for each class of kernels, and what the host adds.

SCALES = tuple(each.name for each in fields(KernelScales))
_HOST_OF_STEPS = ("burst", "burst_again", "step_us", "prompt_us", "request_us")
_HOST_OF_REQUESTS = tuple(name for name in REQUEST_TERMS if name != "output_turn_us")
EXPECTED_KERNELS: dict[str, Expectation] = {
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
KERNEL_TERMS = Terms(
    (*SCALES, *_HOST_OF_STEPS), _HOST_OF_REQUESTS, EXPECTED_KERNELS, least=dict.fromkeys(SCALES, MIN_SCALE)
)


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
    growth_requests: ClassVar[int] = 0
    latency_model: ClassVar[str] = "kernels"
    terms: ClassVar[Terms] = KERNEL_TERMS

    def alternatives(self) -> "tuple[KernelsDeployment, ...]":
        return (self,)

    def learnable(self) -> tuple[str, ...]:
        rows = zip(TOKEN_CLASSES, self.grids.token_us, strict=True)
        missing = {name for name, row in rows if not row.any()}
        return tuple(name for name in KERNEL_TERMS.names if name not in missing)

    def latency(self, values: Floats) -> KernelSteps:
        named = KERNEL_TERMS.by_name(values)
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
        sampled = shape["prefill_requests"] + shape["decode_requests"] + shape["draft_tokens"]
        sampling = np.minimum(sampled, LARGEST_STEP_TOKENS)
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
            "request_us": shape["decode_requests"] + shape["draft_tokens"],
        }
        return np.column_stack([columns[name] for name in KERNEL_TERMS.step])


Learnable: TypeAlias = FittedDeployment | KernelsDeployment
"""A deployment and the latency model whose coefficients are learned for it."""


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
