"""Counts the floating-point work and the bytes of one step on a sharded model, in microseconds at peak rate.

The order of operations is part of the contract: it decides the last bit of every double, and with it, now and then,
a microsecond.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.specs import GpuSpec, ModelSpec

if TYPE_CHECKING:
    from blis_sim.engine.latency.decode_steps import Floats

ALL_GATHER_BACKENDS = ("allgather_reducescatter", "naive")
ALL_TO_ALL_BACKENDS = ("pplx", "deepep_high_throughput", "deepep_low_latency", "mori", "flashinfer_all2allv")
MOE_COMM_BACKENDS = ALL_GATHER_BACKENDS + ALL_TO_ALL_BACKENDS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The constants of one deployment, multiplied out as far as exact arithmetic allows.

    Products of whole numbers stay exact in a double here, so they are folded; quotients are not, so they are
    divided in each call. "flops" are per forward pass of all layers, before sharding.
    """

    flops_per_us: float
    bytes_per_us: float
    shards: int
    """tp * dp"""
    dp: int
    linear_flops_per_token: float
    prefill_attention_flops: float
    """Per unit of t * (s + t/2), on one of `tp` shards."""
    num_layers: int
    decode_attention_flops: float
    """Per context token, all layers, on one of `tp` shards."""
    kv_bytes_per_token: float
    """On one shard; two bytes per value whatever the compute type."""
    weight_us: float
    """Reading the shard's weights once, all its experts included; every step pays it in full."""
    expert_us: float
    """Part of that time for experts to which tokens are routed."""
    unrouted_share: float
    """The share of those experts that a token is not routed to."""
    head_us: float
    """Reading the shard's part of the output head once, which `weight_us` leaves out."""
    hidden_size: int
    num_moe_layers: int
    experts_per_token: int
    expert_size: int
    expert_shards: int
    shared_flops_per_token: float
    dense_flops_per_token: float
    all_reduce_share: float
    """(tp - 1) / tp: 0 on a single GPU."""
    attention_reduce_bytes: float
    dense_reduce_bytes: float
    moe_reduce_bytes: float
    """The three per token; the last is 0 where experts are reached by dispatch instead."""
    dispatch_copies: int
    """How many ranks' worth of each token travels: 0 no dispatch, 1 all-gather, else the experts per token."""
    dispatch_width: float
    """Bytes per activation."""

    def prefill_compute(self, shape: BatchShape) -> float:
        """Compute time of the prefills: attention reaches over the whole prompt, however much is computed."""
        reach = shape.prefill_prompt_work + shape.prefill_tokens_squared / 2
        attention = self.num_layers * (self.prefill_attention_flops * reach) / self.dp
        linear, mlp = self._weight_flops(shape.prefill_tokens)
        return (linear + attention + mlp) / self.flops_per_us

    def prefill_kv(self, shape: BatchShape) -> float:
        """Time to write the KV of the prefills."""
        return self.kv_bytes_per_token * shape.prefill_tokens / self.bytes_per_us

    @overload
    def decode_compute(self, sequences: int, context: float) -> float: ...
    @overload
    def decode_compute(self, sequences: int, context: "Floats") -> "Floats": ...
    def decode_compute(self, sequences: int, context: Any) -> Any:
        """Compute time of `sequences` decodes whose contexts add up to `context`."""
        linear, mlp = self._weight_flops(sequences)
        return (linear + self.decode_attention_flops * context / self.dp + mlp) / self.flops_per_us

    @overload
    def decode_kv(self, sequences: int, context: float) -> float: ...
    @overload
    def decode_kv(self, sequences: int, context: "Floats") -> "Floats": ...
    def decode_kv(self, sequences: int, context: Any) -> Any:
        """Time to read the KV of these decodes, the new tokens included."""
        return self.kv_bytes_per_token * (context + sequences) / self.bytes_per_us

    @overload
    def weights_read(self, tokens: int) -> float: ...
    @overload
    def weights_read(self, tokens: "Floats") -> "Floats": ...
    def weights_read(self, tokens: Any) -> Any:
        """Time to read the shard's weights once, head included; of the experts those that, by chance, some token is
        routed to."""
        return self.weight_us + self.head_us - self.expert_us * self.unrouted_share**tokens

    def token_compute(self, tokens: int) -> float:
        """Compute time of the matrix multiplications with weights; attention is not part of it."""
        linear, mlp = self._weight_flops(tokens)
        return (linear + mlp) / self.flops_per_us

    @property
    def attention_pair_us(self) -> float:
        """Compute time of one pair of a new token and a token it attends to, all layers."""
        return self.num_layers * self.prefill_attention_flops / self.dp / self.flops_per_us

    def all_reduce(self, tokens: int) -> float:
        """Time to add up partial results over the `tp` shards."""
        if not self.all_reduce_share:
            return 0.0
        share, rate, dp = self.all_reduce_share, self.bytes_per_us, self.dp
        attention = self.attention_reduce_bytes * tokens * share / rate / dp
        dense = self.dense_reduce_bytes * tokens * share / rate / dp
        return attention + dense + self.moe_reduce_bytes * tokens * share / rate

    def dispatch(self, tokens: int) -> float:
        """Time to bring tokens to experts on other ranks and back; only with data parallelism."""
        if not self.dispatch_copies:
            return 0.0
        peers = self.expert_shards - 1
        travelling = tokens / self.dp * self.dispatch_copies * peers / self.expert_shards
        travel_bytes = travelling * 2 * self.hidden_size * self.dispatch_width
        return travel_bytes / self.bytes_per_us * self.num_moe_layers

    def _weight_flops(self, tokens: int) -> tuple[float, float]:
        """Operations of the matrix multiplications around attention, and of those after it."""
        linear = self.linear_flops_per_token * tokens / self.shards
        mlp = self._expert_flops(tokens) if self.num_moe_layers else 0.0
        if self.dense_flops_per_token:
            mlp += self.dense_flops_per_token * tokens / self.shards
        return linear, mlp

    def routed_flops(self, tokens: int) -> float:
        """Return the operations of one shard's routed experts for `tokens` tokens of all ranks."""
        routed = tokens * self.experts_per_token / self.expert_shards
        return self.num_moe_layers * routed * 6 * self.hidden_size * self.expert_size

    def _expert_flops(self, tokens: int) -> float:
        flops = self.routed_flops(tokens)
        if self.shared_flops_per_token:
            flops += self.shared_flops_per_token * tokens / self.shards
        return flops


