"""Routes that force a state: pinned metrics, synthetic load, and settings of llm-d-inference-sim."""

import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from aiohttp import web

from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.options import BlisError, OptionError
from blis_sim.options.option import load_json
from mockserve.metrics.page import MOST_PINS, MetricOverrides, MetricsSource, Pin
from mockserve.options.faults import FAILURE_TYPES
from mockserve.options.server import check_deviation, go_duration, is_number, milliseconds, read_fake_metrics
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import compact_json
from mockserve.routes.shared import addressed_service, json_reply, read_object
from mockserve.serving.background import MOST_KV_FRACTION, MOST_RUNNING, BackgroundLoad
from mockserve.serving.service import SERVICE, Service

_LONGEST_S = 1e6


async def show_pins(request: web.Request) -> web.StreamResponse:
    """The series of the metrics page that are pinned."""
    return _shown_pins(metric_overrides(request))


async def pin_metrics(request: web.Request) -> web.StreamResponse:
    """Pin series: each of `pins` has a name, perhaps labels, a value, and perhaps `for_s` seconds."""
    service = addressed_service(request)
    body = await read_object(request)
    rows = body.get("pins")
    if set(body) != {"pins"} or not isinstance(rows, list) or len(rows) > MOST_PINS:
        raise ApiError(f"the body must have pins, a list of at most {MOST_PINS}, got {sorted(body)}")
    pins = [_read_pin(row, number) for number, row in enumerate(rows)]
    page = (await service.metrics_source.page(in_thread=service.delivery.executor.in_thread)).decode()
    lines = page.splitlines()
    series = {line.partition("{")[0].partition(" ")[0] for line in lines if not line.startswith("#")}
    series |= {line.split()[2] for line in lines if line.startswith("# TYPE ")}  # a gauge may have no sample yet
    for pin in pins:
        if pin.name not in series:
            raise ApiError(f"there is no series {pin.name[:100]!r} on the metrics page")
    overrides = metric_overrides(request)
    if len(overrides.active()) + len(pins) > MOST_PINS:
        raise ApiError(f"there may be at most {MOST_PINS} pins")
    overrides.pin(pins)
    return _shown_pins(overrides)


async def release_metrics(request: web.Request) -> web.StreamResponse:
    """Release the series given by `name` query parameters, or all series without any."""
    overrides = metric_overrides(request)
    overrides.release(request.query.getall("name", []))
    return _shown_pins(overrides)


async def show_load(request: web.Request) -> web.StreamResponse:
    """The synthetic load beside the requests of clients."""
    return json_reply(_shown_load(addressed_service(request)).shown())


async def set_load(request: web.Request) -> web.StreamResponse:
    """Set the number of `running` synthetic requests, their `prompt_tokens`, and the withheld `kv_fraction`."""
    load = _shown_load(addressed_service(request))
    body = await read_object(request)
    now = load.shown()
    limits = {"running": MOST_RUNNING, "kv_fraction": MOST_KV_FRACTION, "prompt_tokens": 1_000_000}
    for name, value in body.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        whole = name != "kv_fraction"
        if name not in limits or not is_number or (whole and not isinstance(value, int)):
            raise ApiError(f"the body may have {', '.join(limits)}, each a number, got {name[:40]!r}: {value!r:.40}")
        least = 1 if name == "prompt_tokens" else 0
        if not least <= value <= limits[name]:
            raise ApiError(f"{name} must be from {least} to {limits[name]}, got {value!r:.40}")
    requested = {**now, **body}
    try:
        load.set(int(requested["running"]), float(requested["kv_fraction"]), int(requested["prompt_tokens"]))
    except BlisError as error:
        raise ApiError(str(error)) from error
    return json_reply(load.shown())


async def end_load(request: web.Request) -> web.StreamResponse:
    """End the synthetic load."""
    load = _shown_load(addressed_service(request))
    load.set(0, 0.0, 1)
    return json_reply(load.shown())


