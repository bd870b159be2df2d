"""The file with every verdict of every detector (JSON), and one label per detector for a whole run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from traces.saturation.detectors import Ints, Level, Timeline, Verdicts
from traces.saturation.registry import DETECTORS
from traces.saturation.settings import SaturationSettings
from traces.text_file import write_json

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


def write_report(
    path: Path | str, events: Timeline, detectors: Sequence[str], settings: SaturationSettings, labels: Labels
) -> None:
    """Write the final labels, and each detector's verdict after each event. Raises TraceError."""
    verdicts = {name: DETECTORS[name](events, 0, settings) for name in detectors} if len(events) else {}
    write_json(path, {"final": labels, "trace": _records(events, verdicts)}, end="\n")


def _records(events: Timeline, verdicts: Mapping[str, Verdicts]) -> Iterator[dict[str, Any]]:
    for place, at_us in enumerate(events.at_us.tolist()):
        for name, each in verdicts.items():
            yield {"timestamp": at_us, "detector": name, "result": _result(each, place)}


def _result(verdicts: Verdicts, place: int) -> dict[str, Any]:
    has_signals = place >= verdicts.num_without_signals
    return {
        "level": Level(verdicts.levels[place]).name,
        "score": float(verdicts.scores[place]),
        "confidence": float(verdicts.confidences[place]),
        "signals": {key: float(values[place]) for key, values in verdicts.signals.items()} if has_signals else {},
    }
