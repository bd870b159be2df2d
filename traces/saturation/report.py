"""The file with every verdict of every detector (JSON)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.json_text import write_json
from traces.saturation.labels import Labels
from traces.saturation.registry import DETECTORS
from traces.saturation.settings import SaturationSettings
from traces.saturation.timeline import Timeline
from traces.saturation.verdicts import Level, Verdicts


def write_report(
    path: Path | str, events: Timeline, detectors: Sequence[str], settings: SaturationSettings, labels: Labels
) -> None:
    """Write the final labels, and what each detector said after each event. Raises TraceError."""
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
