"""From a deployment to its kernel times: grids of repaired tables, and learned coefficients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import read_mapping
from blis_sim.engine.latency.catalogue_reader import KERNELS_HOST, LEARNED_COEFFICIENTS
from blis_sim.engine.latency.coefficients_file import read_coefficients, read_section
from blis_sim.engine.latency.fitted import RequestCoefficients
from blis_sim.engine.latency.kernel_tables import (
    MXFP4_WITH_MXFP8,
    MeasuredOperation,
    ScaledTables,
    Tables,
    experts_least,
    latent_cache_bytes,
    matmul_least,
    peaks_of,
    prompt_least,
    scaled,
    with_more_heads,
)
from blis_sim.engine.latency.kernels import GRAPH_SIZES, TOKEN_CLASSES, HostOverheads, KernelGrids, KernelScales, Times
from blis_sim.engine.latency.model_operations import KernelPlacement, operations_of
from blis_sim.engine.latency.operations import (
    MXFP4_BY_MARLIN,
    AcrossRanks,
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Elementwise,
    Experts,
    HeadAttention,
    LatentAttention,
    Matmul,
    Routing,
    SharedExpert,
    SparseLatentAttention,
    StepOperations,
    TokenOperation,
    bits_of,
)
from blis_sim.engine.specs import GpuSpec, ModelSpec

# Grids of attention in order: more requests, new tokens or context never take less time, and a hit never takes more.
#
# Tables were measured point by point, partly with other kernels for other sizes, and what their projections take was
# subtracted from some. So neighbouring points may contradict each other.


def ordered(times: Times, axis: int) -> Times:
    """Return times that never fall along an axis.

    Points out of order take the geometric mean of the most before them and of the least after them.
    """
    most = np.maximum.accumulate(times, axis=axis)
    least = np.flip(np.minimum.accumulate(np.flip(times, axis=axis), axis=axis), axis=axis)
    between: Times = np.where(most == least, times, np.sqrt(most * least))
    return between


def ordered_decodes(times: Times, requests: Sequence[int]) -> Times:
    """Return the times of requests that decode, by their number and their context, in order.

    A batch takes at most what its parts take one after the other. From 512 requests on tables of sparse attention have
    nine times the time of 256.
    """
    found = times.copy()
    for place, (few, many) in enumerate(pairwise(requests), 1):
        np.minimum(found[place], many / few * found[place - 1], out=found[place])
    return ordered(ordered(found, 1), 0)


def ordered_prompts(times: Times, new_tokens: Sequence[int], contexts: Sequence[int]) -> Times:
    """Return the times of prompts, by their number, new tokens and context, in order.

    A chunk after others takes at least what it takes as the first one, and at most what all tokens take together. A
    request that finds a part of its prompt in the cache never waits longer.
    """
    at_least_alone = np.maximum.accumulate(times, axis=2)
    found = ordered(ordered(at_least_alone, 0), 1)
    found = np.maximum.accumulate(found, axis=2)
    together = np.add.outer(np.array(new_tokens, dtype=np.float64), np.array(contexts, dtype=np.float64))
    for each in found:
        np.minimum(each, _at(together, np.array(new_tokens, dtype=np.float64), each[:, 0].copy()), out=each)
    in_order: Times = np.minimum.accumulate(found[::-1], axis=0)[::-1]
    return in_order


def _at(tokens: Times, places: Times, times: Times) -> Times:
    """Return the times at numbers of tokens, a power between places and beyond them."""
    logs, places = np.log(times), np.log(places)
    at = np.log(tokens)
    slope = (logs[-1] - logs[-2]) / (places[-1] - places[-2])
    found: Times = np.exp(np.interp(at, places, logs) + slope * np.maximum(at - places[-1], 0.0))
    return found


# Tables of experts that memory contradicts: far slower than their weights are read, or faster.
#
# Few tokens read the weights of most experts and compute little, so a table is judged there.

SLOWEST = 3.0
"""Times that a kernel may take as long as memory to read its weights. Those of 14 other models take 1.1 to 2.3 times as
long. Those of Llama-4-Scout in FP8 on Hopper take 5 to 10 times as long, of which its servers show nothing."""
LONGEST_START_US, START_US = 60.0, 20.0
"""Times of one token with ever narrower experts: the longest among all tables, and a usual one."""
_USUAL = 1.5
_LITTLE_ARITHMETIC = 1 / 16
"""Most arithmetic of tokens a table is judged by, as a share of the time to read the weights."""
_CHOICES_PER_EXPERT = 32
"""Choices for each expert from which every one is taken, though some are taken more often than others."""
FULL = "bfloat16"


def plausible_experts(
    experts: Experts, tokens: Times, times: Times, gpu: GpuSpec, in_16_bits: Callable[[], Times | None]
) -> tuple[Times, str]:
    """Return the times of experts, repaired where memory contradicts them, with a note on it; else as they are.

    `in_16_bits` looks up the same experts in 16 bits, None where they were not measured. Time beyond the start is
    theirs in proportion to the bits. Without them it is the usual time to read as much.
    """
    read_us, least_us = _read_us(experts, tokens, gpu), _least_us(experts, tokens, gpu)
    arithmetic_us = _arithmetic_us(experts, tokens, gpu)
    judged = int(np.flatnonzero(arithmetic_us <= _LITTLE_ARITHMETIC * read_us)[-1:].sum())
    too_slow = times[judged] - LONGEST_START_US > SLOWEST * read_us[judged]
    if too_slow:
        wider = in_16_bits() if experts.weights != FULL else None
        share = bits_of(experts.weights) / bits_of(FULL)
        if wider is None or wider[judged] - LONGEST_START_US > SLOWEST / share * read_us[judged]:
            repaired: Times = START_US + _USUAL * np.maximum(read_us, arithmetic_us)
            how = "take the usual time to read their weights"
        else:
            repaired = START_US + np.maximum(share * np.maximum(wider - START_US, 0.0), arithmetic_us)
            how = f"take {share:g} of the time of those in 16 bits"
        ratio = times[judged] / read_us[judged]
        return np.minimum(times, np.maximum(repaired, least_us)), (
            f"experts in {experts.weights} that take {ratio:.1f} times as long as memory takes for them {how}"
        )
    if (times < least_us).any():
        return np.maximum(times, least_us), f"experts in {experts.weights} that beat the memory take what memory takes"
    return times, ""


def _bytes_of_one(experts: Experts) -> float:
    matrices = 3 if experts.has_gate else 2
    size = matrices * experts.hidden_size * experts.inner_size / (experts.tp * experts.ep)
    return size * bits_of(experts.weights) / 8


def _read_us(experts: Experts, tokens: Times, gpu: GpuSpec) -> Times:
    """Return the time to read the experts that, by chance, some token is routed to."""
    read = experts.experts * (1 - (1 - experts.chosen / experts.experts) ** tokens)
    times: Times = read * _bytes_of_one(experts) / (gpu.bandwidth_tb_s * 1e6)
    return times


def _least_us(experts: Experts, tokens: Times, gpu: GpuSpec) -> Times:
    """Return the time to read the experts that are certainly taken: those of one token, or else all."""
    are_all = tokens * experts.chosen >= _CHOICES_PER_EXPERT * experts.experts
    read = np.where(are_all, experts.experts, experts.chosen)
    times: Times = read * _bytes_of_one(experts) / (gpu.bandwidth_tb_s * 1e6)
    return times


def _arithmetic_us(experts: Experts, tokens: Times, gpu: GpuSpec) -> Times:
    peak = gpu.tflops_fp8 if bits_of(experts.weights) == 8 and gpu.tflops_fp8 else gpu.tflops
    weights = _bytes_of_one(experts) * 8 / bits_of(experts.weights)
    times: Times = 2 * tokens * experts.chosen * weights / (peak * 1e6)
    return times


# From tables of measured kernels to grids: repaired where they are known to be wrong, and baked for one deployment.
#
# docs/kernels.md names each repair with its evidence.

STAGED_SHARE = 0.25
"""Share of a PCIe link's rate that an all-reduce reaches where the memory of the host stands between two GPUs. Each
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
_SHORTEST_PROMPT = 16
"""Tokens of the shortest prompt that was measured on all GPUs. Shorter ones, and chunks after others, are computed
without the start of a kernel."""
_MAX_MEASURED_GPUS = 8
_SHORTEST_ALL_REDUCE = 128
"""Values in the shortest message that was measured. Shorter ones need two barriers between GPUs, too."""
_AMPERE, _BLACKWELL = 8, 10
_IN_8_BITS = ("fp8", "block fp8")
UNTUNED = 2.0
"""By step times, 2.0 with MiniMax-M2.5 on H200, 2.0 with GLM-4.6 on H200 and 2.3 with Qwen3-235B in FP8 on A100.
Decodes of four requests show it as prompts do."""
_TRITON_SHARE = 0.12
"""Share of the peak that Triton's attention reaches on prompts. With gpt-oss-20b two prompts of 32,000 tokens on an
A100 take 4.4 s each, of which kernels of other kinds take 1.8."""
_OUTLIER = 0.97
_SPIKE = 0.2
"""Share by which the attention of decodes falls with one more point of a grid where a measurement went wrong."""
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
"""Times of one token with ever narrower experts. 896 of them were measured. Other tables of Marlin's kernels on Hopper
have 8 to 256 of them, and say 15 to 26."""
_MARLIN_WIDTH = 128
"""vLLM pads the inner width of a GPU to multiples of this and the hidden size to multiples of twice as much."""


