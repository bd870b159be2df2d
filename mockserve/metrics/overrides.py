"""Series of the metrics page with values that were set while the server runs."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import Metric

from mockserve.options.fake_metrics import FakeMetrics

MOST_PINS = 1_000


@dataclass(frozen=True, slots=True)
class Pin:
    """The value of the series of this name whose labels include these, until an instant of the monotonic clock."""

    name: str
    labels: Mapping[str, str]
    value: float
    until_s: float | None = None

    def fits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a series has the name and the labels."""
        return name == self.name and all(labels.get(key) == value for key, value in self.labels.items())

    def shown(self) -> dict[str, Any]:
        """The pin as a reply shows it."""
        left = None if self.until_s is None else max(0.0, round(self.until_s - time.monotonic(), 3))
        return {"name": self.name, "labels": dict(self.labels), "value": self.value, "for_s": left}


@dataclass(slots=True)
class MetricOverrides:
    """Everything on the page that is set while the server runs. Made-up figures stand for those given at the start."""

    pins: list[Pin] = field(default_factory=list)
    fakes: FakeMetrics | None = None

    def pin(self, pins: Sequence[Pin]) -> None:
        """Add pins; one takes the place of another for the same series."""
        new = {(each.name, frozenset(each.labels.items())) for each in pins}
        self.pins = [each for each in self.active() if (each.name, frozenset(each.labels.items())) not in new]
        self.pins += pins

    def active(self) -> list[Pin]:
        """The pins whose time is not over."""
        now = time.monotonic()
        self.pins = [each for each in self.pins if each.until_s is None or each.until_s > now]
        return self.pins

    def release(self, names: Sequence[str] = ()) -> None:
        """Give the series of these names their own values back; all of them without names."""
        self.pins = [each for each in self.pins if names and each.name not in names]

    def applied(self, metrics: Iterable[Metric]) -> Iterator[Metric]:
        """The metrics with the values that are pinned; the latest pin for a series counts."""
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
