"""The step-time formulas written once more, request by request, the slow and obvious way."""

from collections.abc import Iterable
from dataclasses import dataclass

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.specs import GpuSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class Prefill:
    tokens: int
    context: int
    prompt: int


@dataclass(frozen=True, slots=True)
class Decode:
    context: int


Work = Prefill | Decode


def shape_of(batch: Iterable[Work]) -> BatchShape:
    prefills = [work for work in batch if isinstance(work, Prefill)]
    decodes = [work for work in batch if isinstance(work, Decode)]
    return BatchShape(
        prefill_requests=len(prefills),
        prefill_tokens=sum(p.tokens for p in prefills),
        prefill_tokens_squared=sum(p.tokens**2 for p in prefills),
        prefill_context_tokens=sum(p.context for p in prefills),
        prefill_context_work=sum(p.tokens * p.context for p in prefills),
        prefill_prompt_work=sum(p.tokens * p.prompt for p in prefills),
        decode_requests=len(decodes),
        decode_context_tokens=sum(d.context for d in decodes),
    )


def trained_physics_us(
    model: ModelSpec, gpu: GpuSpec, tp: int, dp: int, all_to_all: bool, beta: tuple[float, ...], batch: list[Work]
) -> float:
    """Eleven betas; every product left to right."""
    b1, b2, b3, b4, b5, b6, b7, b8, b1kv, b2kv, b_dispatch = beta
    layers, d, width = model.num_layers, model.hidden_size, model.bytes_per_weight
    dh = d // model.num_heads
    dkv = model.num_kv_heads * dh
    hp, td = model.num_heads / tp, tp * dp
    k, group = max(1, model.num_experts_per_tok), tp * dp if model.is_moe else tp
    flops_us, bytes_us = gpu.peak_tflops(width) * 1e6, gpu.bandwidth_tb_s * 1e6
    moe, dense = model.num_moe_layers, model.num_dense_layers
    expert, mlp, shared = model.expert_size, model.dense_size, model.shared_expert_size

    def compute(tokens: int, attention: float) -> float:
        ffn = 0.0
        if moe:
            ffn += moe * (tokens * k / group) * 6 * d * expert
            ffn += moe * tokens * 6 * d * shared / td
        if dense:
            ffn += dense * tokens * 1 * 6 * d * mlp / td
        return (layers * 2 * tokens * d * (2 * d + 2 * dkv) / td + attention + ffn) / flops_us

    prefill_attention, prefill_tokens, contexts, decodes = 0.0, 0, 0, 0
    for work in batch:
        if isinstance(work, Prefill):
            prefill_attention += 4 * hp * work.tokens * (work.prompt + work.tokens / 2) * dh
            prefill_tokens += work.tokens
        else:
            decodes += 1
            contexts += work.context
    tokens = prefill_tokens + decodes
    prefill = b1 * compute(prefill_tokens, layers * prefill_attention / dp) if prefill_tokens else 0.0
    prefill += b1kv * (layers * 2 * (dkv / td) * prefill_tokens * 2.0 / bytes_us)
    decode = 0.0
    if decodes:
        decode = b2 * compute(decodes, layers * 4 * hp * contexts * dh / dp)
        decode += b2kv * (layers * 2 * (dkv / td) * 2.0 * (contexts + decodes) / bytes_us)
    weights = layers * d * (2 * d + 2 * dkv) * width / tp
    weights += moe * (model.num_experts / group) * 3 * d * expert * width + moe * 3 * d * shared * width / tp
    weights += dense * 1 * 3 * d * mlp * width / tp

    def reduce(units: int) -> float:
        return units * tokens * d * model.bytes_per_activation * 2.0 * ((tp - 1) / tp) / bytes_us

    reduced = reduce(layers) / dp + reduce(dense) / dp + (reduce(moe) if dp == 1 else 0.0)
    copies = k if all_to_all else 1
    travelling = (tokens / dp) * copies * (group - 1) / group * 2 * d * model.bytes_per_activation / bytes_us
    dispatched = travelling * moe if dp > 1 else 0.0
    interleaved = moe if model.interleaves_moe else 0
    total = (prefill + decode) + b3 * (weights / bytes_us) + b4 * reduced + b_dispatch * dispatched
    return total + b5 * layers + b6 * len(batch) + b7 + b8 * interleaved


def roofline_us(model: ModelSpec, gpu: GpuSpec, tp: int, batch: list[Work]) -> float:
    """Compute and memory of each request by itself, weights once."""
    layers, d, heads = model.num_layers, model.hidden_size, model.num_heads
    dh = d / heads
    dkv = model.num_kv_heads * dh
    moe, dense = model.num_moe_layers, model.num_dense_layers
    peak = gpu.peak_tflops(model.bytes_per_weight) * 1e12
    compute, dynamic, num_tokens = 0.0, 0.0, 0
    for work in batch:
        t = work.tokens if isinstance(work, Prefill) else 1
        effective = work.context + (t - 1) / 2 if t > 1 else work.context
        gemm = (2 * t * (d * d + 2 * d * dkv) + 2 * t * d * d) * layers + 4 * heads * t * effective * dh * layers
        vector = (5 * heads * t * effective + 2 * t * d) * layers
        mlp = 2 * t * (2 * d * model.expert_size) * model.num_experts_per_tok * moe
        mlp += 2 * t * (2 * d * model.dense_size) * dense
        mfu = gpu.mfu_prefill if isinstance(work, Prefill) else gpu.mfu_decode
        compute += (gemm + mlp + vector) / tp / (peak * mfu)
        per_token = model.bytes_per_activation * layers
        dynamic += per_token * (2 * dkv * t + 2 * dkv * work.context + d * t)
        num_tokens += t
    weights = (d * (d + 2 * dkv) + d * d) * layers + 2 * d * model.dense_size * dense
    if moe:
        experts, k = model.num_experts, model.num_experts_per_tok
        weights += 2 * d * model.expert_size * experts * (1 - ((experts - k) / experts) ** num_tokens) * moe
    memory = (weights * model.bytes_per_weight + dynamic) / tp / (gpu.bandwidth_tb_s * 1e12)
    return max(compute, memory) * 1e6
