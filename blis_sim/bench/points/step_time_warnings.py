"""What to know of the step times of many simulations before they are computed, for what each says is dropped."""

from collections.abc import Sequence

from blis_sim.bench.points.commands import Simulation
from blis_sim.bench.points.plan import Point
from blis_sim.engine.cluster.build import notes_on_cluster
from blis_sim.engine.cluster.policies import with_policies
from blis_sim.engine.deployment import resolve
from blis_sim.options import BlisError

_DECIDING = ("model", "hardware", "tp", "latency_model")
_DECIDING_FOR_ALL = ("coefficients", "engine", "model_config_folder", "hardware_config", "policy_config")
_DECIDERS = (*_DECIDING_FOR_ALL, *(f"{pool}{name}" for pool in ("", "prefill_", "decode_") for name in _DECIDING))
"""The settings that decide from what, and for what, step times were learned."""
_MOST_LINES = 10


def step_time_warnings(simulation: Simulation, points: Sequence[Point]) -> list[str]:
    """Warnings of all points, each once; of points that cannot be simulated there are none."""
    unlike = {repr([point.settings.get(name) for name in _DECIDERS]): point for point in points}
    found: dict[str, None] = {}
    for point in unlike.values():
        found |= dict.fromkeys(_warnings(simulation, point))
    lines = list(found)
    if len(lines) > _MOST_LINES:
        return [*lines[:_MOST_LINES], f"warning: and {len(lines) - _MOST_LINES} more like these"]
    return lines


def _warnings(simulation: Simulation, point: Point) -> list[str]:
    try:
        options = with_policies(simulation.options_with(point.settings).cluster)
        deployment = resolve(options.deployment)
        notes = [*deployment.notes, *notes_on_cluster(options, deployment)]
    except BlisError:
        return []
    return [note for note in notes if "warning: " in note]
