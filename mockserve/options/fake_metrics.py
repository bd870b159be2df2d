"""Fake values for the metrics page, constant or as functions of time, and durations with units.

The keys are those of llm-d-inference-sim.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

from blis_sim.options import OptionError
from blis_sim.options.addition import sequential_sum
from blis_sim.options.text import load_json

_UNITS_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1000.0, "m": 60_000.0, "h": 3_600_000.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def milliseconds(flag: str, text: str) -> float:
    """Parse a duration such as 100, 100ms or 1m30s to milliseconds. Raises OptionError for other text and below 0."""
    try:
        bare = float(text)
    except ValueError:
        parts = _PART.findall(text)
        if not parts or "".join(map("".join, parts)) != text:
            raise OptionError(f"{flag} must be a duration, such as 100, 100ms or 1.5s, got {text!r}") from None
        return sequential_sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
    if not 0 <= bare < float("inf"):
        raise OptionError(f"{flag} must be at least 0, got {text!r}")
    return bare


def go_duration(microseconds: float) -> str:
    """Return a duration as Go writes it: 250µs, 1.5ms, 2m3s."""
    if microseconds < 1000:
        return f"{microseconds:.10g}µs" if microseconds else "0s"
    if microseconds < 1e6:
        return f"{microseconds / 1000:.10g}ms"
    seconds = microseconds / 1e6
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    shown = f"{hours}h" if hours else ""
    shown += f"{minutes}m" if hours or minutes else ""
    return f"{shown}{round(seconds - 3600 * hours - 60 * minutes, 9):.12g}s"


MOST_STD_DEV_FRACTION = 0.3
"""Largest standard deviation as a fraction of the mean, a limit of llm-d-inference-sim."""


def check_deviation(label: str, mean_ms: float, deviation_ms: float) -> None:
    """Raise OptionError for a standard deviation above llm-d-inference-sim's limit."""
    if deviation_ms > MOST_STD_DEV_FRACTION * mean_ms:
        raise OptionError(f"{label}-std-dev must be at most 30 % of {label}, {mean_ms:g} ms, got {deviation_ms:g} ms")


FLAG = "--fake-metrics"
MOST_LORAS = 1000
"""Fake states of adapters, each a line of every metrics page."""

ValueFunction: TypeAlias = Callable[[float], float]
"""A function from seconds since the start to a value."""

GAUGES: Mapping[str, str] = {
    "running-requests": "num_requests_running",
    "waiting-requests": "num_requests_waiting",
    "kv-cache-usage": "kv_cache_usage_perc",
}
COUNTERS: Mapping[str, str] = {
    "total-prompt-tokens": "prompt_tokens",
    "total-generation-tokens": "generation_tokens",
    "prefix-cache-hits": "prefix_cache_hits",
    "prefix-cache-queries": "prefix_cache_queries",
}
HISTOGRAMS: Mapping[str, str] = {
    "ttft-buckets-values": "time_to_first_token_seconds",
    "tpot-buckets-values": "inter_token_latency_seconds",
    "request-tpot-buckets-values": "request_time_per_output_token_seconds",
    "e2erl-buckets-values": "e2e_request_latency_seconds",
    "queue-time-buckets-values": "request_queue_time_seconds",
    "inf-time-buckets-values": "request_inference_time_seconds",
    "prefill-time-buckets-values": "request_prefill_time_seconds",
    "decode-time-buckets-values": "request_decode_time_seconds",
    "request-prompt-tokens": "request_prompt_tokens",
    "request-generation-tokens": "request_generation_tokens",
    "request-max-generation-tokens": "request_max_num_generation_tokens",
    "request-params-max-tokens": "request_params_max_tokens",
}
"""Metric names by key; the fake values are counts per bucket."""


@dataclass(frozen=True, slots=True)
class FakeLora:
    """A fake state of adapters for lora_requests_info."""

    running: str
    waiting: str
    unix_time_s: float


