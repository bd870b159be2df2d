"""How long drafting takes: the passes of a drafter by its bytes and its arithmetic, or the search of a host.

A pass reads the layers of the drafter, the output head and the KV cache of these layers, whatever model times the
steps that verify. Shares of the peak rates are those that `fitted` has learned.
"""

from dataclasses import dataclass, replace

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from blis_sim.engine.latency.coefficients_file import read_coefficients
from blis_sim.engine.latency.fitted import ALL_REDUCE_START_US, StepCoefficients, prefill_pairs
from blis_sim.engine.latency.model_operations import FULL_PRECISION, ShardedModel, step_operations
from blis_sim.engine.latency.operations import (
    TOKENS_CHOSEN,
    AttentionOperation,
    DeltaNet,
    Experts,
    HeadAttention,
    Matmul,
    SparseLatentAttention,
    StepOperations,
    bits_of,
    latent_token_bytes,
)
from blis_sim.engine.latency.wrapped import step_peaks
from blis_sim.engine.memory.drafters import Drafter
from blis_sim.engine.memory.weights import Sharding
from blis_sim.engine.specs import GpuSpec
from blis_sim.engine.speculation import DRAFTERS, Speculation
from blis_sim.engine.units import Micros

PASS_US = 170.0
"""Time of the host, and of gaps between kernels, in a pass of a drafter. Steps of vLLM 0.9 with an EAGLE head for
Llama-3.1-8B on an H100 take 740 us longer for each draft. 570 us of these are the head's layer and the output head."""
SPECULATING_US = 620.0
"""Time that a step which samples takes longer with drafts than without, beside the passes: comparing drafts with
samples, and composing inputs of several tokens. From the same steps, of 2 to 7 drafts, and from those without."""
_NGRAM_TOKEN_US = 0.008
"""Time to search a token of a request for n-grams: the same search, compiled, takes 6 to 11 ns on one core."""
_SUFFIX_REQUEST_US = 20.0
"""Time to look up the drafts of a request in a suffix tree: arXiv 2411.04975."""
_GPU_SEARCH_US = 50.0
"""A few small kernels."""
_BYTES_PER_DRAFT_LOGIT = 8
"""To find the largest logit it is written and read, in 32 bits."""