def _padded(width: int, multiple: int) -> int:
    return -(-width // multiple) * multiple


def elementwise_us(gpu: GpuSpec, operation: Elementwise, tokens: tuple[int, ...]) -> Times:
    """Return the times of a small kernel: a start, and its traffic at a rate that such kernels reach."""
    rate = _ELEMENTWISE_SHARE * gpu.bandwidth_tb_s * 1e6
    times: Times = _ELEMENTWISE_START_US + operation.bytes_per_token * np.array(tokens, dtype=np.float64) / rate
    return times


def _least_of(times: Sequence[Times]) -> Times:
    """Return the least of the times of modules with ever more heads: fewer heads never take longer."""
    least: Times = np.min(times, axis=0)
    return least


class RepairedTables:
    """The tables of one GPU with repairs, each of which is noted when it is made."""

    def __init__(self, gpu: GpuSpec, tables: Tables | ScaledTables) -> None:
        self._gpu = gpu
        self._tables = tables
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the repairs made so far."""
        return tuple(self._notes)

    def token_us(self, operation: TokenOperation, tokens: tuple[int, ...]) -> Times:
        """Return the times of an operation for ascending numbers of tokens of one rank."""
        if isinstance(operation, AcrossRanks):
            return self.token_us(operation.operation, tuple(operation.ranks * each for each in tokens))
        if isinstance(operation, AllReduce):
            return self._all_reduce_us(operation, tokens)
        if isinstance(operation, Routing):
            if self._routes_inside(operation):
                return np.zeros(len(tokens))
            operation = Elementwise(_BYTES_PER_CHOICE * operation.experts)
        if isinstance(operation, Elementwise):
            return elementwise_us(self._gpu, operation, tokens)
        measured = operation.matmul if isinstance(operation, SharedExpert) else operation
        if isinstance(measured, Experts):
            return self._experts_us(measured, tokens)
        return self._in_order_us(measured, tokens)

    def _experts_us(self, experts: Experts, tokens: tuple[int, ...]) -> Times:
        """Return the times of experts: a GPU with a part of them never takes longer than one with twice as much."""
        is_marlin = experts.weights == MXFP4_BY_MARLIN
        times = self._marlin_us(experts, tokens) if is_marlin else self._in_order_us(experts, tokens)
        shared = "tp" if experts.ep % 2 else "ep"
        half = getattr(experts, shared) // 2
        is_padded = is_marlin and shared == "tp"  # to equal widths
        if getattr(experts, shared) != 2 * half or is_padded:
            return times
        try:
            of_more = self._experts_us(experts._replace(**{shared: half}), tokens)
        except EngineError:  # they were measured on as many GPUs only
            return times
        if (of_more < _OUTLIER * times).any():
            self._notes["experts that are slower on more GPUs take what they take on half as many"] = None
            times = np.minimum(times, of_more)
        return times

    def _in_order_us(self, measured: MeasuredOperation, tokens: tuple[int, ...]) -> Times:
        """Return the times of a measured operation, which more tokens never make shorter."""
        operation = self._source(measured)
        times = self._measured_us(operation, np.array(tokens, dtype=np.float64))
        if isinstance(operation, Matmul):
            times = np.maximum(times, self._least_us(operation.rows * operation.columns * bits_of(operation.weights)))
        if isinstance(operation, Experts):
            times = self._untuned_us(operation, tokens, self._plausible_us(operation, tokens, times))
        return self._rising(times)

    def _rising(self, times: Times) -> Times:
        """Return times by number of tokens of which none is longer than one of more tokens."""
        least: Times = np.minimum.accumulate(times[::-1])[::-1]
        if (least < _OUTLIER * times).any():
            self._notes["a kernel that is faster with more tokens is taken for fewer ones, too"] = None
        return least

    def _measured_us(self, operation: MeasuredOperation, tokens: Times) -> Times:
        """Return the times of tables; without arithmetic in FP8, those in 16 bits that read half as many bytes."""
        if isinstance(operation, AllReduce) or operation.weights not in _IN_8_BITS or self._gpu.tflops_fp8:
            times = self._tables.token_us(operation, tokens)
            if isinstance(self._tables, ScaledTables) and self._tables.has_unmeasured_experts:
                self._notes["experts of a size that was not measured take what the nearest sizes take"] = None
            return times
        self._notes["weights in FP8 are computed in 16 bits, as Marlin does"] = None
        peaks, wider = peaks_of(self._gpu), operation._replace(weights=FULL)
        least = [
            (matmul_least(each, tokens, peaks) if isinstance(each, Matmul) else experts_least(each, tokens, peaks)).us
            for each in (wider, operation)
        ]
        return scaled(self._measured_us(wider, tokens), *least)

    def _untuned_us(self, experts: Experts, tokens: tuple[int, ...], times: Times) -> Times:
        """Return the times of experts; without a tuned kernel what exceeds the least time of the GPU is twice as long.

        So is Marlin's kernel of FP8 where the GPU has no arithmetic in FP8.
        """
        if experts.is_tuned and (experts.weights not in _IN_8_BITS or self._gpu.tflops_fp8):
            return times
        self._notes["experts that the release has no tuned kernel for take twice what exceeds the least time"] = None
        least = experts_least(experts, np.array(tokens, dtype=np.float64), peaks_of(self._gpu)).us
        slower: Times = times + (UNTUNED - 1) * np.maximum(times - least, 0.0)
        return slower

    def _plausible_us(self, experts: Experts, tokens: tuple[int, ...], times: Times) -> Times:
        """Return the times of experts without those that memory contradicts."""

        def in_16_bits() -> Times | None:
            wider = experts._replace(weights=FULL)
            try:
                return self._tables.token_us(wider, np.array(tokens, dtype=np.float64))
            except EngineError:
                return None

        times, note = plausible_experts(experts, np.array(tokens, dtype=np.float64), times, self._gpu, in_16_bits)
        if note:
            self._notes[note] = None
        return times

    def _source(self, operation: MeasuredOperation) -> MeasuredOperation:
        """Return the operation to look up, with a note where its kernel is not vLLM's."""
        if isinstance(operation, Matmul) and operation.weights == "block fp8":
            self._notes["FP8 in blocks is multiplied as TensorRT-LLM does"] = None
        is_blackwell = self._gpu.compute_capability // 1 == _BLACKWELL
        if isinstance(operation, Experts) and operation.weights == "mxfp4" and is_blackwell:
            self._notes["experts in MXFP4 compute in MXFP8, as SGLang's do"] = None
            return operation._replace(weights=MXFP4_WITH_MXFP8)
        return operation

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
        measured = self._tables.token_us(donor, np.maximum(1.0, np.rint(more * np.array(tokens))))
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
        times = self._tables.token_us(measured, np.maximum(np.array(tokens, dtype=np.float64), shortest))
        times = self._rising(times)
        if not has_nvlink(gpu, in_node) and gpu.pcie_gb_s:
            self._notes["GPUs without NVLink exchange through the memory of the host"] = None
            times = staged_all_reduce_us(gpu, in_node, sent)
        if operation.gpus > in_node and gpu.network_gb_s:
            self._notes["exchanges between nodes are computed from the rate of the network"] = None
            times = times + between_nodes_us(gpu, -(-operation.gpus // in_node), sent)
        return times

    def context_us(self, attention: AttentionOperation, requests: Times, new: Times, before: Times) -> Times:
        """Return the times of the attention of prompts, without the projections that are counted by tokens."""
        if isinstance(attention, DeltaNet):
            return self._tables.context_us(attention, requests, new, before)
        if isinstance(attention, HeadAttention):
            times = self._tables.context_us(attention, requests, new, before)
            if attention.has_sinks and self._gpu.compute_capability // 1 == _AMPERE:
                self._notes["attention with sinks is that of Triton, which FlashAttention 2 does not compute"] = None
                times = np.maximum(times, self._triton_us(attention, requests, new, before))
            shortest = self._tables.context_us(attention, np.ones(1), np.full(1, _SHORTEST_PROMPT), np.zeros(1))
            longer: Times = np.maximum(times, shortest)
            return longer
        times = _least_of([self._tables.context_us(each, requests, new, before) for each in with_more_heads(attention)])
        return self._beside_projections(times, attention.projections, requests * new)

    def _triton_us(self, attention: HeadAttention, requests: Times, new: Times, before: Times) -> Times:
        """Return the time of the arithmetic of prompts in tiles of 16 rows, far below the peak."""
        heads = np.full(len(new), float(attention.heads))
        least = prompt_least(attention, heads, requests, new, before, peaks_of(self._gpu))
        times: Times = least.math_us / _TRITON_SHARE
        return times

    def decode_us(self, attention: AttentionOperation, requests: Times, context: Times) -> Times:
        """Return the times of the attention of requests that decode, without the projections that are counted by
        tokens."""
        if isinstance(attention, HeadAttention):
            return self._heads_us(attention, requests, context)
        if isinstance(attention, DeltaNet):
            return self._tables.decode_us(attention, requests, context)
        engine = (
            "sparse attention is that of SGLang"
            if isinstance(attention, SparseLatentAttention)
            else ("latent attention is that of TensorRT-LLM")
        )
        self._notes[engine] = None
        times = _least_of([self._tables.decode_us(each, requests, context) for each in with_more_heads(attention)])
        least_us = self._least_us(8 * requests * latent_cache_bytes(attention, context))
        longer: Times = np.maximum(least_us, self._beside_projections(times, attention.projections, requests))
        return longer

    def _heads_us(self, attention: HeadAttention, requests: Times, context: Times) -> Times:
        """Attention of more KV heads than were measured is the attention of more requests with fewer heads each."""
        seen = np.minimum(context, attention.window_tokens) if attention.window_tokens else context
        elements = 2 * attention.kv_heads * attention.head_size * requests * seen
        least_us = self._least_us(elements * bits_of(attention.kv_dtype))
        longer: Times = np.maximum(least_us, self._measured_heads_us(attention, requests, context))
        return longer

    def _least_us(self, bits: Times | int) -> Times:
        """The time to read so much at the rate that is reached at best.

        Where tables beat it, they were measured on a GPU with faster memory, or with all that they read in its cache.
        """
        least: Times = np.divide(bits, 8 * _REACHED_BANDWIDTH * self._gpu.bandwidth_tb_s * 1e6)
        return least

    def _measured_heads_us(self, attention: HeadAttention, requests: Times, context: Times) -> Times:
        measured = next(each for each in _KV_HEADS_MEASURED if attention.kv_heads % each == 0)
        parts = attention.kv_heads // measured
        if parts == 1:
            return self._tables.decode_us(attention, requests, context)
        self._notes[f"{attention.kv_heads} KV heads decode as {parts} times the requests with fewer heads"] = None
        part = attention._replace(heads=attention.heads // parts, kv_heads=measured)
        return self._tables.decode_us(part, parts * requests, context)

    def _beside_projections(self, times: Times, projections: Sequence[Matmul], tokens: Times) -> Times:
        """A table of latent attention times the module: what its projections take is counted elsewhere."""
        beside = sum((self._tables.token_us(self._source(each), tokens) for each in projections), np.zeros(len(tokens)))
        left: Times = np.maximum(times - beside, _MIN_SHARE_OF_MODULE * times)
        return left


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
        timed = operation.operation if isinstance(operation, AcrossRanks) else operation
        kind = type(timed) if type(timed) in sums else object
        sums[kind] += count * tables.token_us(operation, TOKENS)
    routed, shared = sums[Experts], sums[SharedExpert]
    beside = np.array(TOKENS) <= _SHARED_BESIDE_ROUTED
    experts = np.where(beside, np.maximum(routed, shared), routed + shared)
    by_class = {
        "matmul": sums[object], "experts": experts, "all_reduce": sums[AllReduce], "elementwise": sums[Elementwise],
    }  # fmt: skip
    return np.array([by_class[name] for name in TOKEN_CLASSES])


def _decode_grid(attention: Sequence[tuple[AttentionOperation, int]], tables: RepairedTables) -> Times:
    requests, context = _all_of(DECODE_REQUESTS, DECODE_CONTEXT)
    times = sum((count * tables.decode_us(each, requests, context) for each, count in attention), 0.0 * requests)
    grid = times.reshape(len(DECODE_REQUESTS), len(DECODE_CONTEXT))
    return ordered_decodes(grid, DECODE_REQUESTS) if _is_latent(attention) or _has_spike(grid) else grid


def _has_spike(grid: Times) -> bool:
    """Whether decodes with more requests or context take less by far, which others do by 3 % of a step at most."""
    return any(
        bool((np.diff(grid, axis=axis) < -_SPIKE * grid.take(range(grid.shape[axis] - 1), axis)).any())
        for axis in (0, 1)
    )


def _prompt_grid(attention: Sequence[tuple[AttentionOperation, int]], tables: RepairedTables) -> Times:
    requests, new, before = _all_of(PROMPT_REQUESTS, PROMPT_TOKENS, PROMPT_CONTEXT)
    timed = (requests == 1) | (requests * new <= _MAX_PROMPT_TOKENS)
    sizes = requests[timed], new[timed], before[timed]
    times = np.zeros(len(requests))
    times[timed] = sum((count * tables.context_us(each, *sizes) for each, count in attention), 0.0 * sizes[0])
    grid = times.reshape(len(PROMPT_REQUESTS), len(PROMPT_TOKENS), len(PROMPT_CONTEXT))
    too_many = ~timed.reshape(grid.shape)
    for fewer, more, untimed in zip(grid[:-1], grid[1:], too_many[1:], strict=True):
        more[untimed] = 2 * fewer[untimed]
    return ordered_prompts(grid, PROMPT_TOKENS, PROMPT_CONTEXT) if _is_latent(attention) else grid


def _is_latent(attention: Sequence[tuple[AttentionOperation, int]]) -> bool:
    """Whether attention is latent: what its projections take was subtracted."""
    return any(isinstance(each, LatentAttention | SparseLatentAttention) for each, _ in attention)


def _all_of(*axes: Sequence[int]) -> tuple[Times, ...]:
    """Return the places of a grid, one array for each axis."""
    return tuple(
        each.ravel() for each in np.meshgrid(*(np.array(axis, dtype=np.float64) for axis in axes), indexing="ij")
    )


# From a deployment to its kernel times, of the tables of its GPU.

_AMPERE_MAJOR, _HOPPER_MAJOR, _BLACKWELL_MAJOR = 8, 9, 10
_ROWS_OF_FLASH_ATTENTION_2 = 64


def has_one_attention_call(operations: StepOperations, gpu: GpuSpec) -> bool:
    """Return whether one kernel per layer computes the attention of prompts and of requests that decode.

    FlashAttention does: version 3 on Hopper, version 2 where `decode_rows` has rows. FlashInfer and latent attention
    have one call for each.
    """
    mixers = [attention for attention, _ in operations.attention]
    is_hopper = int(gpu.compute_capability) == _HOPPER_MAJOR
    has_version_3 = is_hopper and bool(mixers) and all(isinstance(each, HeadAttention) for each in mixers)
    return has_version_3 or decode_rows(operations, gpu) > 0


def decode_rows(operations: StepOperations, gpu: GpuSpec) -> int:
    """Return the prompt tokens that a request which decodes counts as in the attention of a step with prompts.

    0 where it costs what it costs without them. FlashAttention computes a whole batch in one call. Version 3, on
    Hopper, always packs the query heads that share KV into one tile. Version 2, on all other GPUs but the first
    Blackwell, does so only where no request has more than one new token. Beside a prompt each query head gets a tile of
    64 rows, of which one is used. FlashInfer and latent attention have one call for prompts and one for decodes. vLLM
    takes FlashInfer on Blackwell and for KV caches in FP8 beside version 2.
    """
    mixers = [attention for attention, _ in operations.attention]
    uses_half = all(
        isinstance(each, HeadAttention) and each.kv_dtype == "bfloat16" and not each.has_sinks for each in mixers
    )
    has_version_2 = int(gpu.compute_capability) >= _AMPERE_MAJOR and int(gpu.compute_capability) not in (
        _HOPPER_MAJOR,
        _BLACKWELL_MAJOR,
    )
    return _ROWS_OF_FLASH_ATTENTION_2 if mixers and uses_half and has_version_2 else 0


_KEPT_GRIDS = 32


@lru_cache(maxsize=_KEPT_GRIDS)
def measured_grids(operations: StepOperations, gpu: GpuSpec) -> "KernelGrids":
    """Return the kernel times of a deployment from the tables of its GPU. Raises EngineError."""
    from blis_sim.engine.latency.kernel_tables import ScaledTables, gpus_with_tables

    tables = ScaledTables(gpu, gpus_with_tables())
    return replace(bake(operations, RepairedTables(gpu, tables)), scaling=tables.note())


def grids_of(model: ModelSpec, gpu: GpuSpec, placement: KernelPlacement) -> "KernelGrids":
    """Return the kernel times of a deployment. Raises EngineError for an operation that was not measured."""
    return measured_grids(operations_of(model, placement), gpu)


# Coefficients that `blis fit` learns beside kernels: the overheads of the host for a step, and a scale for each class
# of kernels.

_TOKENIZER_US = 4.2
"""Per token, of the tokenizers that servers run, on texts that they have not seen. Hugging Face's library took 3.8 to
5.7 us with those of DeepSeek-V3, Claude, GPT-4 and GPT-4o."""

UNHIDDEN_HOST_US = 700.0
"""Work of the host between two steps that are not composed ahead, with vLLM 0.10 and 0.11, beside that for requests.
550 us are missing from steps of Qwen3-8B on H100, and 570 and 1,310 from those of gpt-oss-120b there. Steps of
Qwen3-1.7B on A100 lack 860."""
UNHIDDEN_SEQUENCE_US = 21.0
"""Work of the host for each request of a step that is not composed ahead. Bursts of seven servers lack 1 to 54 us, and
this is the median. The scheduler of 0.11.0 alone takes 22 to 26 us a request in steps of 1,000."""


def latent_layers(operations: StepOperations) -> int:
    """Return the layers of latent attention, sparse ones included."""
    return sum(
        count for each, count in operations.attention if isinstance(each, LatentAttention | SparseLatentAttention)
    )


def shipped_learned(model: ModelSpec) -> tuple[HostOverheads, KernelScales]:
    """Return the overheads that ship for a model, and kernels as they were measured.

    What passes outside of steps is that of the shipped coefficients of `fitted`. Overheads of steps were learned beside
    kernels from recordings of the same server: in those of `fitted` there are kernels, too. vLLM prepares a step while
    the GPU computes the one before, so the excess of a step over its kernels is mostly the GPU's. It consists of gaps
    and cold caches between the kernels of a layer, and of sampling from the logits of a request. Both carry over in
    proportion.
    """
    host, scales, learned_for = _shipped()
    layers, logits = model.num_layers / learned_for["num_layers"], model.vocab_size / learned_for["vocab_size"]
    return replace(host, step_us=host.step_us * layers, request_us=host.request_us * logits), scales


@cache
def _shipped() -> tuple[HostOverheads, KernelScales, Mapping[str, Any]]:
    """Return the overheads as they were learned, the scales, and the model that they were learned for."""
    fitted = read_mapping(LEARNED_COEFFICIENTS)
    learned = read_coefficients(LEARNED_COEFFICIENTS, fitted)
    arrival_us, arrival_token_us = _arrival(learned.request, most_certain_prompt_tokens(fitted))
    of_requests = {
        "arrival_us": arrival_us,
        "arrival_token_us": arrival_token_us,
        "output_us": learned.request.output_us,
        "output_request_us": learned.request.output_request_us,
    }
    content = dict(read_mapping(KERNELS_HOST))
    content["host"] = {**content["host"], **of_requests}
    host, scales = read_learned(KERNELS_HOST, {**content, "scales": {}})
    return host, scales, content["learned_for"]


def most_certain_prompt_tokens(fitted: Mapping[str, Any]) -> float:
    """Return the length of prompt at which the time before a request is queued is surest, from a file's errors."""
    spread = fitted["spread"]
    places = {name: place for place, name in enumerate(spread)}
    correlation = fitted["correlation"][places["arrival_token_us"]][places["arrival_us"]]
    return float(-correlation * spread["arrival_us"] / spread["arrival_token_us"])


def _arrival(request: RequestCoefficients, tokens: float) -> tuple[float, float]:
    """Return the times before a request is queued, alone and per token.

    Prompts of mostly one length determine the sum at that length alone, which is kept; the time of a tokenizer was
    measured.
    """
    sum_us = request.arrival_us + request.arrival_token_us * tokens
    token_us = min(_TOKENIZER_US, sum_us / tokens)
    return sum_us - token_us * tokens, token_us


def read_learned(path: str | Path, content: Mapping[str, Any] | None = None) -> tuple[HostOverheads, KernelScales]:
    """Read a file, or what was read of it. Raises EngineError that names the file and the key that is wrong."""
    path = Path(path)
    content = read_mapping(path) if content is None else content
    if content.get("latency_model") != "kernels":
        raise EngineError(f"{path}: latency_model must be kernels, got {content.get('latency_model')!r}")
    return read_section(path, content, "host", HostOverheads), read_section(path, content, "scales", KernelScales)
