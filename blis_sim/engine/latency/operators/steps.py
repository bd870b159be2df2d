"""From the operators of a layer to the time of a step, as Vidur adds them up, with overheads of the CPU.

Facts: vidur/execution_time_predictor, vidur/entities/execution_time.py.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.model import whole_micros
from blis_sim.engine.latency.operators.table_limits import BatchMaxima
from blis_sim.engine.latency.operators.tables import Line, OperatorTables
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.units import Micros

TOKENS_GRANULE = 8
"""Steps are timed with their tokens rounded up to a multiple of this, as tensor cores compute them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Times added to the operators, as fractions and milliseconds."""

    decode_batching_fraction: float = 0.1
    """Fraction added to the attention of decodes, where several run together."""
    prefill_batching_fraction: float = 0.1
    nccl_launch_ms: float = 0.02
    """Time added to each all-reduce."""
    nccl_skew_ms_per_gpu: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The properties of a model and its deployment that decide how operators add up."""

    num_layers: int
    tp: int
    shares_kv_heads: bool
    """Whether several query heads share a KV head: only then do batches have the overhead of batching."""
    has_post_attention_norm: bool = True


@dataclass(slots=True)
class OperatorTimes:
    """Times of whole batches through all layers, in seconds."""

    tables: OperatorTables
    layers: LayerShape
    overheads: Overheads = field(default_factory=Overheads)
    _by_tokens: dict[int, tuple[float, float, float, float, float]] = field(default_factory=dict)

    def seconds(
        self,
        num_tokens: int,
        decodes: int,
        decode_kv_tokens: float,
        prefills: int = 0,
        prefill_kv_tokens: float = 0,
        prefill_chunk_tokens: float = 0,
        sends: bool = False,
    ) -> float:
        """Return the time of a batch of `num_tokens` tokens.

        `decode_kv_tokens` is the context of a decode, itself included; `prefill_kv_tokens` the sum of those of prompts,
        and `prefill_chunk_tokens` the root of the sum of the squares of their chunks. With `sends` the activations go
        on to the next pipeline stage.
        """
        found = self._by_tokens.get(num_tokens)
        if found is None:
            found = self._by_tokens[num_tokens] = self._of_tokens(num_tokens)
        attention, exchange_ms, norm_ms, mlp_ms, add_ms = found
        decode_ms, prefill_ms = self.attention_ms(
            decodes, decode_kv_tokens, prefills, prefill_kv_tokens, prefill_chunk_tokens
        )
        layer_ms = attention + decode_ms + prefill_ms + exchange_ms + norm_ms + mlp_ms + add_ms
        stage_ms = layer_ms * self.layers.num_layers
        if sends:
            stage_ms += self.tables.compute["send_recv"].at(_rounded(num_tokens))
        return stage_ms * 1e-3

    def attention_ms(
        self,
        decodes: int,
        decode_kv_tokens: float,
        prefills: int,
        prefill_kv_tokens: float,
        prefill_chunk_tokens: float,
    ) -> tuple[float, float]:
        """Return the attention of decodes and that of prompts in a layer, as `seconds` takes them."""
        tables, overheads = self.tables, self.overheads
        decode_ms = prefill_ms = 0.0
        if decodes:
            batching = overheads.decode_batching_fraction if decodes > 1 and self.layers.shares_kv_heads else 0.0
            decode_ms = tables.decode.at(decodes, decode_kv_tokens) * (1 + batching)
        if prefills:
            batching = overheads.prefill_batching_fraction if prefills > 1 and self.layers.shares_kv_heads else 0.0
            prefill_ms = tables.prefill.at(prefill_chunk_tokens, prefill_kv_tokens) * (1 + batching)
        return decode_ms, prefill_ms

    def operators_ms(self, num_tokens: int) -> dict[str, float]:
        """Return the time of each operator of a layer that depends on the tokens alone, and that of an `exchange`."""
        rounded, layers, overheads = _rounded(num_tokens), self.layers, self.overheads
        time = {name: line.at(rounded) for name, line in self.tables.compute.items()}
        # Keys and values are written for the tokens there are, not for the granules that are computed.
        time["attn_kv_cache_save"] = self.tables.compute["attn_kv_cache_save"].at(num_tokens)
        time["exchange"] = 0.0
        if layers.tp > 1:
            skew_ms = overheads.nccl_skew_ms_per_gpu * layers.tp**1.25
            time["exchange"] = time["all_reduce"] + overheads.nccl_launch_ms + skew_ms
        if not layers.has_post_attention_norm:
            time["post_attention_layernorm"] = 0.0
        return time

    def _of_tokens(self, num_tokens: int) -> tuple[float, float, float, float, float]:
        """Return what depends on the tokens alone: attention's part, an exchange, a norm, the MLP and an addition."""
        time = self.operators_ms(num_tokens)
        exchange_ms, norm_ms = time["exchange"], time["post_attention_layernorm"]
        mlp_ms = time["mlp_up_proj"] + time["mlp_down_proj"] + time["mlp_act"] + exchange_ms + norm_ms
        attention_ms = time["attn_pre_proj"] + time["attn_post_proj"] + time["attn_rope"] + time["attn_kv_cache_save"]
        return attention_ms, exchange_ms, time["input_layernorm"], mlp_ms, time["add"]


