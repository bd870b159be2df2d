"""Kernel times as they are used: the tables, with donors of other backends where vLLM's are known to be wrong.

docs/kernels.md names each repair with its evidence.
"""

from collections.abc import Sequence

import numpy as np

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.kernels.grids import Times
from blis_sim.engine.latency.kernels.interconnect import (
    between_nodes_us,
    has_nvlink,
    message_bytes,
    staged_all_reduce_us,
)
from blis_sim.engine.latency.kernels.operations import (
    MXFP4_BY_MARLIN,
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Elementwise,
    Experts,
    HeadAttention,
    Matmul,
    Routing,
    SharedExpert,
    SparseLatentAttention,
    TokenOperation,
    bits_of,
)
from blis_sim.engine.latency.kernels.tables import (
    MXFP4_WITH_MXFP8,
    SGLANG,
    TRTLLM,
    VLLM,
    MeasuredOperation,
    Tables,
)

_KV_HEADS_MEASURED = (8, 4, 2, 1)
_ADDED_TO_PROMPTS_US = 13.2
"""Computed, not measured: the distribution returns so much more than its files hold for prompts of any length on any
GPU, and three times as much with norms of queries and keys."""
_SHORTEST_PROMPT = 16
"""Tokens of the shortest prompt that was measured on all GPUs. Shorter ones, and chunks after others, are computed
without the start of a kernel."""
_MOST_GPUS_MEASURED = 8
_SHORTEST_ALL_REDUCE = 128
"""Values in the shortest message that was measured. Tables have shorter ones take a time in proportion, down to 0.1 us
for what needs two barriers between GPUs."""
_BLACKWELL = 10
_OUTLIER = 0.97
_REACHED_BANDWIDTH = 0.92
"""Share of the peak bandwidth that the best kernels reach; 0.88 to 0.90 are learned of weights and KV caches."""
_ELEMENTWISE_START_US, _ELEMENTWISE_SHARE = 3.0, 0.8
"""Small kernels were not measured; so the distribution of the tables takes them."""
_BYTES_PER_CHOICE = 8
"""Scores are read and probabilities written, in 32 bits."""
_LEAST_SHARE_OF_MODULE = 0.1
"""Least share of attention itself in the time of a module of latent attention."""


_MARLIN_MEASURED = Experts(
    hidden_size=3584, inner_size=3072, experts=896, chosen=16, tp=1, ep=1, weights="mxfp4"
)  # fmt: skip
"""Experts in MXFP4 that were measured with Marlin, on GPUs where those of gpt-oss were measured with other kernels."""
_MARLIN_MEASURED_START_US, _MARLIN_START_US = 60.0, 22.0
"""Times of one token with ever narrower experts: those that were measured, 896, and 8 to 256 of them in other tables
of Marlin's kernels on Hopper, which say 15 to 26."""
_MARLIN_WIDTH = 128
"""vLLM pads the inner width of a GPU to multiples of this and the hidden size to multiples of twice as much."""


