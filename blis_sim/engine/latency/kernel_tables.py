"""Tables of measured kernels: files, lookup between measured times, least times by peak rates, and scaling to other
GPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.kernels import Times
from blis_sim.engine.latency.operations import (
    INDEX_KEY_BYTES,
    LATENT_BYTES,
    TOKENS_CHOSEN,
    AllReduce,
    AttentionOperation,
    DeltaNet,
    Experts,
    HeadAttention,
    LatentAttention,
    Matmul,
    SparseLatentAttention,
)
from blis_sim.engine.specs import GpuSpec

# Files of measured kernel times: one for each GPU and kind of operation, compressed arrays that numpy reads.
#
# Times are stored as logarithms in steps of 0.05 %, with differences along the last axis and their two bytes apart,
# which compress best. A file has pairs of a name and an array; those of times end in `.us`.

MEASURED = Path(__file__).parent / "measured"
PROMPT, DECODE = "prompt", "decode"
MATMUL, EXPERTS, ALL_REDUCE = "matmul", "experts", "all_reduce"
HEADS, LATENT, SPARSE, DELTA_NET = "head_attention", "latent_attention", "sparse_attention", "delta_net"
KINDS = (MATMUL, EXPERTS, ALL_REDUCE, HEADS, LATENT, SPARSE, DELTA_NET)
TIMES = ".us"
_STEP, _LEAST_US = 5e-4, 1e-2
_KEPT_ARRAYS = 64


def packed(times: Times) -> npt.NDArray[np.uint8]:
    """Return times, NaN where there is none, as they are stored."""
    missing = np.isnan(times)
    codes = np.rint(np.log(np.where(missing, 1.0, times) / _LEAST_US) / _STEP) + 1
    if codes.min() < 1 or codes.max() > np.iinfo(np.uint16).max:
        raise ValueError(
            f"times must be from {_LEAST_US:g} us to 1e12 us, got {np.nanmin(times)} to {np.nanmax(times)}"
        )
    codes[missing] = 0
    steps: npt.NDArray[np.uint16] = np.diff(codes.astype(np.uint16), axis=-1, prepend=np.uint16(0))  # type: ignore[assignment]  # numpy's stubs take it for times
    return np.stack([(steps >> 8).astype(np.uint8), (steps & 0xFF).astype(np.uint8)])


def unpacked(stored: npt.NDArray[np.uint8]) -> Times:
    """Return the times that `packed` stored."""
    steps = (stored[0].astype(np.uint16) << 8) | stored[1]
    codes = np.cumsum(steps, axis=-1, dtype=np.uint16)
    times = _LEAST_US * np.exp(_STEP * (codes.astype(np.float64) - 1.0))
    times[codes == 0] = np.nan
    return times


def write_table(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a file: equal arrays make equal files."""
    stored = {name: packed(array) if name.endswith(TIMES) else array for name, array in arrays.items()}
    np.savez_compressed(path, **stored)  # type: ignore[arg-type]  # numpy's own flags are keywords, too


def measured_gpus() -> tuple[str, ...]:
    """Return the GPUs of the catalogue that have tables, in order of their names."""
    return tuple(sorted(path.name.removesuffix(f".{MATMUL}.npz") for path in MEASURED.glob(f"*.{MATMUL}.npz")))


@lru_cache(maxsize=_KEPT_ARRAYS)
def array_of(path: Path, name: str) -> npt.NDArray[Any] | None:
    """Return one array of a file, None where the file or the array does not exist."""
    if not path.is_file():
        return None
    with np.load(path) as stored:
        if name not in stored.files:
            return None
        found = unpacked(stored[name]) if name.endswith(TIMES) else stored[name]
    found.setflags(write=False)
    return found


# Between measured times: along one axis, on a lattice that is not full, and from the nearest points outside of it.
#
# Within a lattice times are linear, or their square roots are, along an axis. Outside they reach the share of the
# least possible time that measured ones reach: of the last points of a line, or of the nearest ones by the logarithms
# of their sizes, each weighed by its distance.

Least = Callable[[Times, Times, Times], Times]
"""Least times of heads, and of sizes on the outer and the inner axis."""
_NEIGHBOURS = 4
_BLOCK = 64
"""Queries whose distances to all points fit into a cache of the CPU."""