@dataclass(frozen=True, slots=True)
class HostSearch:
    """Drafts from the text of the requests. Times are microseconds."""

    context_token_us: float = 0.0
    request_us: float = 0.0
    step_us: float = 0.0

    def drafting_us(self, shape: BatchShape, num_sampling: int) -> Micros:
        """Return the time that drafting for `num_sampling` requests adds to a step."""
        if not num_sampling:
            return 0
        context = shape.decode_context_tokens + shape.prefill_context_tokens + shape.num_tokens
        search_us = self.context_token_us * context + self.request_us * num_sampling
        return round(SPECULATING_US + self.step_us + search_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimes:
    """Microseconds of one pass of a drafter, per unit of what it computes."""

    start_us: float
    weights_us: float
    """Weights that any pass reads, those of the output head included."""
    experts_us: float = 0.0
    """All experts; of these a pass reads those that some token is routed to."""
    unrouted_share: float = 0.0
    token_us: float
    """Arithmetic of a token."""
    head_us: float
    """Arithmetic of the logits of a draft."""
    logits_us: float
    """Finding the largest logit of a draft."""
    pair_us: float
    """Arithmetic of a prompt token with a token that it attends to."""
    caches: tuple[tuple[float, int], ...]
    """For each kind of layer the time to read a token of its KV cache, and the most tokens of a request that it reads.
    0 stands for all."""
    all_reduce_us: float = 0.0
    """Adding up the partial results of a token over the GPUs."""

    def time_us(self, tokens: int, drafts: int, requests: int, context: int, pairs: float = 0.0) -> float:
        """Return the time of a pass of `tokens` tokens that yields `drafts`, for requests with `context` tokens
        together."""
        memory_us = self.weights_us + self.experts_us * (1 - self.unrouted_share**tokens)
        compute_us = self.token_us * tokens + self.head_us * drafts
        read_us = sum(each_us * (min(context, most * requests) if most else context) for each_us, most in self.caches)
        others_us = self.logits_us * drafts + self.pair_us * pairs + self.all_reduce_us * tokens
        return self.start_us + max(memory_us, compute_us) + read_us + others_us


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterPasses:
    """A model or a head that drafts. In its first pass it computes the tokens of the step, for its KV cache; in each
    of the others, one token of every request."""

    one: PassTimes
    num_passes: int
    drafts_per_pass: int = 1
    more_rows: int = 0
    """Tokens of a request in the first pass beside those of the step."""
    has_own_rows: bool = False
    """Whether the first pass computes only `more_rows` tokens of each request, and none of the step."""
    has_cache: bool = True

    def drafting_us(self, shape: BatchShape, num_sampling: int) -> Micros:
        """Return the time that drafting for `num_sampling` requests adds to a step.

        Without any, a prompt that goes on passes through the drafter nevertheless, to fill its KV cache.
        """
        if not num_sampling and self.has_own_rows:
            return 0
        one, drafts = self.one, num_sampling * self.drafts_per_pass
        requests = max(1, shape.num_requests)
        tokens = num_sampling * self.more_rows + (0 if self.has_own_rows else shape.num_tokens)
        context = shape.decode_context_tokens + shape.prefill_context_tokens if self.has_cache else 0
        pairs = prefill_pairs(shape) if shape.prefill_requests and not self.has_own_rows else 0.0
        time_us = one.time_us(tokens, drafts, requests, context, pairs)
        if not num_sampling:
            return round(time_us)
        context += shape.num_tokens
        for _ in range(self.num_passes - 1):
            time_us += one.time_us(num_sampling, drafts, requests, context)
            context += num_sampling
        return round(SPECULATING_US + time_us)


def host_search(speculation: Speculation) -> HostSearch | None:
    """Return the search of a method without a model, None for the others."""
    found = {
        "ngram": HostSearch(context_token_us=_NGRAM_TOKEN_US),
        "ngram_gpu": HostSearch(step_us=_GPU_SEARCH_US),
        "suffix": HostSearch(request_us=_SUFFIX_REQUEST_US),
    }
    return found.get(speculation.method)


def drafter_passes(
    speculation: Speculation, drafter: Drafter, kv_dtype: str, gpu: GpuSpec, sharding: Sharding
) -> DrafterPasses:
    """Return the passes of a drafter with a model. Raises EngineError for a layer of unknown times."""
    kind, num_drafts = DRAFTERS[speculation.method], speculation.num_tokens
    if speculation.method == "mtp":
        drafter = _one_layer(drafter)
    one = pass_times(drafter_operations(drafter, kv_dtype, sharding), drafter, gpu, sharding)
    if kind.has_heads:
        return DrafterPasses(one=one, num_passes=1, more_rows=1, has_own_rows=True, has_cache=False)
    if kind.has_own_pass:
        rows = num_drafts + kind.num_more_slots
        return DrafterPasses(one=one, num_passes=1, drafts_per_pass=num_drafts, more_rows=rows, has_own_rows=True)
    if speculation.parallel_drafting:
        rows = speculation.rows_per_request
        return DrafterPasses(one=one, num_passes=1, drafts_per_pass=num_drafts, more_rows=rows)
    return DrafterPasses(one=one, num_passes=num_drafts, more_rows=kind.rows_per_request)


def _one_layer(drafter: Drafter) -> Drafter:
    """Return the drafter of one draft where each of several layers drafts a token of its own."""
    layers = drafter.shape.layers
    return replace(
        drafter,
        shape=drafter.shape._replace(layers=layers[:1]),
        replicated_parameters=drafter.replicated_parameters // len(layers),
    )


def drafter_operations(drafter: Drafter, kv_dtype: str, sharding: Sharding) -> StepOperations:
    """Return the operations of a pass: those of the layers, and of what takes in states of the verifying model."""
    shape = drafter.shape
    operations = step_operations(ShardedModel(shape, sharding, drafter.format_of, kv_dtype))
    beside = [
        Matmul(rows, columns, FULL_PRECISION if (found := drafter.format_of(module)) is None else found.name)
        for module in drafter.projections
        for rows, columns in module.matrices
    ]
    if rows := drafter.replicated_parameters // shape.hidden_size:
        beside.append(Matmul(rows, shape.hidden_size, FULL_PRECISION))
    head_rows = sharding.vocabulary(drafter.head_rows or shape.vocab_size)
    return operations._replace(
        per_token=(*operations.per_token, *((each, 1) for each in beside)),
        head=Matmul(head_rows, shape.hidden_size, FULL_PRECISION),
    )


def pass_times(operations: StepOperations, drafter: Drafter, gpu: GpuSpec, sharding: Sharding) -> PassTimes:
    """Return the times of a pass at the shares of the peak rates that are learned."""
    learned = read_coefficients(LEARNED_COEFFICIENTS).step
    peaks, bytes_per_us = step_peaks(operations, gpu), gpu.bandwidth_tb_s * 1e6
    arithmetic = learned.tokens + learned.tiles + learned.small_tiles
    all_us, one_us, unrouted = _experts_us(operations, bytes_per_us)
    num_layers, num_sums = operations.num_layers, 2 * operations.num_layers if sharding.tp > 1 else 0
    return PassTimes(
        start_us=PASS_US + learned.layer_us * num_layers + ALL_REDUCE_START_US * (num_sums + (sharding.tp > 1)),
        weights_us=learned.weights * (peaks.weights_us - one_us),
        experts_us=learned.weights * all_us,
        unrouted_share=unrouted,
        token_us=arithmetic * peaks.token_us,
        head_us=arithmetic * peaks.head_us,
        logits_us=_BYTES_PER_DRAFT_LOGIT * operations.head.rows / bytes_per_us,
        pair_us=learned.attention * peaks.pair_us,
        caches=tuple(_cache_us(each, count, learned, bytes_per_us) for each, count in operations.attention),
        all_reduce_us=num_sums * _sum_us(drafter.shape.hidden_size, gpu, sharding.tp),
    )


def _experts_us(operations: StepOperations, bytes_per_us: float) -> tuple[float, float, float]:
    """Return the time to read all experts, to read those of one token, and the share that a token leaves out."""
    all_us = one_us = 0.0
    unrouted = 0.0
    for experts, count in operations.per_token:
        if isinstance(experts, Experts):
            matrices = 3 if experts.has_gate else 2
            size = matrices * experts.hidden_size * experts.inner_size / (experts.tp * experts.ep)
            each_us = count * size * bits_of(experts.weights) / 8 / bytes_per_us
            all_us += experts.experts * each_us
            one_us += experts.chosen * each_us
            unrouted = 1 - experts.chosen / experts.experts
    return all_us, one_us, unrouted


def _cache_us(
    attention: AttentionOperation, count: int, learned: StepCoefficients, bytes_per_us: float
) -> tuple[float, int]:
    if isinstance(attention, DeltaNet):
        return 0.0, 0
    if isinstance(attention, HeadAttention):
        width = 1 if attention.kv_dtype == "fp8" else 2
        size, most = 2 * attention.kv_heads * attention.head_size * width, attention.window_tokens
    else:
        size = latent_token_bytes(attention)
        most = TOKENS_CHOSEN if isinstance(attention, SparseLatentAttention) else 0
    return learned.kv * count * size / bytes_per_us, most


def _sum_us(width: int, gpu: GpuSpec, tp: int) -> float:
    """Return the time of a ring to add up `width` values of 16 bits."""
    rate = gpu.link_gb_s(tp) * 1e3
    return 2 * (tp - 1) / tp * 2 * width / rate if rate else 0.0
