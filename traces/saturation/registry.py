"""The detectors by name. Adding one is adding its row."""

from collections.abc import Callable, Mapping

from traces.saturation.backlog_drift import backlog_drift
from traces.saturation.composite import composite
from traces.saturation.settings import SaturationSettings
from traces.saturation.threshold import threshold
from traces.saturation.timeline import Timeline
from traces.saturation.verdicts import Verdicts

DETECTORS: Mapping[str, Callable[[Timeline, int, SaturationSettings], Verdicts]] = {
    "composite": composite,
    "threshold": threshold,
    "backlog-drift": backlog_drift,
}
"""Each gives its verdicts on the events of a timeline from a certain one on."""
