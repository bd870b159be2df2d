"""Vidur's planner of memory: weights of layers, and so many requests of the longest length beside them.

Embeddings, the output head and activations take nothing there. Facts: vidur/utils/memory_planner.py.
"""

from dataclasses import dataclass

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur.catalogue import VidurModel

_BYTES = 2
"""Bytes of a weight, and of an element of the KV cache."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Requests of the longest length that fit at once on a replica, and its KV blocks."""

    num_requests: int
    num_blocks: int


def planned(
    model: VidurModel, gpu_gib: float, margin: float, tp: int, pp: int, max_tokens: int, block_size: int
) -> MemoryPlan:
    """Return the plan of a replica. Raises BenchError where no request fits."""
    embedding, heads, kv_heads = model.embedding_dim, model.num_q_heads, -(-model.num_kv_heads // tp)
    attention = embedding * model.head_size * (heads // tp + 2 * kv_heads) + embedding * model.head_size * (heads // tp)
    mlp = (3 if model.use_gated_mlp else 2) * embedding * model.mlp_hidden_dim // tp
    weight_bytes = _BYTES * (attention + mlp) * (model.num_layers // pp)
    # The layers are those of the model, not of a stage: each stage holds the requests of all stages.
    request_bytes = 2 * _BYTES * model.head_size * kv_heads * max_tokens * model.num_layers
    num_requests = int((gpu_gib * 2**30 * (1 - margin) - weight_bytes) // request_bytes)
    if num_requests < 1:
        raise BenchError(
            f"{model.name} with {max_tokens} tokens of context does not fit in {gpu_gib:g} GiB on {tp} x {pp} GPUs"
        )
    return MemoryPlan(num_requests, max_tokens // block_size * num_requests * pp)