def step_work(
    model: ModelSpec, gpu: GpuSpec, tp: int, dp: int, moe_comm_backend: str, *, head_size: int | None = None
) -> StepWork:
    """The work constants of `model` sharded over `tp` GPUs in each of `dp` replicas of its attention.

    `head_size` is the width of each attention head and KV head. None takes an equal share of the hidden size, as BLIS
    does for every model. Raises EngineError when the model cannot be sharded like that.
    """
    _check_sharding(model, tp, dp, moe_comm_backend)
    hidden = model.hidden_size
    query_size = hidden if head_size is None else model.num_heads * head_size
    head_size = hidden // model.num_heads if head_size is None else head_size
    kv_size = max(model.num_kv_heads, tp) * head_size  # every GPU holds at least one KV head
    shards = tp * dp
    expert_shards = shards if model.is_moe else tp
    num_moe, num_dense = model.num_moe_layers, model.num_dense_layers
    heads_per_gpu = model.num_heads // tp
    experts_per_token = max(1, model.num_experts_per_tok)
    bytes_per_us = gpu.bandwidth_tb_s * 1e6
    reduce_bytes = hidden * model.bytes_per_activation * 2.0
    return StepWork(
        flops_per_us=gpu.peak_tflops(model.bytes_per_weight) * 1e6,
        bytes_per_us=bytes_per_us,
        shards=shards,
        dp=dp,
        linear_flops_per_token=float(model.num_layers * 2 * hidden * (2 * query_size + 2 * kv_size)),
        prefill_attention_flops=float(4 * heads_per_gpu * head_size),
        num_layers=model.num_layers,
        decode_attention_flops=float(model.num_layers * 4 * heads_per_gpu * head_size),
        kv_bytes_per_token=model.num_layers * 2 * (kv_size / shards) * (model.bytes_per_kv_element or 2.0),
        weight_us=_weight_bytes(model, query_size, kv_size, tp, expert_shards) / bytes_per_us,
        expert_us=_expert_bytes(model, expert_shards) / bytes_per_us,
        unrouted_share=max(0.0, 1 - experts_per_token / model.num_experts) if model.is_moe else 0.0,
        head_us=model.vocab_size * hidden * model.bytes_per_weight / tp / bytes_per_us,
        hidden_size=hidden,
        num_moe_layers=num_moe,
        experts_per_token=experts_per_token,
        expert_size=model.expert_size,
        expert_shards=expert_shards,
        shared_flops_per_token=float(num_moe * 6 * hidden * model.shared_expert_size),
        dense_flops_per_token=float(num_dense * 6 * hidden * model.dense_size),
        all_reduce_share=(tp - 1) / tp,
        attention_reduce_bytes=model.num_layers * reduce_bytes,
        dense_reduce_bytes=num_dense * reduce_bytes,
        moe_reduce_bytes=num_moe * reduce_bytes if dp == 1 else 0.0,
        dispatch_copies=_dispatch_copies(dp, moe_comm_backend, experts_per_token),
        dispatch_width=model.bytes_per_activation,
    )