def _read_pin(row: Any, number: int) -> Pin:
    where = f"pins[{number}]"
    if not isinstance(row, dict) or not set(row) <= {"name", "labels", "value", "for_s"}:
        raise ApiError(f"{where} must have name, value, and perhaps labels and for_s, got {row!r:.80}")
    name, labels, value, for_s = row.get("name"), row.get("labels", {}), row.get("value"), row.get("for_s")
    if not isinstance(name, str):
        raise ApiError(f"{where} must have a name, got {name!r:.40}")
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise ApiError(f"{where} must have labels as texts, got {labels!r:.80}")
    if not is_number(value):
        raise ApiError(f"{where} must have a number as its value, got {value!r:.40}")
    if for_s is not None and not (is_number(for_s) and 0 < for_s <= _LONGEST_S):
        raise ApiError(f"{where} must have for_s, seconds up to {_LONGEST_S:g}, got {for_s!r:.40}")
    return Pin(name, labels, float(value), None if for_s is None else time.monotonic() + for_s)


def _shown_pins(overrides: MetricOverrides) -> web.StreamResponse:
    return json_reply({"pins": [each.shown() for each in overrides.active()]}, HTTPStatus.OK)


def metric_overrides(request: web.Request) -> MetricOverrides:
    """Return what the addressed metrics page shows in place of measured values."""
    source = addressed_service(request).metrics_source
    assert isinstance(source, MetricsSource)  # true in a server of one process
    return source.overrides


def _shown_load(service: Service) -> BackgroundLoad:
    assert service.background is not None  # a condition of these routes
    return service.background


# Settings of llm-d-inference-sim that change while the server runs: times, failures and fake metrics.

_TIMES = {
    "time-to-first-token": "first_token_us",
    "time-to-first-token-std-dev": "first_token_std_us",
    "inter-token-latency": "token_gap_us",
    "inter-token-latency-std-dev": "token_gap_std_us",
    "prefill-overhead": "prefill_overhead_us",
    "prefill-time-per-token": "prefill_per_token_us",
    "prefill-time-std-dev": "prefill_std_us",
    "kv-cache-transfer-latency": "transfer_us",
    "kv-cache-transfer-latency-std-dev": "transfer_std_us",
    "kv-cache-transfer-time-per-token": "transfer_per_token_us",
    "kv-cache-transfer-time-std-dev": "transfer_per_token_std_us",
}
"""Durations by name, with the fields of the set times."""
_LOAD_FACTOR, _CALCULATOR = "time-factor-under-load", "latency-calculator"
_FAILURE_SETTINGS = ("failure-injection-rate", "failure-types", "fake-metrics")
_MOST_CHARACTERS = 60
"""Characters of a duration, and of a name in an error."""


async def set_fake_metrics(request: web.Request) -> web.StreamResponse:
    """Replace the fake metrics, in the format of --fake-metrics."""
    body = await read_object(request)
    _set_fakes(metric_overrides(request), body)
    return json_reply({})


async def show_admin_config(request: web.Request) -> web.StreamResponse:
    """The settings that can be changed while the server runs, by the names of llm-d-inference-sim."""
    return json_reply(_admin_config(request.app[SERVICE]))


async def change_admin_config(request: web.Request) -> web.StreamResponse:
    """Change what the body names: times, failure-injection-rate (percent), failure-types, fake-metrics."""
    service = request.app[SERVICE]
    body = await read_object(request)
    timing = _present_timing(service)
    known = _FAILURE_SETTINGS if timing is None else (*_FAILURE_SETTINGS, *_TIMES, _LOAD_FACTOR, _CALCULATOR)
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise ApiError(f"{', '.join(known)} can be changed, got {unknown[0][:_MOST_CHARACTERS]!r}")
    rates = _fault_rates(service, body)
    try:
        changed = None if timing is None else _changed_timing(timing, body)
        if "fake-metrics" in body:
            _set_fakes(metric_overrides(request), body["fake-metrics"] or {})
        service.faults.settings = service.faults.settings.changed({"rates": rates})
    except BlisError as error:
        raise ApiError(str(error)) from error
    if changed is not None and changed != timing:
        for each in service.engines.values():
            each.driver.call_engine(lambda engine, _at: engine.set_timing(changed))
    return json_reply(_admin_config(service))


