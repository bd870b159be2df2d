"""Was the server keeping up? Labels for a run, from when its requests arrived and were answered.

Read `timeline.py` first, then `verdicts.py` (what every detector says after every event) and one detector, such as
`threshold.py`. `labels.py` makes of them one label for the run, `report.py` the file with all of them.
"""

from traces.saturation.labels import Labels, labels_of
from traces.saturation.registry import DETECTORS
from traces.saturation.report import write_report
from traces.saturation.settings import SaturationSettings, read_settings
from traces.saturation.timeline import Timeline, timeline
from traces.saturation.verdicts import Level, Verdicts

__all__ = [
    "DETECTORS",
    "Labels",
    "Level",
    "SaturationSettings",
    "Timeline",
    "Verdicts",
    "labels_of",
    "read_settings",
    "timeline",
    "write_report",
]
