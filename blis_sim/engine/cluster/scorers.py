"""Scorers of the weighted router, by name: the score that each gives an instance for a request.

A new scorer is a function and a row of `SCORERS`.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from blis_sim.engine.cluster.snapshot import DEFAULT_CAPACITY_BLOCKS, RoutedPrefixes
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request
from blis_sim.options.registry import Registry

Scores: TypeAlias = Sequence[float]
"""Scores of all candidates, in their order, between 0 and 1: the larger the better."""


def never(_request: Request) -> bool:
    """Return False: scores are computed for each request."""
    return False


def always(_request: Request) -> bool:
    """Return True: scores change with reports of instances only."""
    return True


def without_shared_blocks(request: Request) -> bool:
    """Whether no cache can hold a block of the prompt: all such requests have equal scores."""
    return not request.blocks.num_shareable


def ignore_choice(_request: Request, _instance: int, _state: RoutingState) -> None:
    """Do nothing: the score does not depend on earlier choices."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """`score` rates all candidates for a request; `routed` gets the number of the instance each request was sent to."""

    score: Callable[[Request, RoutingState], Scores]
    routed: Callable[[Request, int, RoutingState], None] = ignore_choice
    reads_in_flight: bool = True
    """Whether scores depend on requests in flight; otherwise instances are advanced less often."""
    reads_caches: bool = False
    """Whether scores depend on the content of KV caches."""
    reads_adapters: bool = False
    """Whether scores depend on the LoRA adapters that instances use."""
    holds: Callable[[Request], bool] = never
    """Whether all requests for which this is true have equal scores until the next reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSettings:
    """Settings of scorers."""

    block_size_tokens: int = 16
    """Tokens per block by which the router compares prompts."""


def from_least_to_most(values: Sequence[float]) -> Scores:
    """Return 0 for the least, 1 for the most, in between by proportion; 1 for all when values are equal."""
    least, most = min(values), max(values)
    if least == most:
        return [1.0] * len(values)
    return [(value - least) / (most - least) for value in values]


def from_most_to_least(values: Sequence[float]) -> Scores:
    """Return 1 for the least, 0 for the most, in between by proportion; 1 for all when values are equal."""
    least, most = min(values), max(values)
    if least == most:
        return [1.0] * len(values)
    return [(most - value) / (most - least) for value in values]


_LONG_QUEUE = 128
"""Length of a queue from which on longer queues score no less."""


def queue_depth(_request: Request, state: RoutingState) -> Scores:
    """Score 1 for the fewest waiting requests, 0 for the most."""
    return from_most_to_least([snapshot.num_waiting for snapshot in state.candidates])


def effective_load(_request: Request, state: RoutingState) -> Scores:
    """Score 1 for the least effective load, 0 for the most: queue-depth in BLIS's published description."""
    return from_most_to_least([snapshot.load for snapshot in state.candidates])


def load_balance(_request: Request, state: RoutingState) -> Scores:
    """Score by the effective load of each instance alone: the less, the better."""
    return [1 / (1 + snapshot.load) for snapshot in state.candidates]


def active_requests(_request: Request, state: RoutingState) -> Scores:
    """Score by how far requests in flight are below the maximum, as a share of it; 1 for instances without any."""
    in_flight = [snapshot.num_in_flight for snapshot in state.candidates]
    most = max(in_flight)
    return [(most - each) / most if each else 1.0 for each in in_flight]


def running_requests(_request: Request, state: RoutingState) -> Scores:
    """Score 1 for the fewest running requests, 0 for the most."""
    return from_most_to_least([snapshot.num_running for snapshot in state.candidates])


def load_aware(_request: Request, state: RoutingState) -> Scores:
    """Score a half for instances without waiting requests, less for others."""
    return [0.5 * (1 - min(snapshot.num_waiting, _LONG_QUEUE) / _LONG_QUEUE) for snapshot in state.candidates]


