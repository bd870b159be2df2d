"""From what a user says about a cluster to the cluster, or to the single engine if that is all there is."""

from collections.abc import Iterator

from engine.cluster.admission.registry import ADMISSIONS, AdmissionSettings
from engine.cluster.cluster import Cluster
from engine.cluster.decisions import DecisionLog
from engine.cluster.latencies import Latencies
from engine.cluster.options import ClusterOptions
from engine.cluster.routing.registry import ROUTERS, RouterSettings
from engine.cluster.scorers.scorer import ScorerSettings
from engine.cluster.state import Freshness
from engine.cluster.ties import DEFAULT_SEED, SeededTies, Ties
from engine.core import Engine
from engine.deployment import Deployment
from engine.latency.model import LatencyModel


def build_simulation(
    options: ClusterOptions,
    deployment: Deployment,
    *,
    ties: Ties | None = None,
    latency: LatencyModel | None = None,
    reports_steps: bool = False,
) -> Engine | Cluster:
    """What the options describe, at the beginning. `latency` replaces the deployment's model of step times."""
    engines = [
        Engine(deployment.config, latency or deployment.latency, reports_steps) for _ in range(options.num_instances)
    ]
    if not options.has_cluster:
        return engines[0]
    admission = ADMISSIONS[options.admission_policy](
        AdmissionSettings(
            token_bucket_capacity=options.token_bucket_capacity,
            token_bucket_refill_rate=options.token_bucket_refill_rate,
        )
    )
    router = ROUTERS[options.routing_policy](
        RouterSettings(
            ties=ties or SeededTies(DEFAULT_SEED),
            weights=options.scorer_weights,
            scorers=ScorerSettings(block_size_tokens=deployment.config.block_size_tokens),
        )
    )
    return Cluster(
        engines,
        admission,
        router,
        Freshness(refresh_interval_us=options.snapshot_refresh_interval, cache_delay_us=options.cache_signal_delay),
        Latencies(admission_us=options.admission_latency, routing_us=options.routing_latency),
        DecisionLog(options.counterfactual_k) if options.trace_level == "decisions" else None,
    )


def flags_without_effect_on_cluster(options: ClusterOptions) -> Iterator[str]:
    """What was said that changes nothing, in a line each."""
    if options.routing_policy != "weighted":
        for flag, value in (
            ("--routing-scorers", options.routing_scorers),
            ("--lora-scorer-weight", options.lora_scorer_weight),
        ):
            if value:
                yield f"{flag} has no effect without --routing-policy weighted"
    if options.routing_policy != "round-robin" and not options.has_cluster:
        yield f"--routing-policy {options.routing_policy} has no effect with one instance"
