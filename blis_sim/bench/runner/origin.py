"""The origin of a result of many points: what they have in common."""

from collections.abc import Sequence
from typing import Any

from blis_sim.bench.runner.commands import Simulation
from blis_sim.bench.runner.plan import Plan, Point
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import resolve
from blis_sim.engine.latency.sureness import sureness
from blis_sim.options import BlisError
from blis_sim.options.provenance import Provenance, command_line, input_hashes

_MOST_POINTS = 100
"""More points would take longer to look at than is worth it."""


def origin_of(program: str, options: Any, plan: Plan, points: Sequence[Point]) -> Provenance:
    """Return the origin, with GPU, engine and latency model where all points that can be simulated share them."""
    found = [_facts(plan.simulation, point) for point in points] if len(points) <= _MOST_POINTS else []
    known = [each for each in found if each]
    first = known[0] if known else {}
    return Provenance(
        command=command_line(program, options),
        model=str(plan.settings.get("model", "")),
        seed=plan.settings.get("seed"),
        inputs=input_hashes(options, plan.paths_read()),
        **{name: value for name, value in first.items() if all(each[name] == value for each in known)},
    )


def _facts(simulation: Simulation, point: Point) -> dict[str, Any]:
    try:
        options = with_policies(simulation.options_with(point.settings).cluster)
        deployment = resolve(options.deployment)
    except BlisError:
        return {}
    sure = sureness(deployment.latency_name, deployment.notes)
    return {
        "gpu": deployment.gpu.name,
        "gpus_per_instance": deployment.num_gpus,
        "instances": options.num_instances,
        "engine": options.deployment.engine,
        "latency_model": sure.latency_model,
        "step_error": sure.step_error,
        "step_error_source": sure.because,
    }
