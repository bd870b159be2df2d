"""Where the times of operators come from: the part of --operators before its colon. A new source is one row here."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from blis_sim.engine.errors import EngineError

if TYPE_CHECKING:
    from blis_sim.engine.latency.choice import LatencyChoice
    from blis_sim.engine.latency.collectives import Network
    from blis_sim.engine.latency.model import LatencyModel
    from blis_sim.engine.latency.operators import OperatorTables


def _vidur_tables(prefix: str, choice: "LatencyChoice", network: "Network | None") -> "LatencyModel":
    from blis_sim.engine.latency.operators import LayerShape, OperatorSteps, OperatorTimes, read_lookup_tables

    model = choice.model
    layers = LayerShape(model.num_layers, choice.tp, shares_kv_heads=model.num_heads > model.num_kv_heads)
    tables = read_lookup_tables(prefix)
    _replace_exchanges(tables, network, choice)
    return OperatorSteps(OperatorTimes(tables, layers))


def _profiles(method: str, folder: str, choice: "LatencyChoice", network: "Network | None") -> "LatencyModel":
    from pathlib import Path

    from blis_sim.engine.latency.operators import (
        LayerShape,
        OperatorSteps,
        OperatorTimes,
        WithCpu,
        learned_tables,
        read_profiles,
    )

    model, profiles = choice.model, read_profiles(folder, choice)
    tables, overhead = learned_tables(profiles, method, Path.home() / ".cache" / "blis" / "operators")
    _replace_exchanges(tables, network, choice)
    layers = LayerShape(model.num_layers, choice.tp, shares_kv_heads=model.num_heads > model.num_kv_heads)
    steps = OperatorSteps(OperatorTimes(tables, layers))
    return steps if overhead is None else WithCpu(steps, overhead)


def _aicb(folder: str, choice: "LatencyChoice", network: "Network | None") -> "LatencyModel":
    from blis_sim.engine.latency.aicb import build_aicb

    return build_aicb(folder, choice, network)


PROFILES = "profiles"
"""The source of a folder that is given without one."""

SOURCES: Mapping[str, Callable[[str, "LatencyChoice", "Network | None"], "LatencyModel"]] = {
    PROFILES: partial(_profiles, "interpolation"),
    "forest": partial(_profiles, "forest"),
    "polynomial": partial(_profiles, "polynomial"),
    "vidur-tables": _vidur_tables,
    "aicb": _aicb,
}
"""Functions by name, from the text after the colon, the deployment and the network of --collectives, if any, to a
latency model. Each raises EngineError."""


def build_operators(choice: "LatencyChoice", network: "Network | None" = None) -> "LatencyModel":
    """Return the latency model of --operators, with the exchanges of --collectives if any. Raises EngineError."""
    allowed = ", ".join(f"{name}:PATH" for name in SOURCES)
    if choice.operators is None:
        raise EngineError(f"--latency-model operators needs --operators with one of {allowed}")
    name, colon, place = choice.operators.partition(":")
    if not colon:
        name, colon, place = PROFILES, ":", choice.operators
    if not colon or name not in SOURCES or not place:
        raise EngineError(f"--operators must be a folder or one of {allowed}, got {choice.operators!r}")
    if choice.beta:
        raise EngineError("the operators model takes no alpha_coeffs and beta_coeffs, it has tables")
    if choice.dp > 1:
        raise EngineError(f"the operators model does not support dp; dp must be 1, got {choice.dp}")
    return SOURCES[name](place, choice, network)


def _replace_exchanges(tables: "OperatorTables", network: "Network | None", choice: "LatencyChoice") -> None:
    if network is not None:
        from blis_sim.engine.latency.collectives import exchange_line

        tables.compute["all_reduce"] = exchange_line(network, choice.model, choice.tp)


def notes_on_tables(latency: "LatencyModel") -> list[str]:
    """Return a line for tables that are those of another deployment."""
    from blis_sim.engine.latency.aicb import AicbSteps

    return list(latency.notes) if isinstance(latency, AicbSteps) else []


def notes_on_operators(latency: "LatencyModel") -> list[str]:
    """Return a line where steps of a latency model of operators lie beyond its tables."""
    if not (exceeded := latency.exceeded()):
        return []
    return [f"warning: outside the tables of --operators, {latency.extrapolation}: {'; '.join(exceeded)}"]
