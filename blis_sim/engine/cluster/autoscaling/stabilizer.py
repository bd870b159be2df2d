"""Keeps an autoscaler from acting on what passes: a wish must last for a while."""

from dataclasses import dataclass

from blis_sim.engine.cluster.autoscaling.figures import Change
from blis_sim.engine.errors import EngineError
from blis_sim.engine.units import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How long a wish must last; 0 acts at once. Raises EngineError for what is below 0."""

    scale_up_us: Micros = 0
    scale_down_us: Micros = 0

    def __post_init__(self) -> None:
        for name in ("scale_up_us", "scale_down_us"):
            if (value := getattr(self, name)) < 0:
                raise EngineError(f"the stabilization window {name} must be at least 0, got {value}")


class Stabilizer:
    """Lets a change pass when its direction has been wanted at every tick of its window; then the wait begins anew."""

    __slots__ = ("_direction", "_since", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._direction = 0
        self._since: Micros = 0

    def passes(self, change: Change | None, at: Micros) -> bool:
        """Whether to act on what is wanted at this tick."""
        direction = 0 if change is None else (change.num_instances > 0) - (change.num_instances < 0)
        if direction != self._direction:
            self._direction, self._since = direction, at
        if not direction:
            return False
        window_us = self._windows.scale_up_us if direction > 0 else self._windows.scale_down_us
        if at - self._since < window_us:
            return False
        self._direction = 0
        return True
