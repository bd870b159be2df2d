"""From figures to a decision: analyse what is needed, choose what to change, wait until the wish has lasted."""

from dataclasses import dataclass, field

from blis_sim.engine.cluster.autoscaling.analyzers import ANALYZERS, Thresholds
from blis_sim.engine.cluster.autoscaling.delays import Delay
from blis_sim.engine.cluster.autoscaling.figures import Change, Figures
from blis_sim.engine.cluster.autoscaling.optimizers import OPTIMIZERS
from blis_sim.engine.cluster.autoscaling.stabilizer import Stabilizer, Windows
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerSettings:
    """How often to look, and how to decide. Raises EngineError."""

    interval_us: Micros
    scrape_delay: Delay = field(default_factory=Delay)
    """From the figures to the action."""
    windows: Windows = field(default_factory=Windows)
    thresholds: Thresholds = field(default_factory=Thresholds)
    analyzer: str = "kv-tokens"
    optimizer: str = "unlimited"

    def __post_init__(self) -> None:
        if self.interval_us < 1:
            raise EngineError(f"interval_us of the autoscaler must be at least 1, got {self.interval_us}")
        for name, known in (("analyzer", ANALYZERS), ("optimizer", OPTIMIZERS)):
            if (value := getattr(self, name)) not in known:
                raise EngineError(f"{name} of the autoscaler must be one of {', '.join(known)}, got {value!r}")


class Pipeline:
    """One autoscaler. It remembers what was wanted at the ticks before, and nothing else."""

    __slots__ = ("_settings", "_stabilizer")

    def __init__(self, settings: AutoscalerSettings) -> None:
        self._settings = settings
        self._stabilizer = Stabilizer(settings.windows)

    def decide(self, figures: Figures, at: Micros) -> Change | None:
        """What to change, as of this tick; None for nothing."""
        settings = self._settings
        need = ANALYZERS[settings.analyzer](figures, settings.thresholds)
        change = OPTIMIZERS[settings.optimizer](figures, need, settings.thresholds)
        return change if self._stabilizer.passes(change, at) else None
