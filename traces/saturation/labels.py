"""One label per detector for a whole run: what it mostly said in the end."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from traces.saturation.registry import DETECTORS
from traces.saturation.settings import SaturationSettings
from traces.saturation.timeline import Ints, Timeline
from traces.saturation.verdicts import Level

Labels: TypeAlias = dict[str, str]
"""Level by detector, names ascending."""


def labels_of(events: Timeline, detectors: Sequence[str], settings: SaturationSettings) -> Labels:
    """The level that each detector gave most often in the final window, the worse one where equal.

    Without events there are no labels.
    """
    if not len(events):
        return {}
    first = int(np.searchsorted(events.at_us, events.at_us[-1] - settings.final_window_us))
    return {name: _most_frequent(DETECTORS[name](events, first, settings).levels) for name in sorted(detectors)}


def _most_frequent(levels: Ints) -> str:
    counts = np.bincount(levels, minlength=len(Level))
    return max(Level, key=lambda level: (counts[level], level)).name
