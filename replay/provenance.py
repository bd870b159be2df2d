"""The origin of a simulated result, and its title."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blis_sim.options.provenance import run_title

if TYPE_CHECKING:
    from blis_sim.engine.cluster.options import ClusterOptions
    from blis_sim.engine.deployment import Deployment
    from blis_sim.engine.latency.confidence import Sureness
    from blis_sim.options.provenance import Provenance
    from replay.report_options import ReportOptions


def least_sure(options: "ClusterOptions", deployment: "Deployment") -> "Sureness":
    """Return the statement on the least sure of a cluster's deployments; `deployment` is that of the options."""
    if options.policy_config is None and not options.pools.num_pooled:
        return deployment.sureness
    from blis_sim.engine.cluster.assembly import first_deployments  # few clusters have several deployments

    stated = (each.sureness_with(*options.pools.unmeasured) for each in first_deployments(options, deployment))
    return max(stated, key=lambda each: each.expected_error)


class SimulationOptions(Protocol):
    """The options of a command that simulates."""

    @property
    def cluster(self) -> "ClusterOptions": ...

    @property
    def report(self) -> "ReportOptions": ...


def title_of(options: SimulationOptions, deployment: "Deployment") -> str:
    """Return the title of a run's origin, without hashing its input files."""
    return run_title(
        model=options.cluster.deployment.model,
        gpu=deployment.gpu.name,
        gpus_per_instance=deployment.num_gpus,
        instances=options.cluster.num_instances,
        engine=options.cluster.deployment.engine,
        latency_model=deployment.latency_name,
        sureness=least_sure(options.cluster, deployment).text,
    )


def provenance_of(
    program: str, options: SimulationOptions, deployment: "Deployment", seed: int, also_read: Iterable[Path] = ()
) -> "Provenance":
    """Return the origin of a run with these options; `also_read` are files that no setting names."""
    # Hashes and the package's metadata take 20 ms to load, which only a file with the origin needs.
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    sure = least_sure(options.cluster, deployment)
    return Provenance(
        command=command_line(program, options),
        model=options.cluster.deployment.model,
        gpu=deployment.gpu.name,
        gpus_per_instance=deployment.num_gpus,
        instances=options.cluster.num_instances,
        engine=options.cluster.deployment.engine,
        latency_model=sure.latency_model,
        step_error=sure.step_error,
        sureness=sure.as_json,
        seed=seed,
        inputs=input_hashes(options, also_read),
    )