def _rounded(num_tokens: int) -> int:
    return -(-num_tokens // TOKENS_GRANULE) * TOKENS_GRANULE


@dataclass(slots=True)
class OperatorSteps:
    """A latency model of `times`: nothing but operators takes time."""

    extrapolation: ClassVar[str] = "whose last slopes go on"

    times: OperatorTimes
    output_token_time: Micros = 0
    output_sequence_time: Micros = 0
    post_decode_time: Micros = 0
    _maxima: BatchMaxima = field(default_factory=BatchMaxima)

    def step_time(self, shape: BatchShape) -> Micros:
        decodes = shape.decode_requests
        kv_tokens = shape.decode_context_tokens / decodes + 1 if decodes else 0
        chunk = math.sqrt(shape.prefill_tokens_squared)
        seconds = self.times.seconds(
            shape.num_tokens, decodes, kv_tokens, shape.prefill_requests, shape.prefill_context_tokens, chunk
        )
        self._maxima.note("tokens in a step", shape.num_tokens)
        self._maxima.note("decodes in a step", decodes)
        self._maxima.note("tokens in the KV cache of a decode", int(kv_tokens))
        self._maxima.note("prompt tokens in a step", int(chunk))
        self._maxima.note("tokens in the KV caches of prompts", shape.prefill_context_tokens)
        return whole_micros(seconds * 1e6)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        decodes, context = shape.decode_requests, shape.decode_context_tokens
        self._maxima.note("decodes in a step", decodes)
        self._maxima.note("tokens in the KV cache of a decode", context // max(decodes, 1) + steps)
        seconds = self.times.seconds
        times = [
            whole_micros(seconds(decodes, decodes, (context + step * decodes) / decodes + 1 if decodes else 0) * 1e6)
            for step in range(steps)
        ]
        return np.array(times, dtype=np.int64)

    def queueing_time(self, input_tokens: int) -> Micros:
        return 0

    @property
    def operation_names(self) -> tuple[str, ...]:
        return (*self.times.tables.compute, "attn_prefill", "attn_decode")

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        """Return the time of each operator in one layer; exchanges and additions count as often as in Vidur."""
        tables, decodes = self.times.tables, shape.decode_requests
        found = [line.at(_rounded(shape.num_tokens)) for line in tables.compute.values()]
        chunk = math.sqrt(shape.prefill_tokens_squared)
        prefill_ms = tables.prefill.at(chunk, shape.prefill_context_tokens) if shape.prefill_requests else 0.0
        decode_ms = tables.decode.at(decodes, shape.decode_context_tokens / decodes + 1) if decodes else 0.0
        return (*found, prefill_ms, decode_ms)

    def exceeded(self) -> list[str]:
        """Return a line for each figure that was beyond what the tables hold."""
        tables = self.times.tables
        held = {
            "tokens in a step": max(line.places[-1] for line in tables.compute.values()),
            "decodes in a step": tables.decode.rows[-1],
            "tokens in the KV cache of a decode": tables.decode.columns[-1],
            "prompt tokens in a step": tables.prefill.rows[-1],
            "tokens in the KV caches of prompts": tables.prefill.columns[-1],
        }
        return self._maxima.exceeding(held)

    def reset_maxima(self) -> None:
        """Forget how large the batches were, once the model has been probed."""
        self._maxima.most.clear()


@dataclass(slots=True)
class WithCpu(WrappedLatency):
    """`model` with steps that last longer by `overhead`, in milliseconds over the requests of a step."""

    overhead: Line

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape) + self._added_us(shape.num_requests)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = self.model.decode_times(shape, steps) + self._added_us(shape.decode_requests)
        return times

    def _added_us(self, num_requests: int) -> Micros:
        return round(self.overhead.at(num_requests) * 1e3) if num_requests else 0
