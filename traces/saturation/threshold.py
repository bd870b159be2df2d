"""The `threshold` detector: overloaded when answers take too long on average, over all so far."""

import numpy as np

from traces.saturation.settings import SaturationSettings
from traces.saturation.timeline import Level, Timeline, Verdicts


def threshold(events: Timeline, first: int, settings: SaturationSettings) -> Verdicts:
    """Verdicts on the events from number `first` on."""
    num_answered = events.num_answered[first:]
    limit_ms = settings.threshold_ms
    # Added up one by one: the last bit depends on the order.
    sums_ms = np.concatenate([np.zeros(1), np.cumsum(events.latencies_ms)])
    means_ms = sums_ms[num_answered] / np.maximum(num_answered, 1)
    too_slow = means_ms >= limit_ms
    scores = np.where(
        too_slow, 0.75 + np.minimum(0.25, (means_ms - limit_ms) / limit_ms / 4), 0.5 * means_ms / limit_ms
    )
    return Verdicts(
        levels=np.where(too_slow, Level.OVERLOADED, Level.STABLE).astype(np.int64),
        scores=scores,
        confidences=np.where(num_answered > 0, 1 - 1 / np.sqrt(num_answered + 1), 0.0),
        signals={"mean_e2e": means_ms, "threshold": np.full(len(means_ms), limit_ms)},
        num_without_signals=int(np.searchsorted(num_answered, 1)),
    )
