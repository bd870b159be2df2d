"""The detectors by name. Adding one is adding its row, and a function that imports it when it is requested."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the names are part of the help, which does not wait for numpy
    from traces.saturation.detectors import Timeline, Verdicts
    from traces.saturation.settings import SaturationSettings


def _composite(events: "Timeline", first: int, settings: "SaturationSettings") -> "Verdicts":
    from traces.saturation.detectors import composite

    return composite(events, first, settings)


def _threshold(events: "Timeline", first: int, settings: "SaturationSettings") -> "Verdicts":
    from traces.saturation.detectors import threshold

    return threshold(events, first, settings)


def _backlog_drift(events: "Timeline", first: int, settings: "SaturationSettings") -> "Verdicts":
    from traces.saturation.detectors import backlog_drift

    return backlog_drift(events, first, settings)


DETECTORS: "Mapping[str, Callable[[Timeline, int, SaturationSettings], Verdicts]]" = {
    "composite": _composite,
    "threshold": _threshold,
    "backlog-drift": _backlog_drift,
}
"""Each gives its verdicts on the events of a timeline from a certain one on."""
