"""From what a user says about a cluster to the cluster, or to the single engine if that is all there is."""

from collections.abc import Callable, Iterator

from engine.cluster.admission.policy import AdmissionPolicy
from engine.cluster.admission.registry import ADMISSIONS, AdmissionSettings
from engine.cluster.admission.tenant_budgets import TenantBudgets
from engine.cluster.cluster import Cluster
from engine.cluster.decisions import DecisionLog
from engine.cluster.latencies import Latencies
from engine.cluster.options import ClusterOptions
from engine.cluster.policies import deployments_of, policies_of
from engine.cluster.policy_file import PolicyFile
from engine.cluster.routing.registry import ROUTERS, RouterSettings
from engine.cluster.scorers.scorer import ScorerSettings
from engine.cluster.state import Freshness
from engine.cluster.ties import DEFAULT_SEED, SeededTies, Ties
from engine.core import Engine
from engine.deployment import Deployment
from engine.latency.model import LatencyModel
from engine.scheduler.priorities import DEFAULT_SLO_PRIORITIES


def build_simulation(
    options: ClusterOptions,
    deployment: Deployment,
    *,
    ties: Ties | None = None,
    adjusted: Callable[[LatencyModel], LatencyModel] | None = None,
    reports_steps: bool = False,
) -> Engine | Cluster:
    """What the options describe, at the beginning. `adjusted` changes models of step times."""
    policies = policies_of(options)
    engines = [
        Engine(each.config, adjusted(each.latency) if adjusted else each.latency, reports_steps)
        for each in deployments_of(options, deployment)
    ]
    if not options.has_cluster and not policies.tenant_budgets:
        return engines[0]
    admission = _admission(options, policies, sum(engine.config.max_num_seqs for engine in engines))
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


def _admission(options: ClusterOptions, policies: PolicyFile, num_seats: int) -> AdmissionPolicy:
    said = {
        "tier_shed_threshold": policies.tier_shed_threshold,
        "tier_shed_min_priority": policies.tier_shed_min_priority,
    }
    priorities = policies.slo_priorities or DEFAULT_SLO_PRIORITIES
    settings = AdmissionSettings(
        token_bucket_capacity=options.token_bucket_capacity,
        token_bucket_refill_rate=options.token_bucket_refill_rate,
        priorities=priorities,
        **{name: value for name, value in said.items() if value is not None},
    )
    admission = ADMISSIONS[options.admission_policy](settings)
    if not policies.tenant_budgets:
        return admission
    return TenantBudgets(admission, policies.tenant_budgets, num_seats, priorities)


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
