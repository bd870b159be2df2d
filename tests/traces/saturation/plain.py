"""The rules of the detectors in plain Python, event by event, as one would explain them."""

import math
from collections.abc import Iterator, Sequence

from traces.saturation import Timeline

Result = tuple[str, float, float, dict[str, float]]
"""Level, score, confidence, signals."""


def mean(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def events_of(events: Timeline) -> Iterator[tuple[int, int, list[float]]]:
    """After each event: its instant, how many have arrived, the latencies of the answers so far."""
    for at_us, num_arrived, num_answered in zip(events.at_us, events.num_arrived, events.num_answered, strict=True):
        yield int(at_us), int(num_arrived), events.latencies_ms[:num_answered].tolist()


def threshold(events: Timeline, limit_ms: float) -> Iterator[Result]:
    for _, _, latencies in events_of(events):
        if not latencies:
            yield "STABLE", 0.0, 0.0, {}
            continue
        average = mean(latencies)
        slow = average >= limit_ms
        score = 0.75 + min(0.25, (average - limit_ms) / limit_ms / 4) if slow else 0.5 * average / limit_ms
        signals = {"mean_e2e": average, "threshold": limit_ms}
        yield "OVERLOADED" if slow else "STABLE", score, 1 - 1 / math.sqrt(len(latencies) + 1), signals


def composite(events: Timeline) -> Iterator[Result]:
    for _, num_arrived, latencies in events_of(events):
        count = len(latencies)
        noise = 1 / math.sqrt(num_arrived)
        deficit = max(0.0, 1 - count / num_arrived)
        raw = 0.0
        if count >= 2:
            earlier, later = mean(latencies[: count // 2]), mean(latencies[count // 2 :])
            raw = min(1.0, max(0.0, (later - earlier) / earlier)) if earlier else 0.0
        rising = count >= 20 and _is_rising(latencies)
        trend = raw if rising else 0.0
        score = max(deficit, trend)
        level = "STABLE" if score < noise else "OVERLOADED" if trend > noise else "BACKLOGGED"
        signals = {
            "latency_trend": trend,
            "latency_trend_raw": raw,
            "noise_floor": noise,
            "quartile_monotone": float(rising),
            "rate_deficit": deficit,
        }
        yield level, score, min(1.0, num_arrived / 20), signals


def _is_rising(latencies: list[float]) -> bool:
    quarter = len(latencies) // 4
    quarters = [latencies[i * quarter : (i + 1) * quarter] for i in range(3)] + [latencies[3 * quarter :]]
    first, second, third, fourth = map(mean, quarters)
    return first < second < third < fourth


def backlog_drift(events: Timeline, window_us: int) -> Iterator[Result]:
    at_window_ends: list[int] = []
    for at_us, num_arrived, latencies in events_of(events):
        in_flight = num_arrived - len(latencies)
        while len(at_window_ends) <= at_us // window_us:
            at_window_ends.append(at_window_ends[-1] if at_window_ends else 0)
        at_window_ends[-1] = in_flight
        slope = _slope(at_window_ends)
        noise = 1 / math.sqrt(num_arrived)
        level = "STABLE" if slope <= noise else "BACKLOGGED" if slope <= 3 * noise else "OVERLOADED"
        signals = {
            "arrivals": float(num_arrived),
            "completions": float(len(latencies)),
            "in_flight": float(in_flight),
            "noise_floor": noise,
            "running_slope": slope,
        }
        yield level, min(1.0, max(0.0, slope) / (3 * noise)), min(1.0, num_arrived / 20), signals


def _slope(values: list[int]) -> float:
    count = len(values)
    if count < 2:
        return 0.0
    sum_x = sum(range(count))
    sum_xx = sum(x * x for x in range(count))
    sum_xy = sum(x * y for x, y in enumerate(values))
    return (count * sum_xy - sum_x * sum(values)) / (count * sum_xx - sum_x * sum_x)