def along(points: Times, times: Times, at: Times, least: Callable[[Times], Times], ends: int = 1) -> Times:
    """Return the times between measured points.

    Beyond them the share of the least time is the median of the last `ends` points, or that of the first one.
    """
    measured = ~np.isnan(times)
    points, times = points[measured], times[measured]
    found: Times = np.interp(at, points, times)
    shares = np.sort(least(points[-ends:]) / times[-ends:])
    last = (shares[(len(shares) - 1) // 2] + shares[len(shares) // 2]) / 2  # np.median would load all of np.ma: 20 ms
    first = least(points[:1]) / times[:1]
    found = np.where(at > points[-1], least(at) / last, found)
    below: Times = np.where(at < points[0], least(at) / first, found)
    return below


def nearest(distances: Times, tapered: bool) -> tuple[npt.NDArray[np.intp], Times]:
    """Return the neighbours of each query by a row of distances to all points, and their weights.

    Weights fall with the square of the distance; tapered ones reach 0 at the distance of the next neighbour.
    """
    count = min(_NEIGHBOURS, distances.shape[1])
    within = min(count + 1, distances.shape[1])
    chosen = np.argpartition(distances, within - 1, axis=1)[:, :within]
    near = np.take_along_axis(distances, chosen, axis=1)
    order = np.argsort(near, axis=1, kind="stable")
    chosen, near = np.take_along_axis(chosen, order, axis=1), np.take_along_axis(near, order, axis=1)
    limit = near[:, -1:]
    chosen, near = chosen[:, :count], np.maximum(near[:, :count], 1e-12)
    weights = near**-2.0
    if tapered and within > count:
        weights = np.maximum(((limit - near) / (limit * near)) ** 2, 1e-12)
    return chosen, weights / weights.sum(axis=1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Lattice:
    """Times by heads and two other sizes, NaN where nothing was measured: interpolated first on the inner axis."""

    heads: Times
    outer: Times
    inner: Times
    times: Times
    roots: bool
    """Whether the square roots of times are linear on the outer axis."""
    _points: Times = field(init=False, repr=False, compare=False)
    _filled: Times = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = np.argwhere(~np.isnan(self.times))
        axes = (self.heads, self.outer, self.inner)
        points = np.stack([axis[places[:, number]] for number, axis in enumerate(axes)])
        object.__setattr__(self, "_points", points)
        object.__setattr__(self, "_filled", _filled(self.times, self.inner))

    def at(self, heads: float, outer: Times, inner: Times, least: Least) -> Times:
        """Return the times of queries with `heads` heads."""
        found = self._inside(heads, outer, inner, least)
        outside = np.isnan(found)
        if outside.any():
            queries = np.stack([np.full(int(outside.sum()), heads), outer[outside], inner[outside]])
            blocks = np.split(queries, range(_BLOCK, queries.shape[1], _BLOCK), axis=1)
            found[outside] = np.concatenate([self._outside(each, least) for each in blocks])
        return found

    def _inside(self, heads: float, outer: Times, inner: Times, least: Least) -> Times:
        measured = np.flatnonzero(~np.isnan(self._filled).all(axis=(1, 2)))
        axis = self.heads[measured]
        upper = int(np.searchsorted(axis, heads))
        if upper == len(axis) or (upper == 0 and axis[0] != heads):
            return np.full(len(outer), np.nan)
        if axis[upper] == heads:
            return self._plane(int(measured[upper]), outer, inner, least)
        few, many = (self._plane(int(measured[place]), outer, inner, least) for place in (upper - 1, upper))
        share = (heads - axis[upper - 1]) / (axis[upper] - axis[upper - 1])
        wanted = least(np.full(len(outer), heads), outer, inner)
        found: Times = few * (1 - share) + many * share
        for other, there in ((few, axis[upper - 1]), (many, axis[upper])):
            scaled = other * wanted / least(np.full(len(outer), there), outer, inner)
            np.copyto(found, scaled, where=np.isnan(found))
        return found

    def _plane(self, place: int, outer: Times, inner: Times, least: Least) -> Times:
        """Return the times with as many heads as were measured."""
        plane = self._filled[place]
        rows = np.flatnonzero(~np.isnan(plane).all(axis=1))
        axis, plane = self.outer[rows], plane[rows]
        upper = np.searchsorted(axis, outer)
        inside = (upper < len(axis)) & (outer >= axis[0])
        upper = np.minimum(upper, len(axis) - 1)
        exact = axis[upper] == outer
        lower = np.where(exact, upper, np.maximum(upper - 1, 0))
        width = np.maximum(axis[upper] - axis[lower], 1.0)
        short, long = (
            _on_rows(plane, lower, self.inner, inner),
            _on_rows(plane, upper, self.inner, inner),
        )
        share = (outer - axis[lower]) / width
        if self.roots:
            found = (np.sqrt(short) * (1 - share) + np.sqrt(long) * share) ** 2
        else:
            found = short * (1 - share) + long * share
        heads = np.full(len(outer), self.heads[place])
        wanted = least(heads, outer, inner)
        for other, there in ((short, axis[lower]), (long, axis[upper])):
            found = np.where(np.isnan(found), other * wanted / least(heads, there, inner), found)
        found[~inside] = np.nan
        return found

    def _outside(self, queries: Times, least: Least) -> Times:
        points = self._points
        squares = np.square(np.log(queries[0, 0]) - np.log(points[0]))[None, :]  # all have as many heads
        for query, point in zip(queries[1:], points[1:], strict=True):
            apart = np.log(query)[:, None] - np.log(point)
            squares = squares + np.square(apart, out=apart)
        chosen, weights = nearest(np.sqrt(squares, out=squares), tapered=True)
        near = points[:, chosen.ravel()]
        times = self.times[~np.isnan(self.times)][chosen.ravel()]
        shares = (least(*near) / times).reshape(chosen.shape)
        found: Times = least(*queries) / (weights * shares).sum(axis=1)
        return found


def _on_rows(plane: Times, rows: npt.NDArray[np.intp], axis: Times, inner: Times) -> Times:
    """Return the times of queries, each on a row of a plane, NaN beyond what was measured."""
    upper = np.searchsorted(axis, inner)
    inside = upper < len(axis)
    upper = np.minimum(upper, len(axis) - 1)
    exact = axis[upper] == inner
    lower = np.maximum(upper - 1, 0)
    few, many = plane[rows, lower], plane[rows, upper]
    share = (inner - axis[lower]) / np.where(upper > lower, axis[upper] - axis[lower], 1.0)
    found = np.where(exact, many, few * (1 - share) + many * share)
    found[~inside | (inner < axis[0])] = np.nan
    return found


def _filled(times: Times, axis: Times) -> Times:
    """Return times with those between measured ones filled in."""
    filled = times.copy()
    for row in filled.reshape(-1, times.shape[-1]):
        measured = np.flatnonzero(~np.isnan(row))
        if len(measured) and len(measured) < measured[-1] - measured[0] + 1:
            between = slice(measured[0], measured[-1] + 1)
            row[between] = np.interp(axis[between], axis[measured], row[measured])
    return filled


# The least times of operations: of their arithmetic at the peak rate of a GPU, and of moving their bytes.
#
# Measured times are compared with these where an operation lies beyond what was measured: it is taken to reach the
# share of the peak that its neighbours reach.


class Peaks(NamedTuple):
    """Peak rates of a GPU, each per microsecond: operations in 16, 8 and 4 bits, and bytes. 0: not in that width."""

    in_16_bits: float
    in_8_bits: float
    in_4_bits: float
    bytes: float

    def operations(self, weights: str) -> float:
        """Return the rate of arithmetic of weights: in 16 bits where the GPU does not compute in their format."""
        in_format = {4: self.in_4_bits, 8: self.in_8_bits}.get(_BITS_OF_MATH.get(weights, 16), 0.0)
        return in_format or self.in_16_bits


class LeastTimes(NamedTuple):
    """Microseconds of an operation at peak rates."""

    math_us: Times
    memory_us: Times

    @property
    def us(self) -> Times:
        longer: Times = np.maximum(self.math_us, self.memory_us)
        return longer


START_US = 15.0
"""Of what a kernel takes beyond its least time, the part up to this starts it and does not grow with its work.
Steps that decode are closest with it, of 0, 3, 6, 10, 15, 20 and no limit, where measured GPUs were left out."""


def scaled(times: Times, least_there: Times, least_here: Times) -> Times:
    """Return times of an operation from those of another one, or on another GPU, and the least times of both."""
    excess = np.maximum(times - least_there, 0.0)
    start = np.minimum(excess, START_US)
    slower: Times = start + (times - start) * least_here / np.maximum(least_there, 1e-9)
    return slower


MXFP4_WITH_MXFP8 = "mxfp4 with mxfp8"
"""Experts in MXFP4 whose inputs are brought to MXFP8."""
_BITS_OF_MATH = {"fp8": 8, "block fp8": 8, MXFP4_WITH_MXFP8: 8, "nvfp4": 4}
_BYTES = {
    "fp8": 1.0, "block fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625, "int4": 0.5, "mxfp4": 0.5, MXFP4_WITH_MXFP8: 0.5,
}  # fmt: skip
_LATENT, _ROTATED, _HEAD = 512, 64, 128
"""Sizes of latent attention in all models that have it: the latent, the rotated part, and a head."""


class _SparseSizes(NamedTuple):
    """Values of the weights of a layer: those that all GPUs have, and those of each head that tokens pass and that are
    read. The indexer does `indexer` operations per pair of a new token with one in the context."""

    shared: int
    head: int
    read: int
    indexer: int
    heads: int
    """Of the whole model."""


_SPARSE_SIZES = {
    "DeepseekV32ForCausalLM": _SparseSizes(29_097_984, 1_343_488, 1_212_416, 8192, 128),
    "GlmMoeDsaForCausalLM": _SparseSizes(25_493_504, 2_326_528, 2_097_152, 4096, 64),
}


def _sizes_of(attention: SparseLatentAttention) -> _SparseSizes:
    return _SPARSE_SIZES.get(attention.architecture, _SPARSE_SIZES["DeepseekV32ForCausalLM"])


def matmul_least(matmul: Matmul, tokens: Times, peaks: Peaks) -> LeastTimes:
    """Return the least times of a multiplication of `tokens`."""
    rows, columns = matmul.rows, matmul.columns
    values = tokens * rows + rows * float(columns) + tokens * columns
    return LeastTimes(
        2.0 * tokens * rows * columns / peaks.operations(matmul.weights),
        _BYTES.get(matmul.weights, 2.0) * values / peaks.bytes,
    )


def experts_least(experts: Experts, tokens: Times, peaks: Peaks) -> LeastTimes:
    """Return the least times of routed experts for `tokens`, on one of the GPUs that share them."""
    hidden, inner, rows = experts.hidden_size, experts.inner_size, tokens * experts.chosen
    matrices = 3 if experts.has_gate else 2
    of_gpu = rows / experts.ep
    read = hidden * inner * matrices / experts.tp * np.minimum(experts.experts / experts.ep, rows)
    moved = 2 * hidden * of_gpu + matrices * inner / experts.tp * of_gpu
    return LeastTimes(
        2.0 * matrices * hidden * inner * of_gpu / experts.tp / peaks.operations(experts.weights),
        _BYTES.get(experts.weights, 2.0) * (read + moved) / peaks.bytes,
    )


def prompt_least(
    attention: AttentionOperation, heads: Times, requests: Times, tokens: Times, before: Times, peaks: Peaks
) -> LeastTimes:
    """Return the least times of attention of `heads` heads to prompts of `tokens` new tokens after `before` tokens."""
    length = tokens + before
    pairs = (length**2 - before**2) / 2
    if isinstance(attention, HeadAttention):
        window = attention.window_tokens
        seen = np.where((window > 0) & (length > window), tokens * float(window), pairs)
        values = 4 * heads * tokens + 2 * _kv_heads(attention, heads) * length * _kv_bytes(attention.kv_dtype)
        return LeastTimes(
            4 * requests * heads * attention.head_size * seen / peaks.in_16_bits,
            attention.head_size * requests * values / peaks.bytes,
        )
    size = _LATENT + _ROTATED
    if isinstance(attention, LatentAttention):
        per_head = 2 * _HEAD + _ROTATED
        moved = heads * per_head * (2 * tokens + _kv_bytes(attention.kv_dtype) * length)
        return LeastTimes(2 * requests * heads * per_head * pairs / peaks.in_16_bits, requests * moved / peaks.bytes)
    if isinstance(attention, SparseLatentAttention):
        sizes = _sizes_of(attention)
        dense = np.minimum(length, TOKENS_CHOSEN) ** 2 / 2 - np.minimum(before, TOKENS_CHOSEN) ** 2 / 2
        seen = dense + TOKENS_CHOSEN * (np.maximum(length, TOKENS_CHOSEN) - np.maximum(before, TOKENS_CHOSEN))
        math = tokens * (sizes.shared + sizes.head * heads) + 2 * (size + _LATENT) * heads * seen
        math = math + sizes.indexer * tokens * length * (length > TOKENS_CHOSEN)
        kept = np.minimum(length, TOKENS_CHOSEN) * size * _kv_bytes(attention.kv_dtype)
        moved = (
            sizes.shared
            + sizes.read * heads
            + requests * (heads * (768 * tokens + kept) + INDEX_KEY_BYTES * length * (length > TOKENS_CHOSEN))
        )
        return LeastTimes(requests * math / peaks.in_16_bits, moved / peaks.bytes)
    return _state_least(attention, requests * tokens, peaks)


def decode_least(
    attention: AttentionOperation, heads: Times, requests: Times, context: Times, peaks: Peaks
) -> LeastTimes:
    """Return the least times of attention of `heads` heads where requests with `context` tokens decode."""
    if isinstance(attention, HeadAttention):
        window = attention.window_tokens
        seen = np.minimum(context - 1, window) if window else context - 1
        kv_bytes = _kv_bytes(attention.kv_dtype)
        values = 4 * heads + 2 * _kv_heads(attention, heads) * seen * kv_bytes
        rate = peaks.operations("fp8" if attention.kv_dtype == "fp8" else "bfloat16")
        return LeastTimes(
            4 * requests * heads * attention.head_size * seen / rate,
            requests * attention.head_size * values / peaks.bytes,
        )
    size = _LATENT + _ROTATED
    if isinstance(attention, LatentAttention):
        kv_bytes, bytes_of = _kv_bytes(attention.kv_dtype), _BYTES.get(attention.weights, 2.0)
        absorbed = 2 * _HEAD * _LATENT
        math_us = requests * heads * 2 * absorbed / peaks.operations(attention.weights)
        rate = peaks.operations("fp8" if attention.kv_dtype == "fp8" else "bfloat16")
        math_us = math_us + requests * heads * 2 * (size + _LATENT) * context / rate
        moved = heads * (absorbed * bytes_of + requests * (1280 * bytes_of + 2176))
        return LeastTimes(math_us, (moved + requests * (context - 1) * size * kv_bytes) / peaks.bytes)
    if isinstance(attention, SparseLatentAttention):
        sizes = _sizes_of(attention)
        seen = np.minimum(context, TOKENS_CHOSEN)
        math = sizes.shared + sizes.head * heads + 2 * (size + _LATENT) * heads * seen + sizes.indexer * context
        kept = INDEX_KEY_BYTES * context + size * _kv_bytes(attention.kv_dtype) * seen
        moved = sizes.shared + sizes.read * heads + requests * kept
        return LeastTimes(requests * math / peaks.in_16_bits, moved / peaks.bytes)
    return _state_least(attention, requests, peaks)


def _state_least(net: DeltaNet, tokens: Times, peaks: Peaks) -> LeastTimes:
    """Return the least times of a gated delta net, whose state every token updates and reads."""
    values = net.value_heads * net.value_head_size
    moved = 2.0 * tokens * (2 * net.key_heads * net.key_head_size + 2 * values)
    return LeastTimes(6.0 * tokens * values * net.key_head_size / peaks.in_16_bits, moved / peaks.bytes)


def _kv_heads(attention: HeadAttention, heads: Times) -> Times:
    """Return the KV heads, as many as heads where a model does not share them."""
    shared: Times = np.where(attention.heads == attention.kv_heads, heads, float(attention.kv_heads))
    return shared


def _kv_bytes(kv_dtype: str) -> float:
    return 1.0 if kv_dtype == "fp8" else 2.0


def with_more_heads(
    attention: LatentAttention | SparseLatentAttention,
) -> Sequence[LatentAttention | SparseLatentAttention]:
    """Return attention with its heads on this GPU, and with two, four, ... times as many, up to all of the model."""
    most = attention.all_heads if isinstance(attention, LatentAttention) else _sizes_of(attention).heads
    return [attention._replace(heads=attention.heads << each) for each in range((most // attention.heads).bit_length())]


def latent_cache_bytes(attention: LatentAttention | SparseLatentAttention, context: Times) -> Times:
    """Return the bytes that requests with so many tokens each read in one layer."""
    per_token = LATENT_BYTES[attention.kv_dtype]
    if isinstance(attention, LatentAttention):
        return per_token * context
    return per_token * np.minimum(context, TOKENS_CHOSEN) + INDEX_KEY_BYTES * context


# Tables of measured kernels: the times of one GPU, looked up one operation at a time for many sizes at once.
#
# The files in `measured` hold times of kernels of vLLM 0.24 (on A100, 0.14), and where `baking` takes those of other
# engines, of TensorRT-LLM 1.3.0rc20 and SGLang 0.5.14. NOTICE.md beside them states where they come from.

MeasuredOperation = Matmul | Experts | AllReduce
MATMUL_WEIGHTS = ("bfloat16", "fp8", "block fp8", "nvfp4", "int8", "int4")
EXPERT_WEIGHTS = ("bfloat16", "fp8", "block fp8", "nvfp4", "int4", "mxfp4", MXFP4_WITH_MXFP8)
"""Types of weights that kernels were measured with, on one GPU or another."""
_TAIL_OF_MATMULS = 3
"""Last measured points of a multiplication that say how it goes on."""
_NARROWEST = 4.0
"""How many times narrower than any that was measured a multiplication may be."""
_FARTHEST = log(4) + 1e-6
"""Distance of the logarithms of sizes beyond which measured multiplications are left out, unless none is nearer, and
experts were not measured."""
_SPREAD = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Requests that decode have contexts of 0.9 to 1.1 times their mean, evenly spread."""
_SHORTEST_PREFIX = 128
"""Tokens before a prompt with which sparse attention was measured."""
_OTHER_WEIGHTS = "bfloat16"
"""Weights in the tables of latent attention in place of those that have no table."""


class Tables:
    """The tables of one GPU. Times are microseconds of one execution, on one GPU of those that share the work."""

    def __init__(self, gpu: str) -> None:
        if gpu not in measured_gpus():
            raise EngineError(f"no kernels were measured on {gpu}, only on {', '.join(measured_gpus())}")
        self._gpu = gpu

    def token_us(self, operation: MeasuredOperation, tokens: Times) -> Times:
        """Return the times of an operation on numbers of tokens. Raises EngineError when it was not measured."""
        if isinstance(operation, Matmul):
            return self._matmul_us(operation, tokens)
        if isinstance(operation, Experts):
            return self._experts_us(operation, tokens)
        sizes, points, times = self._curves(ALL_REDUCE, "bfloat16", operation)
        at = np.flatnonzero(sizes[:, 0] == operation.gpus)
        if not len(at):
            raise self._not_measured(operation)
        return along(points, times[at[0]], tokens * operation.width, lambda values: values)

    def context_us(self, attention: AttentionOperation, requests: Times, new: Times, before: Times) -> Times:
        """Time of the attention of `requests` prompts with `new` tokens each, after `before` tokens."""
        if isinstance(attention, DeltaNet):
            return self._delta_net_us(attention, PROMPT, requests, new)
        if isinstance(attention, SparseLatentAttention):
            return self._sparse_prompts_us(attention, requests, new, before)
        length = new + before
        least = _prompt_least(attention, self._peaks(_KIND_OF[type(attention)]))
        lattice = self._lattice(attention, PROMPT, *_group_of(attention), roots=True)
        whole = lattice.at(attention.heads, length, requests, least)
        return whole * (length**2 - before**2) / length**2

    def decode_us(self, attention: AttentionOperation, requests: Times, context: Times) -> Times:
        """Time of the attention of `requests` that decode, each with `context` tokens, the new one included."""
        if isinstance(attention, DeltaNet):
            return self._delta_net_us(attention, DECODE, requests, np.ones(len(requests)))
        peaks = self._peaks(_KIND_OF[type(attention)])

        def least(heads: Times, of_requests: Times, lengths: Times) -> Times:
            return decode_least(attention, heads, of_requests, lengths, peaks).us

        lattice = self._lattice(attention, DECODE, *_group_of(attention), roots=False)
        if not isinstance(attention, HeadAttention):
            return lattice.at(attention.heads, requests, context, least)
        low, high = np.floor(0.9 * context), np.floor(1.1 * context)
        spread = [np.maximum(np.floor(low + share * (high - low)), 1.0) for share in _SPREAD]
        lengths, batches = np.concatenate(spread), np.tile(requests, len(_SPREAD))
        found = lattice.at(attention.heads, batches, lengths, least)
        mean: Times = found.reshape(len(_SPREAD), -1).mean(axis=0)
        return mean

    def _matmul_us(self, matmul: Matmul, tokens: Times) -> Times:
        if matmul.weights not in MATMUL_WEIGHTS:
            raise _unknown_weights(matmul.weights, MATMUL_WEIGHTS)
        measured = _Matmuls(*self._curves(MATMUL, matmul.weights, matmul), self._peaks(MATMUL))
        exact = np.flatnonzero((measured.sizes == (matmul.rows, matmul.columns)).all(axis=1))
        if len(exact):
            return measured.site_us(int(exact[0]), matmul, tokens)
        if (np.array([matmul.rows, matmul.columns]) * _NARROWEST < measured.sizes.min(axis=0)).any():
            raise self._not_measured(matmul)
        found = np.zeros(len(tokens))
        ends = measured.ends()
        for end in sorted(set(ends.tolist())):  # only those measured with so many tokens tell something of so many
            wanted = (found == 0) & ((tokens <= end) | (end == ends.max()))
            if wanted.any():
                found[wanted] = measured.between_us(np.flatnonzero(ends >= end), matmul, tokens[wanted])
        return found

    def _experts_us(self, experts: Experts, tokens: Times) -> Times:
        if experts.weights not in EXPERT_WEIGHTS:
            raise _unknown_weights(experts.weights, EXPERT_WEIGHTS)
        sizes, points, times = self._curves(EXPERTS, experts.weights, experts)
        asked = (
            experts.hidden_size, experts.inner_size, experts.experts, experts.chosen, experts.tp, experts.ep
        )  # fmt: skip
        at = np.flatnonzero((sizes == np.array(asked)).all(axis=1))
        if not len(at):
            raise self._not_measured(experts)
        peaks = self._peaks(EXPERTS)
        return along(points, times[at[0]], tokens, lambda each: experts_least(experts, each, peaks).us)

    def nearest_experts_us(self, experts: Experts, tokens: Times) -> Times:
        """Return the times of experts by those of the nearest sizes, with as many tokens for each expert.

        They reach the share of the peak that these reach, beyond a start. Raises EngineError where none is near.
        """
        sizes, points, times = self._curves(EXPERTS, experts.weights, experts)
        measured = [
            experts._replace(hidden_size=hidden, inner_size=inner, experts=count, chosen=chosen, tp=tp, ep=ep)
            for hidden, inner, count, chosen, tp, ep in sizes.tolist()
        ]
        asked = _coordinates(experts)
        distances = np.array([[float(np.linalg.norm(_coordinates(each) - asked)) for each in measured]])
        if distances.min() > _FARTHEST:
            raise self._not_measured(experts)
        places, weights = nearest(distances, tapered=False)
        peaks, found = self._peaks(EXPERTS), np.zeros(len(tokens))
        for place, weight in zip(places[0].tolist(), weights[0].tolist(), strict=True):
            site = measured[place]
            more = experts.chosen / experts.experts / (site.chosen / site.experts)
            alike = np.maximum(1.0, more * tokens)
            there = along(points, times[place], alike, partial(_experts_least_us, site, peaks))
            here_us, there_us = _experts_least_us(experts, peaks, tokens), _experts_least_us(site, peaks, alike)
            found += weight * scaled(there, there_us, here_us)
        return found

    def _sparse_prompts_us(self, attention: SparseLatentAttention, requests: Times, new: Times, before: Times) -> Times:
        """Prompts after few tokens lie between those after none and after 128, which were measured. With more tokens
        before them they reach the same share of the peak as after 128."""
        name = _group_of(attention)[1]
        peaks = self._peaks(SPARSE)
        alone, after = (
            self._lattice(attention, PROMPT, SPARSE, f"{prefix}.{name}", roots=False).at(
                attention.heads, new, requests, _prompt_least(attention, peaks, prefix)
            )
            for prefix in (0, _SHORTEST_PREFIX)
        )
        heads = np.full(len(new), float(attention.heads))
        wanted = prompt_least(attention, heads, requests, new, before, peaks).us
        measured = prompt_least(attention, heads, requests, new, np.full(len(new), float(_SHORTEST_PREFIX)), peaks).us
        share = np.minimum(before / _SHORTEST_PREFIX, 1.0)
        return np.where(before > _SHORTEST_PREFIX, after * wanted / measured, alone * (1 - share) + after * share)

    def _delta_net_us(self, net: DeltaNet, phase: str, requests: Times, tokens: Times) -> Times:
        peaks = self._peaks(DELTA_NET)
        name = ".".join(
            map(
                str,
                (
                    net.hidden_size, net.key_heads, net.key_head_size, net.value_heads, net.value_head_size,
                    net.conv_kernel,
                ),
            )
        )  # fmt: skip
        least = _prompt_least(net, peaks)
        parts = (
            self._lattice(net, f"{phase}.{part}", DELTA_NET, name, roots=False) for part in ("convolution", "rule")
        )
        return sum((part.at(1, tokens, requests, least) for part in parts), np.zeros(len(tokens)))

    def _curves(self, kind: str, name: str, operation: object) -> tuple[npt.NDArray[Any], Times, Times]:
        path = _path(self._gpu, kind)
        sizes, points, times = (array_of(path, f"{name}{part}") for part in (".sizes", ".points", TIMES))
        if sizes is None or points is None or times is None:
            raise self._not_measured(operation)
        return sizes, points, times

    def _lattice(self, attention: AttentionOperation, phase: str, kind: str, name: str, *, roots: bool) -> Lattice:
        found = _lattice(_path(self._gpu, kind), phase, name, roots)
        if found is None:
            raise self._not_measured(attention)
        return found

    def _peaks(self, kind: str) -> Peaks:
        rates = array_of(_path(self._gpu, kind), "peaks")
        return Peaks(*(1e-6 * rates).tolist()) if rates is not None else Peaks(1.0, 1.0, 1.0, 1.0)

    def _not_measured(self, operation: object) -> EngineError:
        return EngineError(f"the tables of {self._gpu} have no times of {operation}")


class _Matmuls(NamedTuple):
    """The multiplications with one type of weights: rows and columns of each, and its times by tokens."""

    sizes: npt.NDArray[Any]
    points: Times
    times: Times
    peaks: Peaks

    def ends(self) -> Times:
        """Return the most tokens that each was measured with."""
        places = self.times.shape[1] - 1 - np.argmax(~np.isnan(self.times[:, ::-1]), axis=1)
        ends: Times = self.points[places]
        return ends

    def site_us(self, place: int, kind: Matmul, tokens: Times) -> Times:
        """Return the times of one that was measured."""
        site = self._site(place, kind)
        return along(
            self.points, self.times[place], tokens, lambda at: matmul_least(site, at, self.peaks).us, _TAIL_OF_MATMULS
        )

    def between_us(self, places: npt.NDArray[np.intp], matmul: Matmul, tokens: Times) -> Times:
        """Return the times of one that reaches the shares of the peak that its neighbours among some reach."""
        apart = np.log(self.sizes[places]) - np.log([matmul.rows, matmul.columns])
        distances = np.sqrt(np.square(apart).sum(axis=1))
        chosen, weights = nearest(distances[None, :], tapered=False)
        weights[0] *= distances[chosen[0]] <= max(_FARTHEST, float(distances.min()))
        weights /= weights.sum()
        shares = np.zeros(len(tokens))
        for place, weight in zip(places[chosen[0]].tolist(), weights[0].tolist(), strict=True):
            least = matmul_least(self._site(place, matmul), tokens, self.peaks).us
            shares += weight * least / self.site_us(place, matmul, tokens)
        return matmul_least(matmul, tokens, self.peaks).us / shares

    def _site(self, place: int, kind: Matmul) -> Matmul:
        return kind._replace(rows=int(self.sizes[place, 0]), columns=int(self.sizes[place, 1]))


def _coordinates(experts: Experts) -> Times:
    """Return the sizes of experts on one GPU, of which those near each other have kernels alike."""
    sizes = (
        experts.hidden_size, experts.inner_size / experts.tp, experts.experts / experts.ep, experts.chosen, experts.ep
    )  # fmt: skip
    return np.log(np.array(sizes, dtype=np.float64))


def _experts_least_us(experts: Experts, peaks: Peaks, tokens: Times) -> Times:
    return experts_least(experts, tokens, peaks).us


_KIND_OF: dict[type, str] = {
    HeadAttention: HEADS,
    LatentAttention: LATENT,
    SparseLatentAttention: SPARSE,
    DeltaNet: DELTA_NET,
}


def _path(gpu: str, kind: str) -> Path:
    return MEASURED / f"{gpu}.{kind}.npz"


def _group_of(attention: HeadAttention | LatentAttention | SparseLatentAttention) -> tuple[str, str]:
    """Return the kind and the name of the table of an attention."""
    if isinstance(attention, HeadAttention):
        kv_heads = 0 if attention.kv_heads == attention.heads else attention.kv_heads
        return HEADS, f"{kv_heads}.{attention.head_size}.{attention.window_tokens}.{attention.kv_dtype}"
    if isinstance(attention, LatentAttention):
        weights = "block fp8" if attention.weights in ("fp8", "block fp8") else _OTHER_WEIGHTS
        return LATENT, f"{attention.kv_dtype}.{weights}"
    return SPARSE, f"{attention.architecture}.{attention.kv_dtype}"


def _prompt_least(
    attention: AttentionOperation, peaks: Peaks, before: int = 0
) -> Callable[[Times, Times, Times], Times]:
    def least(heads: Times, lengths: Times, requests: Times) -> Times:
        prefixes = np.full(len(lengths), float(before))
        return prompt_least(attention, heads, requests, lengths, prefixes, peaks).us

    return least


@lru_cache(maxsize=64)
def _lattice(path: Path, phase: str, name: str, roots: bool) -> Lattice | None:
    axes = [array_of(path, f"{phase}.axis{number}") for number in range(3)]
    times = array_of(path, f"{phase}.{name}{TIMES}")
    if times is None:
        return None
    heads, lengths, requests = (np.asarray(axis, dtype=np.float64) for axis in axes)
    if phase == DECODE:
        return Lattice(heads, requests, lengths, times.transpose(0, 2, 1), roots)
    return Lattice(heads, lengths, requests, times, roots)


def _unknown_weights(weights: str, known: tuple[str, ...]) -> EngineError:
    return EngineError(f"no kernels with weights in {weights} were measured, only in {', '.join(known)}")


# Kernel times of GPUs without tables, scaled from the nearest GPU that has them.
#
# The time of an operation on the measured GPU has two parts: the least time that its arithmetic or its bytes take at
# peak rates, and an excess. On the other GPU the least time is that at its own peak rates. Of the excess up to
# `START_US` starts the kernel and is kept; the rest is a share of the peak that is not reached, and grows like the
# least time. Bytes count where memory limits an operation, arithmetic in the format of the weights where that does,
# and the rate of the link for exchanges.
#
# The nearest GPU has the most similar compute capability, and among equal ones the most similar ratio of bandwidth to
# arithmetic. Where it has no table of an operation either, the next one that has is taken.

_BYTES_PER_VALUE = 2


class ScalingErrors(NamedTuple):
    """Medians of absolute errors of the kernels of steps, as fractions."""

    decodes: float
    prompts: float


LIKE_IT, UNLIKE = "a GPU like it", "a GPU unlike it"
LEFT_OUT: dict[str, ScalingErrors] = {
    LIKE_IT: ScalingErrors(0.02, 0.05),
    UNLIKE: ScalingErrors(0.09, 0.14),
}
"""By docs/kernels.md: each measured GPU was left out and scaled from the nearest other one."""
_LIKE_CAPABILITY, _LIKE_RATES = 0.3, 2.0
"""Most that compute capabilities of GPUs that are alike differ, as those of B200 and B300, and factor between rates."""


def likeness(gpu: GpuSpec, source: GpuSpec) -> str:
    """Return whether GPUs are alike, in their generation and their rates, as a key of `LEFT_OUT`."""
    apart = round(abs(gpu.compute_capability - source.compute_capability), 1)
    is_like = apart <= _LIKE_CAPABILITY and int(gpu.compute_capability) == int(source.compute_capability)
    rates = (gpu.tflops / source.tflops, gpu.bandwidth_tb_s / source.bandwidth_tb_s)
    return LIKE_IT if is_like and all(1 / _LIKE_RATES <= rate <= _LIKE_RATES for rate in rates) else UNLIKE


def nearest_gpus(gpu: GpuSpec, measured: tuple[GpuSpec, ...]) -> tuple[GpuSpec, ...]:
    """Return measured GPUs, the nearest first."""

    def distance(other: GpuSpec) -> tuple[float, float, str]:
        generations = abs(other.compute_capability - gpu.compute_capability)
        ratios = np.log(other.bandwidth_tb_s / other.tflops) - np.log(gpu.bandwidth_tb_s / gpu.tflops)
        return generations, abs(float(ratios)), other.name

    return tuple(sorted(measured, key=distance))


@lru_cache(maxsize=1)
def gpus_with_tables() -> tuple[GpuSpec, ...]:
    """Return all GPUs that have tables."""
    from blis_sim.engine.latency.catalogue import load_gpu  # only GPUs without tables look at others

    return tuple(load_gpu(name) for name in measured_gpus())


def peaks_of(gpu: GpuSpec) -> Peaks:
    """Return the peak rates of a GPU."""
    return Peaks(1e6 * gpu.tflops, 1e6 * gpu.tflops_fp8, 1e6 * gpu.tflops_fp4, 1e6 * gpu.bandwidth_tb_s)


class ScaledTables:
    """Tables of a GPU whose missing operations are scaled from GPUs that have them, with `Tables`'s methods."""

    def __init__(self, gpu: GpuSpec, measured: tuple[GpuSpec, ...]) -> None:
        """Take the times of `gpu` itself where it is among the measured ones."""
        self._gpu = gpu
        self._sources = (
            *(each for each in measured if each.name == gpu.name),
            *nearest_gpus(gpu, tuple(each for each in measured if each.name != gpu.name)),
        )
        self.scaled_from: dict[str, None] = {}
        """GPUs that times were scaled from, in the order in which they were needed."""
        self.has_unmeasured_experts = False
        """Whether experts have sizes that no GPU has."""

    def note(self) -> str:
        """Return what was scaled from which GPU, with the error to expect; empty where nothing was."""
        if not self.scaled_from:
            return ""
        sources = [each for each in self._sources if each.name in self.scaled_from]
        errors = [LEFT_OUT[likeness(self._gpu, each)] for each in sources]
        has_own = any(each.name == self._gpu.name for each in self._sources)
        return (
            f"{'some ' if has_own else ''}kernels of {self._gpu.name} were not measured. They are scaled from "
            f"{' and '.join(self.scaled_from)}, expected to be {max(each.decodes for each in errors):.0%} off in "
            f"steps that decode and {max(each.prompts for each in errors):.0%} in those of prompts (medians of GPUs "
            "left out)"
        )

    def token_us(self, operation: MeasuredOperation, tokens: Times) -> Times:
        """Return the times of an operation on numbers of tokens. Raises EngineError when no GPU has any.

        Experts of sizes that no GPU has take what the nearest sizes take.
        """

        def least(gpu: GpuSpec) -> LeastTimes:
            if isinstance(operation, Matmul):
                return matmul_least(operation, tokens, peaks_of(gpu))
            if isinstance(operation, Experts):
                return experts_least(operation, tokens, peaks_of(gpu))
            rounds = 2 * (operation.gpus - 1) / operation.gpus
            exchanged = rounds * _BYTES_PER_VALUE * operation.width * tokens
            return LeastTimes(exchanged / (1e3 * max(gpu.link_gb_s(operation.gpus), 1.0)), 0.0 * tokens)

        sources = self._sources
        if isinstance(operation, AllReduce):  # first those whose links are of the same kind
            sources = tuple(sorted(sources, key=lambda each: (each.nvlink_gb_s > 0) != (self._gpu.nvlink_gb_s > 0)))
        try:
            return self._first(sources, lambda tables: tables.token_us(operation, tokens), least)
        except EngineError:
            if not isinstance(operation, Experts):
                raise
            experts = operation
        self.has_unmeasured_experts = True
        return self._first(sources, lambda tables: tables.nearest_experts_us(experts, tokens), least)

    def context_us(self, attention: AttentionOperation, requests: Times, new: Times, before: Times) -> Times:
        """Time of the attention of `requests` prompts with `new` tokens each, after `before` tokens."""

        def least(gpu: GpuSpec) -> LeastTimes:
            return prompt_least(attention, _heads_of(attention, new), requests, new, before, peaks_of(gpu))

        return self._first(self._sources, lambda tables: tables.context_us(attention, requests, new, before), least)

    def decode_us(self, attention: AttentionOperation, requests: Times, context: Times) -> Times:
        """Time of the attention of `requests` that decode, each with `context` tokens, the new one included."""

        def least(gpu: GpuSpec) -> LeastTimes:
            return decode_least(attention, _heads_of(attention, context), requests, context, peaks_of(gpu))

        return self._first(self._sources, lambda tables: tables.decode_us(attention, requests, context), least)

    def _first(
        self, sources: tuple[GpuSpec, ...], look_up: Callable[[Tables], Times], least: Callable[[GpuSpec], LeastTimes]
    ) -> Times:
        """Return the times of the nearest GPU that has any, scaled if it is another one."""
        problem: EngineError | None = None
        for source in sources:
            try:
                times = look_up(Tables(source.name))
            except EngineError as error:
                problem = problem or error
                continue
            if source.name == self._gpu.name:
                return times
            self.scaled_from[source.name] = None
            return scaled(times, least(source).us, least(self._gpu).us)
        raise problem or EngineError(f"no kernels were measured on {self._gpu.name}, nor on another GPU")


def _heads_of(attention: AttentionOperation, sizes: Times) -> Times:
    return np.full(len(sizes), float(getattr(attention, "heads", 1)))
