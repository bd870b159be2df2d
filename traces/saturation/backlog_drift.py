"""The `backlog-drift` detector: behind when ever more requests are under way from window to window."""

import numpy as np

from traces.saturation.settings import SaturationSettings
from traces.saturation.timeline import Floats, Ints, Level, Timeline, Verdicts, confidence, noise_floor

_OVERLOADED_AT_NOISE_FLOORS = 3


def backlog_drift(events: Timeline, first: int, settings: SaturationSettings) -> Verdicts:
    """Verdicts on the events from number `first` on."""
    in_flight = events.num_arrived - events.num_answered
    slopes = _slopes(events.at_us // settings.window_us, in_flight)[first:]
    noise = noise_floor(events.num_arrived[first:])
    much = _OVERLOADED_AT_NOISE_FLOORS * noise
    levels = np.where(slopes <= noise, Level.STABLE, np.where(slopes <= much, Level.BACKLOGGED, Level.OVERLOADED))
    return Verdicts(
        levels=levels.astype(np.int64),
        scores=np.minimum(1, np.maximum(0, slopes) / much),
        confidences=confidence(events.num_arrived[first:]),
        signals={
            "arrivals": events.num_arrived[first:].astype(np.float64),
            "completions": events.num_answered[first:].astype(np.float64),
            "in_flight": in_flight[first:].astype(np.float64),
            "noise_floor": noise,
            "running_slope": slopes,
        },
    )


def _slopes(windows: Ints, values: Ints) -> Floats:
    """After each event, the least-squares slope of what was the value at the end of each window so far.

    Windows count from 0; one without events keeps the value of the one before it, and the present one has its latest.
    """
    occupied, firsts, which = np.unique(windows, return_index=True, return_inverse=True)
    at_end = values[np.append(firsts[1:], len(values)) - 1].astype(np.float64)
    lasts = occupied.astype(np.float64)
    num_held = np.diff(lasts)
    before = _sums_before(at_end[:-1] * num_held)[which]
    weighted_before = _sums_before(at_end[:-1] * num_held * (lasts[:-1] + lasts[1:] - 1) / 2)[which]
    x, y = windows.astype(np.float64), values.astype(np.float64)
    count = x + 1
    sum_x = x * count / 2
    sum_xx = x * count * (2 * x + 1) / 6
    sum_y = before + y
    sum_xy = weighted_before + x * y
    spread = count * sum_xx - sum_x * sum_x
    return np.divide(count * sum_xy - sum_x * sum_y, spread, out=np.zeros(len(x)), where=spread > 0)


def _sums_before(values: Floats) -> Floats:
    """The sum of all values before each place, and of all of them at the end."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])
