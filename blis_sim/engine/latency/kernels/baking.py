"""From tables of measured kernels to grids: repaired where they are known to be wrong, and baked for one deployment.

docs/kernels.md names each repair with its evidence.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels.grids import GRAPH_SIZES, TOKEN_CLASSES, KernelGrids, Times
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
    StepOperations,
    TokenOperation,
    bits_of,
)
from blis_sim.engine.latency.kernels.tables import MXFP4_WITH_MXFP8, SGLANG, TRTLLM, VLLM, MeasuredOperation, Tables
from blis_sim.engine.specs import GpuSpec

STAGED_SHARE = 0.25
"""Share of a PCIe link's rate that an all-reduce reaches where the memory of the host stands between two GPUs: each
value is written to it and read from it. With this value two RTX PRO 6000 are predicted closest in a recording of
Qwen3-32B."""
STAGED_START_US = 30.0
NETWORK_SHARE = 0.8
NETWORK_START_US = 15.0
"""To start one of the steps of an exchange between nodes."""


def has_nvlink(gpu: GpuSpec, num_gpus: int) -> bool:
    """Whether NVLink joins `num_gpus` of the GPUs."""
    return gpu.nvlink_gb_s > 0 and num_gpus <= gpu.nvlink_gpus


def staged_all_reduce_us(gpu: GpuSpec, num_gpus: int, message_bytes: Times) -> Times:
    """Return the time of a ring of GPUs on PCIe, whose data pass through the memory of the host."""
    rounds = 2 * (num_gpus - 1) / num_gpus
    rate = gpu.pcie_gb_s * STAGED_SHARE * 1e3  # bytes per microsecond
    times: Times = STAGED_START_US + rounds * message_bytes / rate
    return times


def between_nodes_us(gpu: GpuSpec, num_nodes: int, message_bytes: Times) -> Times:
    """Return the time of rings between nodes, after each node has summed up: each GPU carries a part of the message."""
    rounds = 2 * (num_nodes - 1) / num_nodes
    rate = gpu.network_gb_s * NETWORK_SHARE * 1e3
    starts = 2 * (num_nodes - 1) * NETWORK_START_US
    times: Times = starts + rounds * message_bytes / gpu.gpus_per_node / rate
    return times


def message_bytes(width: int, tokens: tuple[int, ...]) -> Times:
    """Return the bytes that are summed for each number of `tokens`, in 16 bits."""
    return 2.0 * width * np.array(tokens, dtype=np.float64)


_KV_HEADS_MEASURED = (8, 4, 2, 1)
_ADDED_TO_PROMPTS_US = 13.2
"""Computed, not measured: the distribution returns so much more than its files hold for prompts of any length on any
GPU, and three times as much with norms of queries and keys."""
_SHORTEST_PROMPT = 16
"""Tokens of the shortest prompt that was measured on all GPUs. Shorter ones, and chunks after others, are computed
without the start of a kernel."""
_MAX_MEASURED_GPUS = 8
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
_MIN_SHARE_OF_MODULE = 0.1
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
        measured = operation._replace(gpus=min(in_node, _MAX_MEASURED_GPUS))
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
        return max(time_us - beside, _MIN_SHARE_OF_MODULE * time_us)


_LARGER = (*range(1280, 4353, 256), 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384, 24576, 32768)
_EDGES = tuple(tile + 1 for tile in range(1024, 4097, 256))
TOKENS = tuple(sorted({*GRAPH_SIZES, *_LARGER, *_EDGES}))
DECODE_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DECODE_CONTEXT = tuple(sorted({1, *(2**power for power in range(4, 18)), *(3 * 2**power for power in range(6, 16))}))
PROMPT_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPT_TOKENS = (1, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 32768)
PROMPT_CONTEXT = (0, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
_MAX_PROMPT_TOKENS = 65536
"""Prompts of one step with more tokens together are extrapolated."""
_SHARED_BESIDE_ROUTED = 256
"""Most tokens for which vLLM computes the shared expert on a stream of its own, beside the routed ones."""
_KERNELS_OF_ATTENTION = 3
"""Rotating queries and keys, storing keys and values, and attention itself."""


def bake(operations: StepOperations, tables: RepairedTables) -> KernelGrids:
    """Look up the operations of a step on all grids. Raises EngineError for one that was not measured."""
    kernels = sum(count for _, count in operations.per_token) + _KERNELS_OF_ATTENTION * operations.num_layers
    return KernelGrids(
        tokens=TOKENS,
        token_us=_token_grid(operations.per_token, tables),
        head_us=tables.token_us(operations.head, TOKENS) + tables.token_us(operations.sampler, TOKENS),
        decode_requests=DECODE_REQUESTS,
        decode_context=DECODE_CONTEXT,
        decode_us=_decode_grid(operations.attention, tables),
        prompt_requests=PROMPT_REQUESTS,
        prompt_tokens=PROMPT_TOKENS,
        prompt_context=PROMPT_CONTEXT,
        prompt_us=_prompt_grid(operations.attention, tables),
        num_layers=operations.num_layers,
        num_kernels=kernels + 1,
        notes=tables.notes,
    )


def _token_grid(per_token: Iterable[tuple[TokenOperation, int]], tables: RepairedTables) -> Times:
    sums = {kind: np.zeros(len(TOKENS)) for kind in (Experts, SharedExpert, AllReduce, Elementwise, object)}
    for operation, count in per_token:
        kind = type(operation) if type(operation) in sums else object
        sums[kind] += count * tables.token_us(operation, TOKENS)
    routed, shared = sums[Experts], sums[SharedExpert]
    beside = np.array(TOKENS) <= _SHARED_BESIDE_ROUTED
    experts = np.where(beside, np.maximum(routed, shared), routed + shared)
    by_class = {
        "matmul": sums[object], "experts": experts, "all_reduce": sums[AllReduce], "elementwise": sums[Elementwise],
    }  # fmt: skip
    return np.array([by_class[name] for name in TOKEN_CLASSES])


def _decode_grid(attention: Sequence[tuple[AttentionOperation, int]], tables: RepairedTables) -> Times:
    def time_us(requests: int, context: int) -> float:
        return sum(count * tables.decode_us(each, requests, context) for each, count in attention)

    return np.array([_measured_part(time_us, requests, DECODE_CONTEXT) for requests in DECODE_REQUESTS])


def _prompt_grid(attention: Sequence[tuple[AttentionOperation, int]], tables: RepairedTables) -> Times:
    def times_us(requests: int, new: int) -> list[float]:
        def time_us(_: int, before: int) -> float:
            return sum(count * tables.context_us(each, requests, new, before) for each, count in attention)

        return _measured_part(time_us, requests, PROMPT_CONTEXT)

    grid = np.zeros((len(PROMPT_REQUESTS), len(PROMPT_TOKENS), len(PROMPT_CONTEXT)))
    for i, requests in enumerate(PROMPT_REQUESTS):
        for j, new in enumerate(PROMPT_TOKENS):
            too_many = i and requests * new > _MAX_PROMPT_TOKENS
            grid[i, j] = 2 * grid[i - 1, j] if too_many else times_us(requests, new)
    return grid


def _measured_part(time_us: Callable[[int, int], float], requests: int, lengths: Sequence[int]) -> list[float]:
    """Return the times at ascending lengths; those too long to have been measured continue the last ones in line."""
    found: list[float] = []
    for length in lengths:
        try:
            found.append(time_us(requests, length))
        except EngineError:
            if len(found) < 2:
                raise
            slope = (found[-1] - found[-2]) / (lengths[len(found) - 1] - lengths[len(found) - 2])
            found.append(found[-1] + slope * (length - lengths[len(found) - 1]))
    return found
