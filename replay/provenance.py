"""The origin of a simulated result, and its title."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from blis_sim.engine.latency.sureness import sureness
from blis_sim.options.text_table import run_title

if TYPE_CHECKING:
    from blis_sim.engine.cluster.options import ClusterOptions
    from blis_sim.engine.deployment import Deployment
    from blis_sim.options.provenance import Provenance
    from replay.report_options import ReportOptions


class SimulationOptions(Protocol):
    """The options of a command that simulates."""

    @property
    def cluster(self) -> "ClusterOptions": ...

    @property
    def report(self) -> "ReportOptions": ...


def title_of(options: SimulationOptions, deployment: "Deployment") -> str:
    """Return the title of a run's origin, without hashing its input files."""
    sure = sureness(deployment.latency_name, deployment.notes)
    return run_title(
        model=options.cluster.deployment.model,
        gpu=deployment.gpu.name,
        gpus_per_instance=deployment.num_gpus,
        instances=options.cluster.num_instances,
        engine=options.cluster.deployment.engine,
        latency_model=sure.latency_model,
        step_error=sure.step_error,
    )


def provenance_of(
    program: str, options: SimulationOptions, deployment: "Deployment", seed: int, also_read: Iterable[Path] = ()
) -> "Provenance":
    """Return the origin of a run with these options; `also_read` are files that no setting names."""
    # Hashes and the package's metadata take 20 ms to load, which only a file with the origin needs.
    from blis_sim.options.provenance import Provenance, command_line, input_hashes

    sure = sureness(deployment.latency_name, deployment.notes)
    return Provenance(
        command=command_line(program, options),
        model=options.cluster.deployment.model,
        gpu=deployment.gpu.name,
        gpus_per_instance=deployment.num_gpus,
        instances=options.cluster.num_instances,
        engine=options.cluster.deployment.engine,
        latency_model=sure.latency_model,
        step_error=sure.step_error,
        step_error_source=sure.error_source,
        seed=seed,
        inputs=input_hashes(options, also_read),
    )
