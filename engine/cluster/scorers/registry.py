"""Scorers of the weighted router by name. A new one is one file and one row here."""

from collections.abc import Callable

from engine.cluster.scorers.load import (
    active_requests,
    effective_load,
    load_aware,
    load_balance,
    queue_depth,
    running_requests,
    vllm_dp,
)
from engine.cluster.scorers.lora_affinity import lora_affinity
from engine.cluster.scorers.memory import kv_utilization
from engine.cluster.scorers.no_hit_lru import no_hit_lru
from engine.cluster.scorers.precise_prefix_cache import precise_prefix_cache
from engine.cluster.scorers.prefix_affinity import prefix_affinity
from engine.cluster.scorers.scorer import Scorer, ScorerSettings

SCORERS: dict[str, Callable[[ScorerSettings], Scorer]] = {
    "precise-prefix-cache": lambda _: Scorer(precise_prefix_cache, reads_in_flight=False, reads_caches=True),
    "prefix-affinity": prefix_affinity,
    "no-hit-lru": lambda _: no_hit_lru(),
    "queue-depth": lambda _: Scorer(queue_depth, reads_in_flight=False),
    "effective-load": lambda _: Scorer(effective_load),
    "kv-utilization": lambda _: Scorer(kv_utilization, reads_in_flight=False),
    "load-balance": lambda _: Scorer(load_balance),
    "active-requests": lambda _: Scorer(active_requests),
    "running-requests": lambda _: Scorer(running_requests, reads_in_flight=False),
    "load-aware": lambda _: Scorer(load_aware, reads_in_flight=False),
    "vllm-dp": lambda _: Scorer(vllm_dp, reads_in_flight=False),
    "lora-affinity": lambda _: Scorer(lora_affinity, reads_in_flight=False, reads_adapters=True),
}