def _weight_bytes(model: ModelSpec, query_size: int, kv_size: int, tp: int, expert_shards: int) -> float:
    hidden, width = model.hidden_size, model.bytes_per_weight
    total = model.num_layers * hidden * (2 * query_size + 2 * kv_size) * width / tp
    if model.num_moe_layers:
        experts = _expert_bytes(model, expert_shards)
        if model.shared_expert_size:
            experts += model.num_moe_layers * 3 * hidden * model.shared_expert_size * width / tp
        total += experts
    if model.num_dense_layers:
        total += model.num_dense_layers * 3 * hidden * model.dense_size * width / tp
    return total


def _expert_bytes(model: ModelSpec, expert_shards: int) -> float:
    num_experts = model.num_moe_layers * (model.num_experts / expert_shards)
    return num_experts * 3 * model.hidden_size * model.expert_size * model.bytes_per_weight


def _dispatch_copies(dp: int, moe_comm_backend: str, experts_per_token: int) -> int:
    if dp == 1:
        return 0
    return experts_per_token if moe_comm_backend in ALL_TO_ALL_BACKENDS else 1


def _check_sharding(model: ModelSpec, tp: int, dp: int, moe_comm_backend: str) -> None:
    if tp < 1 or dp < 1:
        raise EngineError(f"tp and dp must be at least 1, got {tp} and {dp}")
    if model.num_heads % tp:
        raise EngineError(f"{model.name} has {model.num_heads} attention heads, which tp {tp} does not divide")
    if model.num_kv_heads >= tp and model.num_kv_heads % tp:
        raise EngineError(f"{model.name} has {model.num_kv_heads} KV heads, which tp {tp} does not divide")
    if dp > 1 and not model.is_moe:
        raise EngineError(
            f"dp must be 1 for a model without experts such as {model.name}, got {dp}; "
            "its replicas are instances of their own"
        )
    if model.is_moe and model.num_experts_per_tok < 1:
        raise EngineError(
            f"{model.name}: num_experts_per_tok must be at least 1 for {model.num_experts} experts, got 0"
        )
    if model.intermediate_size < 1:
        raise EngineError(f"{model.name}: intermediate_size must be at least 1, got {model.intermediate_size}")
    if moe_comm_backend not in MOE_COMM_BACKENDS:
        raise EngineError(f"moe_comm_backend must be one of {', '.join(MOE_COMM_BACKENDS)}, got {moe_comm_backend!r}")
