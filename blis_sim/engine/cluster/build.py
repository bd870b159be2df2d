"""From the options of a cluster to the cluster, or to the single engine if there is only one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from blis_sim.engine.cluster.options import ClusterOptions, gateway_flags_without_effect, notes_on_pools
from blis_sim.engine.cluster.policies import deployments_of, has_cluster, options_of_groups, policies_of
from blis_sim.engine.config import EngineConfig
from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import Deployment, latency_choice
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.engine_defaults import AUTO
from blis_sim.engine.latency.confidence import Sureness
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.registry import one_model
from blis_sim.engine.simulation import Simulation
from blis_sim.engine.units import Micros
from blis_sim.options import BlisError, ineffective_flags, options_of, with_settings

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster, DecisionLog
    from blis_sim.engine.cluster.settings import TieBreaker
    from blis_sim.engine.data_parallel import RankGroup

# One latency model for all deployments of a cluster, and for all clusters that one question compares.

Options = TypeVar("Options", bound=ClusterOptions)


class Question(NamedTuple):
    """The latency model that times all clusters of a question which leave the choice to `auto`.

    `reasons` are why it cannot time one, by the cluster's place; `least_sure` is the statement on the cluster with the
    largest expected error.
    """

    latency_model: str
    least_sure: Sureness
    reasons: dict[int, str]

    def text(self, num_uncovered: int = 0, of: str = "all") -> str:
        """Return the model with its expected error, and how many candidates it does not cover."""
        without = f"; {num_uncovered} not covered" if num_uncovered else ""
        return f"step times of {of} by {self.latency_model}: {self.least_sure.text}{without}"

    def refusal(self, place: int) -> str:
        """Return why a cluster is not timed; empty where it is."""
        reason = self.reasons.get(place)
        return "" if reason is None else f"not covered by step times of {self.latency_model}: {reason}"


def question_of(clusters: Sequence[ClusterOptions]) -> Question | None:
    """Return the one latency model of all clusters; None where none of them leaves the choice to `auto`.

    Clusters that cannot be deployed at all have no say.
    """
    places, choices = [], []
    for place, options in enumerate(clusters):
        if options.deployment.step_times != AUTO:
            continue
        try:
            found = [latency_choice(each) for each in _all_deployments(options) if each.step_times == AUTO]
            found = [replace(each, unmeasured=(*each.unmeasured, *options.pools.unmeasured)) for each in found]
        except BlisError:
            continue
        choices += found
        places += [place] * len(found)
    if not choices:
        return None
    try:
        chosen = one_model(choices)
    except BlisError:  # every simulation reports the reason for itself
        return None
    reasons = {place: reason for place, reason in zip(places, chosen.reasons, strict=True) if reason}
    return Question(chosen.name, chosen.least_sure, reasons)


def timed_by(options: Options, latency_model: str) -> Options:
    """Return the options with a latency model where the choice was left to `auto`."""
    if options.deployment.step_times != AUTO:
        return options
    pools = [name for name in ("prefill_latency_model", "decode_latency_model") if getattr(options.pools, name) == AUTO]
    return with_settings(options, latency_model=latency_model, **dict.fromkeys(pools, latency_model))


def with_one_latency_model(options: Options) -> Options:
    """Return the options of a cluster with one latency model for all of its deployments, where they differ."""
    if options.policy_config is None and not options.pools.num_pooled:
        return options
    deployments = _all_deployments(options)
    if all(each == deployments[0] for each in deployments):
        return options
    found = question_of([options])
    return options if found is None else timed_by(options, found.latency_model)


def _all_deployments(options: ClusterOptions) -> list[DeploymentOptions]:
    """Return the settings of all deployments in a cluster. Raises BlisError."""
    if options.policy_config is None and not options.pools.num_pooled:
        return [options.deployment]
    from blis_sim.engine.cluster.assembly import options_of_role  # Imported here: most simulations have no cluster.
    from blis_sim.engine.cluster.disaggregation import Role

    found = [options.deployment]
    if options.pools.num_pooled:
        found += [options_of_role(options, role) for role in (Role.PREFILL, Role.DECODE)]
    found += options_of_groups(options)
    pools = policies_of(options).scaling.node_pools
    found += [replace(options.deployment, hardware=pool.gpu_type) for pool in pools]
    return found


# From the options of a cluster to the cluster, or to the single engine if there is only one.
#
# Modules that only a cluster needs are imported for a cluster: most simulations have one engine.

POOLED_RANKS = (
    "warning: with pipeline stages data-parallel ranks that share experts are one batch and one KV cache: uneven loads "
    "and dummy steps are not simulated"
)
"""The note on ranks that share experts, where they are simulated as one engine."""


def build_simulation(
    options: ClusterOptions,
    deployment: Deployment,
    *,
    ties: "TieBreaker | None" = None,
    adjusted: Callable[[LatencyModel], LatencyModel] | None = None,
    reports_steps: bool = False,
    decisions: "DecisionLog | None" = None,
    reports_batches: bool = False,
) -> "Engine | RankGroup | Cluster":
    """Return the simulation that the options describe, at its beginning.

    `adjusted` changes models of step times. With `reports_batches` steps are reported, each with its batch. With
    `decisions`, where a cluster's are kept, it is always a cluster.
    """

    reports = reports_steps or reports_batches

    def new_engine(each: Deployment) -> "Engine | RankGroup":
        latency = adjusted(each.latency) if adjusted else each.latency
        if each.rank is None or not each.has_own_ranks:
            return Engine(each.config, latency, reports, reports_admissions=reports, reports_batches=reports_batches)
        from blis_sim.engine.data_parallel import new_ranks

        def new_rank(config: EngineConfig, latency: LatencyModel) -> Engine:
            reports_steps = reports or not each.shares_experts
            return Engine(config, latency, reports_steps, reports_admissions=reports, reports_batches=reports_batches)

        return new_ranks(each.rank, latency, each.dp, new_rank, each.shares_experts)

    if decisions is not None or has_cluster(options):
        from blis_sim.engine.cluster.assembly import build_cluster

        return build_cluster(options, deployment, new_engine, ties, decisions)
    (alone,) = deployments_of(options, deployment)
    return new_engine(alone)


OWN_DEVICES = (
    "warning: each engine has devices of its own behind CPU memory: what one stores in a shared folder, the others do "
    "not find"
)


def notes_on_cluster(options: ClusterOptions, deployment: Deployment) -> Iterator[str]:
    """Yield notes for the user on the cluster, a line each."""
    if deployment.rank is not None and not deployment.has_own_ranks:
        yield POOLED_RANKS
    offload = deployment.config.offload
    if offload is not None and offload.devices and options.num_instances * options.deployment.dp > 1:
        yield OWN_DEVICES
    if options.policy_config is not None or has_cluster(options):
        from blis_sim.engine.cluster.assembly import notes_on_instances

        yield from notes_on_instances(options, deployment)
    yield from flags_without_effect_on_cluster(options)
    yield from gateway_flags_without_effect(options.gateway)
    yield from notes_on_pools(options.pools, options.num_instances)


def notes_after_run(simulation: Simulation, kills: Iterable[tuple[Micros, int | None]] = ()) -> Iterator[str]:
    """Warnings about a simulation that has ended, and kills that it should have had, in a line each."""
    yield from notes_on_late_kills(kills, simulation.clock)
    for at in simulation.vain_kills:
        yield f"warning: --kill at {at / 1e6:g} s killed nothing: that instance had been killed, or none served"
    num_evicted = sum(engine.counters.num_reservations_evicted for engine in simulation.instances)
    if num_evicted:
        yield (
            f"warning: requests lost the KV blocks of their transferred prompts {num_evicted} times and computed "
            "these prompts again. Too few KV blocks were free for the next request in the queue, and nothing was "
            "running"
        )


def notes_on_late_kills(kills: Iterable[tuple[Micros, int | None]], ended_at: Micros) -> Iterator[str]:
    """Yield a warning for each kill after the end of a run."""
    for at, _ in kills:
        if at > ended_at:
            yield f"warning: --kill at {at / 1e6:g} s killed nothing, the run had ended at {ended_at / 1e6:,.1f} s"


def flags_without_effect_on_cluster(options: ClusterOptions) -> Iterator[str]:
    """Yield a line for each flag that has no effect."""
    if options.admission_policy != "token-bucket":
        of_bucket = [each.name for each in options_of(ClusterOptions) if each.name.startswith("token_bucket_")]
        yield from ineffective_flags(options, dict.fromkeys(of_bucket, "--admission-policy token-bucket"))
    if options.routing_policy != "weighted":
        scorers = ("routing_scorers", "lora_scorer_weight")
        yield from ineffective_flags(options, dict.fromkeys(scorers, "--routing-policy weighted"))
    if options.routing_policy != "round-robin" and not has_cluster(options):
        yield f"--routing-policy {options.routing_policy} has no effect with one instance"
