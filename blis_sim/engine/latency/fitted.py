"""A latency model learned from recordings, with a coefficient for each term of a step's time.

The terms are times at the peak rates of the GPU, so a coefficient near 1.3 means that something runs at 77 % of its
peak. Coefficients of one model carry over to the next. Terms without a peak rate are in microseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import floor

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.decode_steps import context_at_each_step, whole_micros_each
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.model import FewDecodesTimer, LatencyModel, checked_coefficients, whole_micros
from blis_sim.engine.latency.step_work import StepWork, step_work
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import MAX_MICROS, Micros

ALL_REDUCE_START_US = 8.0
"""Time to start adding up partial results over NVLink, twice in each layer, however few they are."""
LONGEST_BURST_US = 25_000.0
"""A burst longer than this, at peak rate, has the same consequences as one that is as long."""
FULLY_HOT_US = 50_000.0
"""After so long at peak rate a step has made the GPU as hot as it gets, whatever was before it."""
TILE_TOKENS = 256
"""Tokens of a tile of matrix multiplications; a tile begun is a tile paid, in part. With Qwen3-14B on an H100 a step of
1,025 tokens takes 5.9 ms longer than one of 1,024. Tiles of 128 would account for 3.6 ms of it."""
SMALL_TILE_TOKENS = 64
"""Tokens of a small tile of other multiplications: at 961 tokens time also rises, by a third as much."""
SUSTAINED_TOKENS = 4096
"""With more tokens in a step each takes longer. Measured kernels of H100 GPUs show it, whatever the size of the model.
So do steps of a saturated server that hold one to nine prompts of 1,000 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCoefficients:
    """A step takes step + max(weights + layers, tokens + tiles + small tiles) and, beside that, all the others.
    Coefficients that have a default may be left out of files."""

    weights: float
    """Per time to read the weights once at peak bandwidth, those of the output head included. Experts count that, by
    chance, some token is routed to."""
    layer_us: float = 0.0
    """Microseconds per layer: its small kernels, and the starts and ends of the large ones."""
    tokens: float
    """Per time to multiply the step's tokens with the weights at peak arithmetic rate."""
    tiles: float
    """Coefficient of the tokens rounded up to whole tiles."""
    small_tiles: float = 0.0
    """Coefficient of the tokens rounded up to whole small tiles."""
    attention: float
    """Per time to multiply each new prompt token with all tokens before it at peak arithmetic rate."""
    kv: float
    """Per time to read the KV cache of the decoding requests at peak bandwidth."""
    all_reduce: float
    """Per time to add up partial results of the GPUs: to start, and at the rate that trained-physics assumes."""
    decodes: float = 0.0
    """Per time to multiply the tokens that decode at peak arithmetic rate: what reading the weights does not hide."""
    burst: float = 0.0
    """Per time that a burst of arithmetic takes at peak rate: the steps after one are slower."""
    burst_again: float = 0.0
    """Per time to multiply the prompt tokens at peak arithmetic rate, in full right after a burst. A GPU that is still
    hot runs at a lower clock."""
    sustained: float = 0.0
    """Per time to multiply those of a step's tokens that are beyond 4,096 at peak arithmetic rate: so many tokens take
    longer each."""
    step_us: float
    """Microseconds of every step."""
    prompt_us: float
    """Microseconds per request that computes prompt tokens: taking it in slows down the steps before and after."""
    request_us: float
    """Microseconds per decoding request."""
    idle_start_us: float = 0.0
    """Microseconds of a step that follows an idle time: nothing hides what the host does before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCoefficients:
    """Overheads outside of steps, in microseconds."""

    arrival_us: float
    """From arrival until the request enters the wait queue."""
    arrival_token_us: float
    """Overhead at the arrival of a request, per token of its prompt."""
    output_us: float
    """From the end of a step until its token reaches the client."""
    output_request_us: float
    """Overhead per token that the step produced, before any of them leaves."""
    output_turn_us: float = 0.0
    """Per token of the step up to its own, in the order of the batch. The API server process sends tokens one after the
    other, after the tokens of earlier steps."""


STEP_TERMS = tuple(each.name for each in fields(StepCoefficients))
REQUEST_TERMS = tuple(each.name for each in fields(RequestCoefficients))


@dataclass(frozen=True, slots=True)
class Fitted(LatencyModel):
    """Step times by `StepCoefficients`, for one deployment. A call of `step_time` costs about 1 us."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    step: StepCoefficients
    request: RequestCoefficients
    growth_requests: int = 0
    """A batch with this many requests more than any before makes the host wait until its step ends; 0 for none."""
    decode_sums: DecodeSums = field(default_factory=DecodeSums, init=False, repr=False, compare=False)
    _work: StepWork = field(init=False, repr=False, compare=False)
    _weights_us: float = field(init=False, repr=False, compare=False)
    """Weights of all layers, with all experts."""
    _token_us: float = field(init=False, repr=False, compare=False)
    """Per token, and per token rounded up to whole tiles, large and small."""
    _tile_us: float = field(init=False, repr=False, compare=False)
    _small_tile_us: float = field(init=False, repr=False, compare=False)
    _attention_us: float = field(init=False, repr=False, compare=False)
    _kv_us: float = field(init=False, repr=False, compare=False)
    _decode_token_us: float = field(init=False, repr=False, compare=False)
    """Per token that decodes, drafts among them: what reading the weights does not hide."""
    _request_us: float = field(init=False, repr=False, compare=False)
    """Per decoding request, its new token and the KV of that included."""

    def __post_init__(self) -> None:
        for coefficients in (self.step, self.request):
            for each in fields(coefficients):
                checked_coefficients(each.name, (getattr(coefficients, each.name),), 1, 1)
        step = self.step
        if step.weights + step.tokens + step.tiles + step.small_tiles + step.step_us <= 0:
            raise EngineError(
                "weights, tokens, tiles, small_tiles and step_us must not all be 0: steps would take no time"
            )
        work = step_work(self.model, self.gpu, self.tp, 1, "naive", head_size=self.model.attention_head_size)
        token_us = work.token_compute(1)
        values = {
            "_work": work,
            "_weights_us": self.step.weights * (work.weight_us + work.head_us) + self.step.layer_us * work.num_layers,
            "_token_us": self.step.tokens * token_us,
            "_tile_us": self.step.tiles * token_us,
            "_small_tile_us": self.step.small_tiles * token_us,
            "_attention_us": self.step.attention * work.attention_pair_us,
            "_kv_us": self.step.kv * work.decode_kv(0, 1.0),
            "_decode_token_us": self.step.decodes * token_us,
            "_request_us": self.step.request_us + self.step.kv * work.decode_kv(0, 1.0) + self.step.decodes * token_us,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def step_time(self, shape: BatchShape) -> Micros:
        if not shape.prefill_tokens + shape.decode_requests:
            return 1
        return whole_micros(self._without_context(shape) + self._kv_us * float(shape.decode_context_tokens))

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return a function that keeps, by their number, what decodes take without their contexts."""
        kv_us = self._kv_us
        without_context: dict[int, float] = {}

        def decode_time(sequences: int, context: int) -> Micros:
            if not sequences:
                return 1
            time_us = without_context.get(sequences)
            if time_us is None:
                time_us = self._without_context(BatchShape(decode_requests=sequences))
                without_context[sequences] = time_us
            time_us += kv_us * float(context)
            return floor(time_us) if 1 <= time_us < MAX_MICROS else whole_micros(time_us)

        return decode_time

    def few_decodes_timer(self) -> FewDecodesTimer:
        decode_time = self.decode_timer()
        return lambda sequences, context, steps: [
            decode_time(sequences, context + sequences * step) for step in range(steps)
        ]

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        if not shape.decode_requests:
            return np.ones(steps, dtype=np.int64)
        decodes_only = BatchShape(decode_requests=shape.decode_requests)
        context = context_at_each_step(shape, steps)
        return whole_micros_each(self._without_context(decodes_only) + self._kv_us * context)

    def _without_context(self, shape: BatchShape) -> float:
        """Return the time of a step without reading the KV of its decodes, which grows from step to step."""
        prefill_tokens, decodes = shape.prefill_tokens, shape.decode_requests
        num_tokens = prefill_tokens + decodes
        memory_us = self._memory_us(num_tokens) if self._work.expert_us else self._weights_us
        total_us = max(memory_us, self._compute_us(num_tokens)) + self.step.step_us + self._request_us * decodes
        if self._work.all_reduce_share:
            total_us += self.step.all_reduce * all_reduce_us(self._work, num_tokens)
        if prefill_tokens:
            total_us += self.step.prompt_us * shape.prefill_requests + self._attention_us * prefill_pairs(shape)
            total_us += self.step.burst * burst_us(self._work, prefill_tokens)
            if sustained := self.step.sustained:
                total_us += sustained * sustained_us(self._work, num_tokens)
            if shape.draft_tokens:
                total_us += self._decode_token_us * shape.draft_tokens
            if shape.recent_prefill_tokens:
                total_us += self.step.burst_again * burst_again_us(self._work, shape)
        return total_us

    def _compute_us(self, num_tokens: int) -> float:
        return (
            self._token_us * num_tokens
            + self._tile_us * tiled(num_tokens, TILE_TOKENS)
            + self._small_tile_us * tiled(num_tokens, SMALL_TILE_TOKENS)
        )

    def _memory_us(self, num_tokens: int) -> float:
        work = self._work
        return self.step.weights * work.weights_read(num_tokens) + self.step.layer_us * work.num_layers

    def idle_start_time(self, idle_us: Micros) -> Micros:
        return int(self.step.idle_start_us) if idle_us else 0

    def queueing_time(self, input_tokens: int) -> Micros:
        return floor(self.request.arrival_us + self.request.arrival_token_us * input_tokens)

    @property
    def output_token_time(self) -> Micros:
        return int(self.request.output_us)

    @property
    def output_sequence_time(self) -> Micros:
        return int(self.request.output_request_us)

    @property
    def output_turn_us(self) -> float:
        return self.request.output_turn_us

    @property
    def coefficients(self) -> tuple[float, ...]:
        """Return the coefficients of the step, in the order of `STEP_TERMS`."""
        return tuple(getattr(self.step, name) for name in STEP_TERMS)

    def basis(self, shape: BatchShape) -> tuple[float, ...]:
        """The terms in this order; of memory and compute the one that is hidden behind the other is 0."""
        if not shape.num_tokens:
            return (0.0,) * len(STEP_TERMS)
        work, num_tokens = self._work, shape.num_tokens
        token_us = work.token_compute(1)
        is_compute_bound = self._compute_us(num_tokens) > self._memory_us(num_tokens)
        values = {
            "weights": 0.0 if is_compute_bound else work.weights_read(num_tokens),
            "layer_us": 0.0 if is_compute_bound else float(work.num_layers),
            "tokens": token_us * num_tokens if is_compute_bound else 0.0,
            "tiles": token_us * tiled(num_tokens, TILE_TOKENS) if is_compute_bound else 0.0,
            "small_tiles": token_us * tiled(num_tokens, SMALL_TILE_TOKENS) if is_compute_bound else 0.0,
            "attention": work.attention_pair_us * prefill_pairs(shape),
            "kv": work.decode_kv(shape.decode_requests, float(shape.decode_context_tokens)),
            "all_reduce": all_reduce_us(work, num_tokens),
            "decodes": token_us * (shape.decode_requests + shape.draft_tokens),
            "burst": burst_us(work, shape.prefill_tokens),
            "burst_again": burst_again_us(work, shape),
            "sustained": sustained_us(work, num_tokens),
            "step_us": 1.0,
            "prompt_us": float(shape.prefill_requests),
            "request_us": float(shape.decode_requests),
            "idle_start_us": 0.0,
        }
        return tuple(values[name] for name in STEP_TERMS)


def all_reduce_us(work: StepWork, num_tokens: float) -> float:
    """Time to add up the partial results of a step; 0 on a single GPU."""
    if not work.all_reduce_share:
        return 0.0
    return 2 * work.num_layers * ALL_REDUCE_START_US + work.all_reduce(1) * num_tokens


def burst_us(work: StepWork, prefill_tokens: int) -> float:
    """Return how long the prompts of a step keep the arithmetic units busy at peak rate, up to `LONGEST_BURST_US`."""
    return min(work.token_compute(1) * prefill_tokens, LONGEST_BURST_US)


def burst_again_us(work: StepWork, shape: BatchShape) -> float:
    """Time to multiply the prompt tokens at peak rate, as far as the GPU has not recovered from the bursts before."""
    recent = burst_us(work, shape.recent_prefill_tokens) / LONGEST_BURST_US
    return min(work.token_compute(1) * shape.prefill_tokens, FULLY_HOT_US) * recent


def sustained_us(work: StepWork, num_tokens: int) -> float:
    """Return the time to multiply the tokens of a step beyond `SUSTAINED_TOKENS` at peak rate."""
    return work.token_compute(max(0, num_tokens - SUSTAINED_TOKENS))


def tiled(num_tokens: int, tile_tokens: int) -> int:
    """Tokens rounded up to whole tiles."""
    return -(-num_tokens // tile_tokens) * tile_tokens


def prefill_pairs(shape: BatchShape) -> float:
    """Pairs of a new prompt token and a token it attends to."""
    return shape.prefill_context_work + shape.prefill_tokens_squared / 2
