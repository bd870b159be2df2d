"""The default latency model: physical work terms of a step, each weighted by a trained coefficient."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.decode_steps import Floats, context_at_each_step, whole_micros_each
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.model import FewDecodesTimer, LatencyModel, checked_coefficients, whole_micros
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS, StepWork, step_work
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import MAX_MICROS, Micros

_BEYOND_MICROS = float(MAX_MICROS)
"""The least float that is larger: Python compares two floats at less cost than a float with a large integer."""


@dataclass(frozen=True, slots=True)
class TrainedPhysics(LatencyModel):
    """Compute, memory and communication times at peak rates, weighted by 7 to 11 betas:

    prefill compute, decode compute, weights, all-reduce, layers, sequences, step, interleaved expert layers,
    prefill KV writes, decode KV reads, expert dispatch.

    With fewer than 9 (10) betas the first (second) weighs the larger of compute and KV time of the prefills (decodes).
    With fewer than 11 the fourth weighs dispatch too. With 7 interleaved expert layers cost nothing extra. alpha0
    passes before a request enters the wait queue, alpha1 is added once after its last token, alpha2 to each token. A
    call of `step_time` costs about 0.5 us.
    """

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    dp: int = 1
    moe_comm_backend: str = MOE_COMM_BACKENDS[0]
    decode_sums: DecodeSums = field(default_factory=DecodeSums, init=False, repr=False, compare=False)
    _work: StepWork = field(init=False, repr=False, compare=False)
    _betas: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """The eleven, with what the missing ones mean filled in."""
    _constants: tuple[float, float, float] = field(init=False, repr=False, compare=False)
    """The terms no batch changes: weights, layers, interleaved expert layers."""
    _kv_reads: tuple[float, ...] | None = field(init=False, repr=False, compare=False)
    """Factors of a decode's time when only its KV reads count and GPUs exchange nothing, as by default on a single one.
    They are bytes per token, bytes per us, their weight, weights, layers, beta per sequence, beta per step, interleaved
    layers. None when there is more to it."""
    _prefills: tuple[float, ...] | None = field(init=False, repr=False, compare=False)
    """Factors of the time that prefills add when only their compute counts and no layer has experts. They are layers,
    flops of attention, dp, flops per token of linear and dense layers, shards, flops per us, their weight. None
    otherwise."""

    def __post_init__(self) -> None:
        checked_coefficients("alpha_coeffs", self.alpha, 3, 3)
        beta = checked_coefficients("beta_coeffs", self.beta, 7, 11)
        work = step_work(self.model, self.gpu, self.tp, self.dp, self.moe_comm_backend)
        betas = (*beta, *(0.0, 0.0, 0.0)[len(beta) - 7 :], beta[3]) if len(beta) < 11 else beta
        interleaved = betas[7] * self._interleaved_layers
        object.__setattr__(self, "_work", work)
        object.__setattr__(self, "_betas", betas)
        weights, layers = betas[2] * work.weight_us, betas[4] * work.num_layers
        object.__setattr__(self, "_constants", (weights, layers, interleaved))
        reads = (work.kv_bytes_per_token, work.bytes_per_us, betas[9], weights, layers, betas[5], betas[6], interleaved)
        only_reads = len(beta) > 9 and not betas[1] and not work.all_reduce_share and not work.dispatch_copies
        object.__setattr__(self, "_kv_reads", reads if only_reads else None)
        per_token = work.linear_flops_per_token, work.dense_flops_per_token
        prefills = (work.num_layers, work.prefill_attention_flops, work.dp, *per_token, work.shards, work.flops_per_us)
        only_compute = len(beta) > 8 and not betas[8] and not work.num_moe_layers
        object.__setattr__(self, "_prefills", (*prefills, betas[0]) if only_compute else None)

    def step_time(self, shape: BatchShape) -> Micros:
        prefill_requests, prefill_tokens, squared, _, _, prompt_work, sequences, context, _, _ = shape
        num_tokens = prefill_tokens + sequences
        if not num_tokens:
            return 1
        if not prefill_tokens:
            batch_work = 0.0
        elif self._prefills is None:
            batch_work = self._prefill(shape)
        else:  # as there, the same operations in the same order
            num_layers, attention, dp, linear, dense, shards, rate, per_compute = self._prefills
            attention = num_layers * (attention * (prompt_work + squared / 2)) / dp
            flops = linear * prefill_tokens / shards + attention + dense * prefill_tokens / shards
            batch_work = per_compute * (flops / rate)
        if self._kv_reads is not None:  # as in `decode_timer`
            kv_bytes, rate, per_kv, weights, layers, per_sequence, per_step, interleaved = self._kv_reads
            if sequences:
                batch_work += per_kv * (kv_bytes * (context + sequences) / rate)
            value = batch_work + weights + layers + per_sequence * (prefill_requests + sequences)
            value = value + per_step + interleaved
            return floor(value) or 1 if value < _BEYOND_MICROS else MAX_MICROS
        if sequences:
            batch_work += self._decode(sequences, float(context), max)
        return whole_micros(self._with_overheads(batch_work, num_tokens, prefill_requests + sequences))

    def ranks_time(self, shapes: Sequence[BatchShape]) -> Micros:
        """Return the duration of a forward pass in which each data-parallel rank computes a batch of its own.

        Attention and dense layers take as long as on the slowest rank. Experts compute the tokens of all ranks, which
        are padded to the largest batch where all ranks only decode.
        """
        num_prefill = sum(shape.prefill_tokens for shape in shapes)
        num_decode = sum(shape.decode_requests for shape in shapes)
        if not num_prefill:
            num_decode = self.dp * max(shape.decode_requests for shape in shapes)
        if not num_prefill + num_decode:
            return 1
        value = max(self._rank_work(shape, num_prefill, num_decode) for shape in shapes)
        weights, layers, interleaved = self._constants
        betas, work = self._betas, self._work
        value += weights + betas[10] * work.dispatch(num_prefill + num_decode) + layers + betas[6] + interleaved
        return whole_micros(value)

    def _rank_work(self, shape: BatchShape, num_prefill: int, num_decode: int) -> float:
        """Return the time of a rank's batch when experts compute `num_prefill` and `num_decode` tokens of all ranks."""
        dp, betas, work = self.dp, self._betas, self._work
        requests, tokens, squared, _, _, prompt_work, sequences, context, _, _ = shape
        evenly = BatchShape(0, dp * tokens, dp * squared, 0, 0, dp * prompt_work, dp * sequences, dp * context)
        routed_us = (work.routed_flops(num_prefill) - work.routed_flops(dp * tokens)) / work.flops_per_us
        compute, kv = work.prefill_compute(evenly) + routed_us, work.prefill_kv(evenly)
        prefill = max(compute, kv) if len(self.beta) < 9 else compute
        value = betas[0] * prefill + betas[8] * kv
        routed_us = (work.routed_flops(num_decode) - work.routed_flops(dp * sequences)) / work.flops_per_us
        compute = work.decode_compute(dp * sequences, float(dp * context)) + routed_us
        kv = work.decode_kv(dp * sequences, float(dp * context))
        decode = max(compute, kv) if len(self.beta) < 10 else compute
        value += betas[1] * decode + betas[9] * kv
        return value + betas[3] * work.all_reduce(dp * (tokens + sequences)) + betas[5] * (requests + sequences)

    def decode_timer(self) -> Callable[[int, int], Micros]:
        """Return a function from the number of sequences that decode, and the sum of their contexts, to `step_time` of
        a step without prompts.

        No time is requested more often, so the usual case is a function of its own with the same operations in the same
        order. A call takes 0.1 us.
        """
        if self._kv_reads is None:
            return lambda sequences, context: self.step_time(BatchShape(0, 0, 0, 0, 0, 0, sequences, context))
        kv_bytes, rate, per_kv, weights, layers, per_sequence, per_step, interleaved = self._kv_reads
        beyond = _BEYOND_MICROS

        def decode_time(sequences: int, context: int) -> Micros:
            value = per_kv * (kv_bytes * (context + sequences) / rate) + weights
            value = value + layers + per_sequence * sequences + per_step + interleaved
            if value < beyond and sequences:
                return floor(value) or 1  # no beta is negative
            return MAX_MICROS if sequences else 1

        return decode_time

    def few_decodes_timer(self) -> FewDecodesTimer | None:
        """Return a function with the operations of `decode_timer`, 0.1 us a step."""
        return None if self._kv_reads is None else self._few_decode_times

    def _few_decode_times(self, sequences: int, context: int, steps: int) -> list[Micros]:
        if self._kv_reads is not None and sequences:
            kv_bytes, rate, per_kv, weights, layers, per_sequence, per_step, interleaved = self._kv_reads
            for_all, first = per_sequence * sequences, context + sequences
            values = [
                per_kv * (kv_bytes * grown / rate) + weights + layers + for_all + per_step + interleaved
                for grown in range(first, first + steps * sequences, sequences)
            ]
            if 1 <= values[0] <= values[-1] < _BEYOND_MICROS:  # they never fall
                return list(map(floor, values))
        times: list[Micros] = self.decode_times(BatchShape(0, 0, 0, 0, 0, 0, sequences, context), steps).tolist()
        return times

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        sequences = shape.decode_requests
        if not sequences:
            return np.ones(steps, dtype=np.int64)
        if self._kv_reads is not None:
            return self._kv_read_times(sequences, shape.decode_context_tokens, steps)
        batch_work = self._decode(sequences, context_at_each_step(shape, steps), np.maximum)
        return whole_micros_each(self._with_overheads(batch_work, sequences, sequences))

    def _kv_read_times(self, sequences: int, context: int, steps: int) -> npt.NDArray[np.int64]:
        """The time of each step, in place: such arrays are short, so that every call of numpy counts."""
        assert self._kv_reads is not None
        kv_bytes, rate, per_kv, weights, layers, per_sequence, per_step, interleaved = self._kv_reads
        first = context + sequences
        values = np.arange(first, first + steps * sequences, sequences, dtype=np.float64)
        values *= kv_bytes
        values /= rate
        values *= per_kv
        values += weights
        values += layers
        values += per_sequence * sequences
        values += per_step
        if interleaved:
            values += interleaved
        if not steps or not 1 <= values[0] <= values[-1] < MAX_MICROS:  # they never fall
            return whole_micros_each(values)
        return values.astype(np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        """Return the queueing time, which is equal for every request."""
        return floor(self.alpha[0])

    @property
    def output_token_time(self) -> Micros:
        return int(self.alpha[2])

    @property
    def post_decode_time(self) -> Micros:
        return int(self.alpha[1])

    @property
    def coefficients(self) -> tuple[float, ...]:
        return self.beta

    def basis(self, shape: BatchShape) -> tuple[float, ...]:
        """The terms in the order of the betas given; all 0 for an empty step, which takes 1 us whatever they are."""
        given = len(self.beta)
        if not shape.num_tokens:
            return (0.0,) * given
        work = self._work
        sequences, context = shape.decode_requests, float(shape.decode_context_tokens)
        prefill, prefill_kv = work.prefill_compute(shape), work.prefill_kv(shape)
        decode, decode_kv = work.decode_compute(sequences, context), work.decode_kv(sequences, context)
        all_reduce, dispatch = work.all_reduce(shape.num_tokens), work.dispatch(shape.num_tokens)
        terms = (
            prefill if given > 8 else max(prefill, prefill_kv),
            decode if given > 9 else max(decode, decode_kv),
            work.weight_us,
            all_reduce if given > 10 else all_reduce + dispatch,
            float(work.num_layers),
            float(shape.num_requests),
            1.0,
            float(self._interleaved_layers),
            prefill_kv,
            decode_kv,
            dispatch,
        )
        return terms[:given]

    @property
    def _interleaved_layers(self) -> int:
        return self.model.num_moe_layers if self.model.interleaves_moe else 0

    def _prefill(self, shape: BatchShape) -> float:
        per_compute, per_kv = self._betas[0], self._betas[8]
        compute = self._work.prefill_compute(shape)
        if len(self.beta) < 9:
            return per_compute * max(compute, self._work.prefill_kv(shape))
        return per_compute * compute + per_kv * self._work.prefill_kv(shape) if per_kv else per_compute * compute

    @overload
    def _decode(self, sequences: int, context: float, larger: Callable[[float, float], float]) -> float: ...
    @overload
    def _decode(self, sequences: int, context: Floats, larger: Callable[[Floats, Floats], Floats]) -> Floats: ...
    def _decode(self, sequences: int, context: Any, larger: Callable[[Any, Any], Any]) -> Any:
        """Skips the term whose weight is 0, as compute's is by default: adding 0 changes no double."""
        per_compute, per_kv = self._betas[1], self._betas[9]
        kv = self._work.decode_kv(sequences, context)
        if len(self.beta) < 10:
            return per_compute * larger(self._work.decode_compute(sequences, context), kv)
        if not per_compute:
            return per_kv * kv
        return per_compute * self._work.decode_compute(sequences, context) + per_kv * kv

    @overload
    def _with_overheads(self, batch_work: float, num_tokens: int, num_requests: int) -> float: ...
    @overload
    def _with_overheads(self, batch_work: Floats, num_tokens: int, num_requests: int) -> Floats: ...
    def _with_overheads(self, batch_work: Any, num_tokens: int, num_requests: int) -> Any:
        weights, layers, interleaved = self._constants
        betas, work = self._betas, self._work
        total = batch_work + weights
        if work.all_reduce_share:
            total = total + betas[3] * work.all_reduce(num_tokens)
        if work.dispatch_copies:
            total = total + betas[10] * work.dispatch(num_tokens)
        return total + layers + betas[5] * num_requests + betas[6] + interleaved