def vllm_dp(_request: Request, state: RoutingState) -> Scores:
    """Score by vLLM's balance of data-parallel ranks: a waiting request counts four times a running one."""
    return from_most_to_least([4 * snapshot.num_waiting + snapshot.num_running for snapshot in state.candidates])


def kv_utilization(_request: Request, state: RoutingState) -> Scores:
    """Score by the share of free KV blocks."""
    return [1 - snapshot.kv_usage_fraction for snapshot in state.candidates]


def lora_affinity(request: Request, state: RoutingState) -> Scores:
    """Score 1 where the adapter is in use, else 0; 1 for all when no instance has it, or none is needed."""
    has_it = [request.adapter in snapshot.adapters for snapshot in state.candidates]
    if not request.adapter or not any(has_it):
        return [1.0] * len(has_it)
    return [float(each) for each in has_it]


class NoHitLru:
    """Keeps the order in which instances got prompts that no cache held."""

    def __init__(self) -> None:
        self._used: OrderedDict[int, None] = OrderedDict()

    def score(self, request: Request, state: RoutingState) -> Scores:
        """Score a half for all when a cache has the prompt; else from 1, for an instance without such prompts, to 0."""
        candidates = state.candidates
        if any(state.cached_blocks(request)):
            return [0.5] * len(candidates)
        if len(candidates) == 1:
            return [1.0]
        rank_of = {instance: rank for rank, instance in enumerate(self._used)}
        by_age = sorted(range(len(candidates)), key=lambda place: rank_of.get(candidates[place].instance, -1))
        scores = [0.0] * len(candidates)
        for rank, place in enumerate(by_age):
            scores[place] = 1 - rank / (len(candidates) - 1)
        return scores

    def routed(self, request: Request, instance: int, state: RoutingState) -> None:
        """Note a prompt sent to `instance`; a prompt that a cache held changes no order."""
        if not any(state.cached_blocks(request)):
            if instance not in self._used:
                present = {each.instance for each in state.all_candidates}
                self._used = OrderedDict.fromkeys(each for each in self._used if each in present)
            self._used[instance] = None
            self._used.move_to_end(instance)


def no_hit_lru() -> Scorer:
    """Return a scorer without history."""
    order = NoHitLru()
    return Scorer(order.score, order.routed, reads_in_flight=False, reads_caches=True)


def precise_prefix_cache(request: Request, state: RoutingState) -> Scores:
    """Score 1 for the most leading blocks of the prompt in the cache, 0 for the fewest."""
    return from_least_to_most(state.cached_blocks(request))


_PER_CACHED_TOKEN, _PER_UTILIZATION, _PER_FREE_TOKEN, _PER_FREE_PLACE = 10.0, -100.0, 0.1, 0.5
_MIN_FEASIBLE_SCORE = 0.5
"""The worst score of an instance that can take a request at once; others have 0."""


def cache_utilisation(request: Request, state: RoutingState) -> Scores:
    """The published adaptive scheduler's sum, brought into 0.5 to 1. It is 10 for each cached token, -100 for a full KV
    cache, 0.1 for each free token and 0.5 for each free place.

    An instance without a free place, or whose KV cache cannot hold the prompt, has 0. A place is taken when a request
    is sent.
    """
    sums: list[float | None] = []
    for snapshot, num_blocks in zip(state.candidates, state.cached_blocks(request), strict=True):
        config, usage = state.config_of(snapshot.instance), snapshot.kv_usage_fraction
        capacity, num_places = config.kv_capacity_tokens, config.max_num_seqs - snapshot.num_in_flight
        if num_places <= 0 or request.input_tokens > capacity:
            sums.append(None)
            continue
        sums.append(
            _PER_CACHED_TOKEN * num_blocks * config.block_size_tokens
            + _PER_UTILIZATION * usage
            + _PER_FREE_TOKEN * (1 - usage) * capacity
            + _PER_FREE_PLACE * num_places
        )
    feasible = [each for each in sums if each is not None]
    if not feasible:
        return [0.0] * len(sums)
    scaled = iter(from_least_to_most(feasible))
    return [0.0 if each is None else _MIN_FEASIBLE_SCORE + (1 - _MIN_FEASIBLE_SCORE) * next(scaled) for each in sums]


