"""Where the times of operators come from: the part of --operators before its colon. A new source is one row here."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from blis_sim.engine.errors import EngineError

if TYPE_CHECKING:
    from blis_sim.engine.latency.model import LatencyModel
    from blis_sim.engine.latency.registry import LatencyChoice


def _vidur_tables(prefix: str, choice: "LatencyChoice") -> "LatencyModel":
    from blis_sim.engine.latency.operators.steps import LayerShape, OperatorSteps, OperatorTimes
    from blis_sim.engine.latency.operators.tables import read_lookup_tables

    model = choice.model
    layers = LayerShape(model.num_layers, choice.tp, shares_kv_heads=model.num_heads > model.num_kv_heads)
    return OperatorSteps(OperatorTimes(read_lookup_tables(prefix), layers))


SOURCES: Mapping[str, Callable[[str, "LatencyChoice"], "LatencyModel"]] = {
    "vidur-tables": _vidur_tables,
}
"""Functions by name, from what follows the colon and the deployment to a latency model. Each raises EngineError."""


def build_operators(choice: "LatencyChoice") -> "LatencyModel":
    """Return the latency model that --operators asks for. Raises EngineError."""
    allowed = ", ".join(f"{name}:PATH" for name in SOURCES)
    if choice.operators is None:
        raise EngineError(f"--latency-model operators needs --operators with one of {allowed}")
    name, colon, place = choice.operators.partition(":")
    if not colon or name not in SOURCES or not place:
        raise EngineError(f"--operators must be one of {allowed}, got {choice.operators!r}")
    if choice.beta:
        raise EngineError("the operators model takes no alpha_coeffs and beta_coeffs, it has tables")
    if choice.dp > 1:
        raise EngineError(f"the operators model does not know dp; dp must be 1, got {choice.dp}")
    return SOURCES[name](place, choice)


def notes_on_operators(latency: "LatencyModel") -> list[str]:
    """Return a line where a latency model of operators was asked for more than its tables hold."""
    from blis_sim.engine.latency.operators.steps import OperatorSteps

    exceeded = latency.exceeded() if isinstance(latency, OperatorSteps) else []
    if not exceeded:
        return []
    return [f"warning: outside the tables of --operators, whose last slopes go on: {'; '.join(exceeded)}"]