@dataclass(frozen=True, slots=True)
class FakeMetrics:
    """Values that replace measured ones on the metrics page, by metric names without `vllm:`."""

    value_functions: Mapping[str, ValueFunction] = field(default_factory=dict)
    buckets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    success: Mapping[str, float] | None = None
    """Finished requests by reason."""
    loras: Sequence[FakeLora] | None = None


def read_fake_metrics(text: str) -> FakeMetrics:
    """Parse the JSON object; an empty text gives no fake values. Raises OptionError for invalid values."""
    if not text:
        return FakeMetrics()
    try:
        given = load_json(text)
    except ValueError as error:
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}") from error
    if not isinstance(given, dict):
        raise OptionError(f"{FLAG} must be a JSON object, got {text!r}")
    known = (*GAUGES, *COUNTERS, *HISTOGRAMS, "request-success-total", "loras")
    for key in given:
        if key not in known:
            raise OptionError(f"{FLAG}: unknown key {key!r}, known are {', '.join(known)}")
    names = {**GAUGES, **COUNTERS}
    return FakeMetrics(
        value_functions={names[key]: _value_function(key, value) for key, value in given.items() if key in names},
        buckets={HISTOGRAMS[key]: _counts(key, value) for key, value in given.items() if key in HISTOGRAMS},
        success=_success(given.get("request-success-total")),
        loras=_loras(given.get("loras")),
    )


def _value_function(key: str, value: object) -> ValueFunction:
    if _is_number(value):
        number = float(value)
        return lambda _seconds: number
    kind, *parts = str(value).split(":")
    if kind not in _COURSES or len(parts) != 3:
        shapes = ", ".join(f"{name}:start:end:period" for name in _COURSES)
        raise OptionError(f"{FLAG}: {key} must be a number or one of {shapes}, got {value!r}")
    try:
        start, end = float(parts[0]), float(parts[1])
    except ValueError as error:
        raise OptionError(f"{FLAG}: {key} must go from a number to a number, got {value!r}") from error
    period_s = milliseconds(f"{FLAG}: {key}", parts[2]) / 1000
    if period_s <= 0:
        raise OptionError(f"{FLAG}: {key} must have a period above 0, got {value!r}")
    shape = _COURSES[kind]
    return lambda seconds: start + (end - start) * shape(seconds / period_s)


_COURSES: Mapping[str, ValueFunction] = {
    "oscillate": lambda periods: (1 - math.cos(2 * math.pi * periods)) / 2,
    "ramp": lambda periods: min(1.0, periods),
    "rampreset": lambda periods: periods % 1,
    "squarewave": lambda periods: float(periods % 1 >= 0.5),
}
"""Shapes by name: functions from elapsed periods to the fraction between start and end value."""


def _counts(key: str, value: object) -> Sequence[int]:
    if not isinstance(value, list) or not all(isinstance(each, int) and each >= 0 for each in value):
        raise OptionError(f"{FLAG}: {key} must be a list of counts per bucket, got {value!r}")
    return value


def _success(value: object) -> Mapping[str, float] | None:
    if value is not None and not (isinstance(value, dict) and all(map(_is_number, value.values()))):
        raise OptionError(f"{FLAG}: request-success-total must map reasons to numbers, got {value!r}")
    return value


def _loras(value: object) -> Sequence[FakeLora] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise OptionError(f"{FLAG}: loras must be a list of objects, got {value!r}")
    if len(value) > MOST_LORAS:
        raise OptionError(f"{FLAG}: there may be at most {MOST_LORAS} loras, got {len(value)}")
    states = [_lora_state(each) for each in value]
    for each in states:
        if not _is_number(timestamp := each.get("timestamp", 0)):
            raise OptionError(f"{FLAG}: the timestamp of loras must be a number, got {timestamp!r}")
    return [
        FakeLora(str(each.get("running", "")), str(each.get("waiting", "")), float(each.get("timestamp", 0)))
        for each in states
    ]


def _lora_state(value: object) -> Mapping[str, Any]:
    """Return an object, or that of a JSON text, the form that llm-d-inference-sim reads in YAML."""
    try:
        found = load_json(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"{FLAG}: loras must be a list of objects, got one that is {value!r:.80}")
    return found


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
