"""Settings of saturation detectors that judge a finished run, from flags and from a YAML file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from blis_sim.options import OptionError, check_options, names_in, option, written_file
from blis_sim.options.durations import parse_duration_ms
from blis_sim.options.file_fields import Amount, Bounds
from traces.text_file import read_keys, read_yaml

# The settings of detectors that judge a finished run, which simulations and recordings share.

ALL, QUEUE = "all", "queue"
_LONGEST_WINDOW_US = 10**15
_DETECTORS = names_in("traces.saturation", "DETECTORS")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationOptions:
    """Detectors, their settings, and the file of their verdicts."""

    detectors: tuple[str, ...] = option(
        (),
        "Detectors that label the run as stable, backlogged or overloaded. queue goes by the number of requests in "
        "the system, and calls a run too short where it is.",
        choices=lambda: (*_DETECTORS(), QUEUE, ALL),
    )
    saturation_config: str | None = option(None, "Settings of the detectors (YAML).", metavar="FILE")
    saturation_report: str | None = written_file(
        "saturation", "Write the verdict of each detector after every arrival and answer here (JSON)."
    )
    saturation_final_window: str = option(
        "",
        "The label is a detector's most frequent verdict in so much time before the last answer (default: "
        "window_size_sec of --saturation-config, else 30s).",
        metavar="DURATION",
    )

    def __post_init__(self) -> None:
        check_options(self)
        _ = self.names, self.final_window_us  # making these checks them

    @property
    def names(self) -> tuple[str, ...]:
        """The detectors of the flags, each once. Raises OptionError for settings of detectors without any."""
        if not self.detectors:
            for flag, value in (
                ("--saturation-config", self.saturation_config),
                ("--saturation-report", self.saturation_report),
                ("--saturation-final-window", self.saturation_final_window),
            ):
                if value:
                    raise OptionError(f"{flag} needs --detectors, such as --detectors all")
        given = _DETECTORS() if self.names_all else dict.fromkeys(self.detectors)
        return tuple(each for each in given if each != QUEUE)

    @property
    def names_all(self) -> bool:
        """Whether all detectors are named."""
        return ALL in self.detectors

    @property
    def final_window_us(self) -> int | None:
        """How long before the last answer labels are counted; None leaves it to the settings. Raises OptionError."""
        if not self.saturation_final_window:
            return None
        try:
            window_us = int(parse_duration_ms(self.saturation_final_window) * 1000)
        except ValueError:
            window_us = 0
        if not 0 < window_us <= _LONGEST_WINDOW_US:
            given = repr(self.saturation_final_window)
            raise OptionError(f"--saturation-final-window must be a duration such as 30s, up to 31 years, got {given}")
        return window_us

    @property
    def settings(self) -> "SaturationSettings":
        """The settings of the detectors. Raises TraceError for a file that is none."""

        path = self.saturation_config
        settings = SaturationSettings() if path is None else read_settings(path)
        return settings if self.final_window_us is None else settings._replace(final_window_us=self.final_window_us)


# Settings of detectors, from a YAML file.


class ThresholdFile(TypedDict, total=False):
    """The section of the threshold detector."""

    threshold_ms: Annotated[float, Bounds(at_least=0.001, at_most=1e12)]


class DriftFile(TypedDict, total=False):
    """The section of the backlog-drift detector. All keys but the first are of the format, and no rule of the original
    uses them."""

    window_size_sec: Annotated[float, Bounds(at_least=0.001, at_most=1e9)]
    min_windows: Amount
    peak_ratio: Amount
    peak_ratio_band: Amount
    confidence_ci: Amount
    warmup_windows: Amount
    tail_windows: Amount
    saturated_drain_ratio: Amount
    transient_drain_ratio: Amount


class SettingsFile(TypedDict, total=False):
    """The keys of a file."""

    threshold: ThresholdFile
    backlog_drift: DriftFile


class SaturationSettings(NamedTuple):
    """Settings of the detectors. `notes` name the settings of a file that have no effect."""

    threshold_ms: float = 5_000.0
    """Mean E2E from which the threshold detector calls a run overloaded."""
    window_us: int = 60_000_000
    """Over such windows the backlog-drift detector looks for a trend."""
    final_window_us: int = 30_000_000
    """The label of a run is the most frequent one in so much time before its last event."""
    notes: tuple[str, ...] = ()


def read_settings(path: Path | str) -> SaturationSettings:
    """Read settings; keys that the file lacks keep their defaults. Raises TraceError."""
    path = Path(path)
    loaded = read_yaml(path)
    given = read_keys(path, SettingsFile, {} if loaded is None else loaded)
    drift = given.get("backlog_drift", {})
    settings: dict[str, Any] = {}
    if "threshold_ms" in given.get("threshold", {}):
        settings["threshold_ms"] = given["threshold"]["threshold_ms"]
    if "window_size_sec" in drift:
        settings["window_us"] = settings["final_window_us"] = int(drift["window_size_sec"] * 1e6)
    notes = tuple(f"{path}: backlog_drift.{key} has no effect" for key in drift if key != "window_size_sec")
    return SaturationSettings(**settings, notes=notes)