_PICKER_MOST_BLOCKS = 256
"""`maxPrefixBlocksToMatch` of prefix-cache-scorer in llm-d's endpoint picker."""


class PrefixAffinity:
    """Tracks the latest `capacity_blocks` blocks sent to each instance, of each prompt at most the first `most_blocks`.

    Prompts with equal first `most_blocks` have equal scores. A capacity of None is that of the instance's KV cache.
    """

    def __init__(
        self,
        block_size_tokens: int,
        capacity_blocks: int | None = DEFAULT_CAPACITY_BLOCKS,
        most_blocks: int | None = None,
    ) -> None:
        self._block_size = block_size_tokens
        self._capacity = capacity_blocks
        self._most = most_blocks
        self._sent: dict[int, RoutedPrefixes] = {}

    def _num_blocks(self, request: Request) -> int:
        num_blocks = request.input_tokens // self._block_size
        return num_blocks if self._most is None else min(num_blocks, self._most)

    def score(self, request: Request, state: RoutingState) -> Scores:
        """Score by the share of the prompt's full blocks, from its beginning on, that were sent to each candidate."""
        num_blocks = self._num_blocks(request)
        if not num_blocks:
            return [0.0] * len(state.candidates)
        sent = self._sent
        return [
            sent[each.instance].num_routed(request.blocks, num_blocks) / num_blocks if each.instance in sent else 0.0
            for each in state.candidates
        ]

    def routed(self, request: Request, instance: int, state: RoutingState) -> None:
        """Note that all full blocks of the prompt were sent to `instance`."""
        if instance not in self._sent:
            self._forget_all_but({each.instance for each in state.all_candidates})
            self._sent[instance] = RoutedPrefixes(self._capacity or state.config_of(instance).total_kv_blocks)
        self._sent[instance].note(request.blocks, self._num_blocks(request))

    def _forget_all_but(self, present: Container[int]) -> None:
        """Forget instances that take no requests any more; such instances never will again."""
        for gone in [instance for instance in self._sent if instance not in present]:
            del self._sent[gone]


def prefix_affinity(affinity: PrefixAffinity) -> Scorer:
    """Return a scorer by the blocks that `affinity` tracks."""
    return Scorer(affinity.score, affinity.routed, reads_in_flight=False)


def _by_reports(score: Callable[[Request, RoutingState], Scores]) -> Scorer:
    """Return a scorer that depends on reports of instances only."""
    return Scorer(score, reads_in_flight=False, holds=always)


SCORERS = Registry[Callable[[ScorerSettings], Scorer]]("blis.scorers") | {
    "precise-prefix-cache": lambda _: Scorer(
        precise_prefix_cache, reads_in_flight=False, reads_caches=True, holds=without_shared_blocks
    ),
    "cache-utilisation": lambda _: Scorer(cache_utilisation, reads_caches=True),
    "prefix-affinity": lambda settings: prefix_affinity(PrefixAffinity(settings.block_size_tokens)),
    "prefix-cache": lambda settings: prefix_affinity(
        PrefixAffinity(settings.block_size_tokens, None, _PICKER_MOST_BLOCKS)
    ),
    "no-hit-lru": lambda _: no_hit_lru(),
    "queue-depth": lambda _: _by_reports(queue_depth),
    "effective-load": lambda _: Scorer(effective_load),
    "kv-utilization": lambda _: _by_reports(kv_utilization),
    "load-balance": lambda _: Scorer(load_balance),
    "active-requests": lambda _: Scorer(active_requests),
    "running-requests": lambda _: _by_reports(running_requests),
    "load-aware": lambda _: _by_reports(load_aware),
    "vllm-dp": lambda _: _by_reports(vllm_dp),
    "lora-affinity": lambda _: Scorer(lora_affinity, reads_in_flight=False, reads_adapters=True),
}
