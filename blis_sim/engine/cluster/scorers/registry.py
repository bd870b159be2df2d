"""Scorers of the weighted router by name. A new one is one file and one row here."""

from collections.abc import Callable

from blis_sim.engine.cluster.scorers.load import (
    active_requests,
    effective_load,
    load_aware,
    load_balance,
    queue_depth,
    running_requests,
    vllm_dp,
)
from blis_sim.engine.cluster.scorers.lora_affinity import lora_affinity
from blis_sim.engine.cluster.scorers.memory import kv_utilization
from blis_sim.engine.cluster.scorers.no_hit_lru import no_hit_lru
from blis_sim.engine.cluster.scorers.precise_prefix_cache import precise_prefix_cache
from blis_sim.engine.cluster.scorers.prefix_affinity import prefix_affinity
from blis_sim.engine.cluster.scorers.scorer import Scorer, ScorerSettings, Scores, always, without_shared_blocks
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request


def _by_reports(score: Callable[[Request, RoutingState], Scores]) -> Scorer:
    """A scorer that looks at nothing but what instances report."""
    return Scorer(score, reads_in_flight=False, holds=always)


SCORERS: dict[str, Callable[[ScorerSettings], Scorer]] = {
    "precise-prefix-cache": lambda _: Scorer(
        precise_prefix_cache, reads_in_flight=False, reads_caches=True, holds=without_shared_blocks
    ),
    "prefix-affinity": prefix_affinity,
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
