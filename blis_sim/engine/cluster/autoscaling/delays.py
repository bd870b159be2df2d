"""How long things take that take now longer, now shorter: loading an instance, reading metrics."""

from dataclasses import dataclass

from blis_sim.engine.draws import standard_normal
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros

LONGEST_DELAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Normally distributed seconds, never below 0. Raises EngineError for negative ones, and for more than a day."""

    mean: float = 0.0
    stddev: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mean", "stddev"):
            if not 0 <= (value := getattr(self, name)) <= LONGEST_DELAY_S:
                raise EngineError(f"the {name} of a delay must be from 0 to {LONGEST_DELAY_S:g} seconds, got {value}")

    def draw(self, number: int) -> Micros:
        """The delay of draw `number`."""
        seconds = self.mean + self.stddev * standard_normal(number) if self.stddev else self.mean
        return round(max(0.0, seconds) * 1e6)
