"""Series of the metrics page whose values were set while the server runs."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric

from mockserve.options.fake_metrics import FakeMetrics

MOST_PINS = 1_000


@dataclass(frozen=True, slots=True)
class Pin:
    """A fixed value for series with the name and at least the labels, until an instant of the monotonic clock."""

    name: str
    labels: Mapping[str, str]
    value: float
    until_s: float | None = None

    def fits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a series has the name and the labels."""
        return name == self.name and all(labels.get(key) == value for key, value in self.labels.items())

    def shown(self) -> dict[str, Any]:
        """Return the pin as JSON fields."""
        left = None if self.until_s is None else max(0.0, round(self.until_s - time.monotonic(), 3))
        return {"name": self.name, "labels": dict(self.labels), "value": self.value, "for_s": left}


@dataclass(slots=True)
class MetricOverrides:
    """Values of the metrics page set while the server runs. `fakes` replaces the fake metrics given at the start."""

    pins: list[Pin] = field(default_factory=list)
    fakes: FakeMetrics | None = None

    def pin(self, pins: Sequence[Pin]) -> None:
        """Add pins; a pin replaces an earlier pin of an equal series."""
        new = {(each.name, frozenset(each.labels.items())) for each in pins}
        self.pins = [each for each in self.active() if (each.name, frozenset(each.labels.items())) not in new]
        self.pins += pins

    def active(self) -> list[Pin]:
        """Return the pins that have not expired."""
        now = time.monotonic()
        self.pins = [each for each in self.pins if each.until_s is None or each.until_s > now]
        return self.pins

    def names(self, name: str) -> bool:
        """Whether series with this name are pinned."""
        return any(pin.name == name for pin in self.active())

    def release(self, names: Sequence[str] = ()) -> None:
        """Remove the pins of the named series, or all pins without names."""
        self.pins = [each for each in self.pins if names and each.name not in names]

    def applied(self, metrics: Iterable[Metric]) -> Iterator[Metric]:
        """Replace the values of pinned series; the latest pin of a series counts."""
        pins = self.active()
        by_name: dict[str, list[Pin]] = {}
        for pin in pins:
            by_name.setdefault(pin.name, []).append(pin)
        for metric in metrics:
            if by_name:
                for place, sample in enumerate(metric.samples):
                    fitting = [each for each in by_name.get(sample.name, ()) if each.fits(sample.name, sample.labels)]
                    if fitting:
                        metric.samples[place] = sample._replace(value=fitting[-1].value)
            yield metric