def _present_timing(service: Service) -> RequestTiming | None:
    """Return the times that are set at present; None where the engine computes them."""
    return next(iter(service.engines.values())).driver.engine.timing


def _changed_timing(timing: RequestTiming, body: Mapping[str, Any]) -> RequestTiming:
    """Return the times with the changes of a body. Raises OptionError for a value that no flag may have."""
    changes: dict[str, Any] = {_TIMES[name]: _duration_us(name, body[name]) for name in _TIMES.keys() & body.keys()}
    if _LOAD_FACTOR in body:
        factor = body[_LOAD_FACTOR]
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 1 <= factor < 1e6:
            raise OptionError(f"{_LOAD_FACTOR} must be a number of at least 1, got {factor!r:.40}")
        changes["load_factor"] = float(factor)
    changed = replace(timing, **changes)
    calculator = body.get(_CALCULATOR, "constant" if timing.per_token is False else "per-token")
    if calculator not in ("", "constant", "per-token"):
        raise OptionError(f"{_CALCULATOR} must be constant or per-token, got {calculator!r:.40}")
    by_length = calculator == "per-token" or (
        not calculator and changed.first_token_us == 0 and changed.first_token_std_us == 0
    )
    for name in ("time-to-first-token", "inter-token-latency", "kv-cache-transfer-latency"):
        mean_us, deviation_us = getattr(changed, _TIMES[name]), getattr(changed, _TIMES[f"{name}-std-dev"])
        check_deviation(name, mean_us / 1000, deviation_us / 1000)
    return replace(changed, per_token=by_length)


def _duration_us(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > _MOST_CHARACTERS:
        raise OptionError(f"{name} must be a duration, such as 100, 100ms or 1.5s, got {value!r:.40}")
    return 1000 * milliseconds(name, str(value))


def _fault_rates(service: Service, body: Mapping[str, Any]) -> dict[str, float]:
    now = _shown_failures(service)
    percent, types = body.get("failure-injection-rate"), body.get("failure-types")
    percent = now["failure-injection-rate"] if percent is None else percent
    types = now["failure-types"] if types is None else types
    if not isinstance(percent, int | float) or isinstance(percent, bool) or not 0 <= percent <= 100:
        raise ApiError(f"failure-injection-rate must be from 0 to 100, got {percent!r:.40}")
    if not isinstance(types, list) or not all(isinstance(each, str) and each in FAILURE_TYPES for each in types):
        raise ApiError(f"failure-types must be a list of {', '.join(FAILURE_TYPES)}, got {types!r:.80}")
    kinds = dict.fromkeys(types or FAILURE_TYPES)
    return {FAILURE_TYPES[kind]: percent / 100 / len(kinds) for kind in kinds} if percent else {}


def _admin_config(service: Service) -> dict[str, Any]:
    timing = _present_timing(service)
    return {**_shown_failures(service), **({} if timing is None else _shown_times(timing))}


def _shown_times(timing: RequestTiming) -> dict[str, Any]:
    return {
        _CALCULATOR: "per-token" if timing.per_token else "constant",
        **{name: go_duration(getattr(timing, field)) for name, field in _TIMES.items()},
        _LOAD_FACTOR: timing.load_factor,
    }


def _shown_failures(service: Service) -> dict[str, Any]:
    rates = service.faults.settings.rates
    types = [name for name, fault in FAILURE_TYPES.items() if fault in rates]
    return {
        "failure-injection-rate": round(100 * sum(rates[FAILURE_TYPES[name]] for name in types), 6),
        "failure-types": types if len(types) < len(FAILURE_TYPES) else [],
    }


def _set_fakes(overrides: MetricOverrides, figures: Any) -> None:
    try:
        text = figures if isinstance(figures, str) else compact_json(figures).decode()
        load_json(text)
        overrides.fakes = read_fake_metrics(text)
    except (BlisError, ValueError) as error:
        raise ApiError(str(error)) from None
