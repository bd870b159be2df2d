"""Uncertainty of learned coefficients: values drawn from the distribution that `blis fit` states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS
from blis_sim.engine.latency.coefficients_file import LearnedCoefficients, read_coefficients, read_content
from blis_sim.engine.latency.fitted import Fitted
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import WrappedLatency

Floats = npt.NDArray[np.float64]

SPEED_SPREAD = 0.005
"""Standard deviation of the speed of servers of one kind.

With equal software, model and GPU, steps of one take up to 0.5 % longer than those of another. Steps of some servers
take 1.8 % less a while later.
"""
ARITHMETIC_SPREAD = 0.0115
"""Standard deviation of what arithmetic takes on servers of one kind, beside the speed of all steps.

Prompts of nine recordings of equal servers cost 1.4 % more or less than on average. Of this, 0.8 % is chance of the
recordings.
"""
ARITHMETIC = ("tokens", "tiles", "small_tiles", "attention")
"""Coefficients of the arithmetic of prompts."""


@dataclass(frozen=True, slots=True)
class ServerSpread:
    """How much servers of one kind differ, as standard deviations: in all steps, and in the arithmetic of prompts."""

    speed: float = SPEED_SPREAD
    arithmetic: float = ARITHMETIC_SPREAD


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """The spreads of coefficients by name, a factor of their correlation (its product with its transpose), and how much
    servers differ."""

    names: tuple[str, ...]
    spreads: Floats
    root: Floats
    servers: ServerSpread = ServerSpread()

    def drawn(self, learned: LearnedCoefficients, generator: np.random.Generator) -> LearnedCoefficients:
        """Return coefficients drawn at random, none of them below 0."""
        steps = self.spreads * (self.root @ generator.standard_normal(len(self.names)))
        changes = dict(zip(self.names, steps.tolist(), strict=True))
        slower = self.servers.arithmetic * float(generator.standard_normal())
        for name in ARITHMETIC:
            changes[name] = changes.get(name, 0.0) + slower * getattr(learned.step, name)
        return learned._replace(step=_changed(learned.step, changes), request=_changed(learned.request, changes))


@dataclass(frozen=True, slots=True)
class LatencySampler:
    """A function that draws latency models, and how much the servers that they stand for differ."""

    draw: Callable[[np.random.Generator], LatencyModel]
    servers: ServerSpread


def is_sampled(latency: LatencyModel) -> bool:
    """Return whether the coefficients of a latency model are stated with their spread."""
    while isinstance(latency, WrappedLatency):
        latency = latency.model
    return isinstance(latency, Fitted)


def latency_sampler(latency: LatencyModel, path: str | None) -> LatencySampler:
    """Return how to draw latency models like `latency`, whose coefficients are those of a file, or those that ship.
    Raises EngineError where that is not the fitted latency model, or the file has no correlation."""
    while isinstance(latency, WrappedLatency):
        latency = latency.model
    if not isinstance(latency, Fitted):
        raise EngineError("intervals need --latency-model fitted, whose coefficients are stated with their spread")
    fitted, place = latency, LEARNED_COEFFICIENTS if path is None else path
    content = read_content(place)
    learned, uncertainty = read_coefficients(place, content), uncertainty_of(place, content)

    def draw(generator: np.random.Generator) -> LatencyModel:
        drawn = uncertainty.drawn(learned, generator)
        return Fitted(fitted.model, fitted.gpu, fitted.tp, drawn.step, drawn.request, fitted.growth_requests)

    return LatencySampler(draw, uncertainty.servers)


def _changed(coefficients: Any, changes: Mapping[str, float]) -> Any:
    own = {name: change for name, change in changes.items() if hasattr(coefficients, name)}
    return replace(coefficients, **{name: max(0.0, getattr(coefficients, name) + each) for name, each in own.items()})


def uncertainty_of(path: str | Path, content: Mapping[str, Any]) -> Uncertainty:
    """Return the uncertainty section of a coefficients file. Raises EngineError that names the file and the invalid or
    missing section."""
    spread, rows = content.get("spread"), content.get("correlation")
    if not isinstance(spread, Mapping) or not all(_is_number(each) and each >= 0 for each in spread.values()):
        raise EngineError(f"{path}: spread must map coefficients to numbers from 0, which intervals need")
    size = len(spread)
    is_triangle = isinstance(rows, list) and [len(row) for row in rows if isinstance(row, list)] == [
        *range(1, size + 1)
    ]
    if not is_triangle or not all(_is_number(each) and abs(each) <= 1 for row in rows or () for each in row):
        raise EngineError(
            f"{path}: correlation must have a row of numbers from -1 to 1 for each of the {size} coefficients in "
            "spread. Intervals need one more number"
        )
    matrix = np.zeros((size, size))
    for place, row in enumerate(rows or ()):
        matrix[place, : place + 1] = matrix[: place + 1, place] = row
    powers, directions = np.linalg.eigh(matrix)
    root = directions * np.sqrt(np.maximum(powers, 0.0))
    spreads = np.array([float(each) for each in spread.values()])
    return Uncertainty(tuple(map(str, spread)), spreads, root, _servers(path, content))


def _servers(path: str | Path, content: Mapping[str, Any]) -> ServerSpread:
    """Return the optional section of a file on servers, with the usual spreads for those it does not name."""
    section = content.get("servers", {})
    known = {each.name for each in fields(ServerSpread)}
    is_fine = isinstance(section, Mapping) and set(section) <= known
    if not is_fine or not all(_is_number(each) and 0 <= each <= 1 for each in section.values()):
        raise EngineError(f"{path}: servers must map {' and '.join(sorted(known))} to numbers from 0 to 1")
    return ServerSpread(**{name: float(value) for name, value in section.items()})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