def _padded(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def elementwise_us(gpu: GpuSpec, operation: Elementwise, tokens: tuple[int, ...]) -> Times:
    """Return the times of a small kernel: a start, and its traffic at a rate that such kernels reach."""
    rate = _ELEMENTWISE_SHARE * gpu.bandwidth_tb_s * 1e6
    times: Times = _ELEMENTWISE_START_US + operation.bytes_per_token * np.array(tokens, dtype=np.float64) / rate
    return times


class RepairedTables:
    """The tables of one GPU with repairs, each of which is noted when it is made."""

    def __init__(self, gpu: GpuSpec, tables: Tables) -> None:
        self._gpu = gpu
        self._tables = tables
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the repairs made so far."""
        return tuple(self._notes)

    def token_us(self, operation: TokenOperation, tokens: tuple[int, ...]) -> Times:
        """Return the times of an operation for ascending numbers of tokens."""
        if isinstance(operation, AllReduce):
            return self._all_reduce_us(operation, tokens)
        if isinstance(operation, Routing):
            if self._routes_inside(operation):
                return np.zeros(len(tokens))
            operation = Elementwise(_BYTES_PER_CHOICE * operation.experts)
        if isinstance(operation, Elementwise):
            return elementwise_us(self._gpu, operation, tokens)
        measured = operation.matmul if isinstance(operation, SharedExpert) else operation
        if isinstance(measured, Experts) and measured.weights == MXFP4_BY_MARLIN:
            return self._marlin_us(measured, tokens)
        operation, backend = self._source(measured)
        times = np.array([self._tables.token_us(operation, each, backend) for each in tokens])
        if isinstance(operation, Matmul):
            times = np.maximum(times, self._least_us(operation.rows * operation.columns * bits_of(operation.weights)))
        least: Times = np.minimum.accumulate(times[::-1])[::-1]
        if (least < _OUTLIER * times).any():
            self._notes["a kernel that is faster with more tokens is taken for fewer ones, too"] = None
        return least

    def _source(self, operation: MeasuredOperation) -> tuple[MeasuredOperation, str]:
        """Return the operation to look up and the backend whose tables to take."""
        if isinstance(operation, Matmul) and operation.weights == "block fp8":
            self._notes["FP8 in blocks is multiplied as TensorRT-LLM does"] = None
            return operation, TRTLLM
        is_blackwell = self._gpu.compute_capability // 1 == _BLACKWELL
        if isinstance(operation, Experts) and operation.weights == "mxfp4" and is_blackwell:
            self._notes["experts in MXFP4 compute in MXFP8, as SGLang's do"] = None
            return operation._replace(weights=MXFP4_WITH_MXFP8), SGLANG
        return operation, VLLM

    def _marlin_us(self, experts: Experts, tokens: tuple[int, ...]) -> Times:
        """Time of experts in MXFP4 by Marlin: that of the ones measured, with as many tokens for each expert.

        As vLLM pads for Marlin, both have equal widths on each GPU where they are shared in equal ways.
        """
        self._notes["experts in MXFP4 by Marlin are those of another model with as many tokens for each"] = None
        donor = _MARLIN_MEASURED._replace(tp=experts.tp, ep=experts.ep)
        inner_size = _padded(-(-experts.inner_size // experts.tp), _MARLIN_WIDTH)
        work = experts.experts * _padded(experts.hidden_size, 2 * _MARLIN_WIDTH) * inner_size
        share = work / (donor.experts * donor.hidden_size * (donor.inner_size // donor.tp))
        more = experts.chosen / experts.experts / (donor.chosen / donor.experts)
        measured = np.array([self._tables.token_us(donor, max(1, round(more * each))) for each in tokens])
        times = _MARLIN_START_US + share * np.maximum(0.0, measured - _MARLIN_MEASURED_START_US)
        least: Times = np.minimum.accumulate(times[::-1])[::-1]
        return least

    def _routes_inside(self, routing: Routing) -> bool:
        """Whether the kernel of the experts chooses them, too: Triton's for MXFP4, and TensorRT-LLM's on Blackwell.

        Marlin's does not.
        """
        is_blackwell = self._gpu.compute_capability // 1 == _BLACKWELL
        if routing.weights == MXFP4_BY_MARLIN:
            return False
        return routing.weights == "mxfp4" or (is_blackwell and not routing.weights.startswith("int"))

    def _all_reduce_us(self, operation: AllReduce, tokens: tuple[int, ...]) -> Times:
        gpu, sent = self._gpu, message_bytes(operation.width, tokens)
        in_node = min(operation.gpus, gpu.nvlink_gpus if has_nvlink(gpu, operation.gpus) else gpu.gpus_per_node)
        measured = operation._replace(gpus=min(in_node, _MOST_GPUS_MEASURED))
        shortest = -(-_SHORTEST_ALL_REDUCE // operation.width)
        if tokens[0] < shortest:
            self._notes["all-reduces shorter than 256 bytes take as long as those of 256"] = None
        times = np.array([self._tables.token_us(measured, max(each, shortest)) for each in tokens])
        if not has_nvlink(gpu, in_node) and gpu.pcie_gb_s:
            self._notes["GPUs without NVLink exchange through the memory of the host"] = None
            times = np.maximum(times, staged_all_reduce_us(gpu, in_node, sent))
        if operation.gpus > in_node and gpu.network_gb_s:
            self._notes["exchanges between nodes are computed from the rate of the network"] = None
            times = times + between_nodes_us(gpu, -(-operation.gpus // in_node), sent)
        return times

    def context_us(self, attention: AttentionOperation, requests: int, new: int, before: int) -> float:
        """Return the time of the attention of prompts, without the projections that are counted by tokens."""
        if isinstance(attention, DeltaNet):
            return self._tables.context_us(attention, requests, new, before)
        if isinstance(attention, HeadAttention):
            return self._prompt_heads_us(attention, requests, new, before)
        time_us = self._tables.context_us(attention, requests, new, before)
        return self._beside_projections(time_us, attention.projections, requests * new)

    def _prompt_heads_us(self, attention: HeadAttention, requests: int, new: int, before: int) -> float:
        """Attention of prompts as it was measured; rotation and norms of queries and keys are counted by tokens."""
        self._notes["13.2 us that were not measured are no part of the attention of prompts"] = None
        kernel = attention._replace(has_norm=False)
        start_us = self._tables.context_us(kernel, 1, _SHORTEST_PROMPT, 0)
        time_us = self._tables.context_us(kernel, requests, new, before)
        return max(start_us, time_us) - _ADDED_TO_PROMPTS_US

    def decode_us(self, attention: AttentionOperation, requests: int, context: int) -> float:
        """Return the time of the attention of requests that decode, without the projections that are counted by
        tokens."""
        if isinstance(attention, HeadAttention):
            return self._heads_us(attention, requests, context)
        if isinstance(attention, DeltaNet):
            return self._tables.decode_us(attention, requests, context)
        is_sparse = isinstance(attention, SparseLatentAttention)
        backend = self._sparse_backend() if is_sparse else self._latent_backend()
        time_us = self._tables.decode_us(attention, requests, context, backend)
        return self._beside_projections(time_us, attention.projections, requests)

    def _sparse_backend(self) -> str:
        self._notes["sparse attention is that of SGLang"] = None
        return SGLANG

    def _latent_backend(self) -> str:
        self._notes["latent attention is that of TensorRT-LLM"] = None
        return TRTLLM

    def _heads_us(self, attention: HeadAttention, requests: int, context: int) -> float:
        """Attention of more KV heads than were measured is the attention of more requests with fewer heads each."""
        seen = min(context, attention.window_tokens) if attention.window_tokens else context
        elements = 2 * attention.kv_heads * attention.head_size * requests * seen
        least_us = self._least_us(elements * bits_of(attention.kv_dtype))
        return max(least_us, self._measured_heads_us(attention, requests, context))

    def _least_us(self, bits: int) -> float:
        """The time to read so much at the rate that is reached at best.

        Where tables beat it, they were measured on a GPU with faster memory, or with all that they read in its cache.
        """
        return bits / 8 / (_REACHED_BANDWIDTH * self._gpu.bandwidth_tb_s * 1e6)

    def _measured_heads_us(self, attention: HeadAttention, requests: int, context: int) -> float:
        measured = next(each for each in _KV_HEADS_MEASURED if attention.kv_heads % each == 0)
        parts = attention.kv_heads // measured
        if parts == 1:
            return self._tables.decode_us(attention, requests, context)
        self._notes[f"{attention.kv_heads} KV heads decode as {parts} times the requests with fewer heads"] = None
        part = attention._replace(heads=attention.heads // parts, kv_heads=measured)
        return self._tables.decode_us(part, parts * requests, context)

    def _beside_projections(self, time_us: float, projections: Sequence[Matmul], tokens: int) -> float:
        """A table of latent attention times the module: what its projections take is counted elsewhere."""
        beside = sum(self._tables.token_us(each, tokens, self._source(each)[1]) for each in projections)
        return max(time_us - beside, _LEAST_SHARE_OF_MODULE * time_us)
