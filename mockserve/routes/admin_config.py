"""Settings of llm-d-inference-sim that change while the server runs: times, failures and fake metrics."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aiohttp import web

from blis_sim.engine.latency.request_timing import RequestTiming
from blis_sim.options import BlisError, OptionError
from blis_sim.options.text import load_json
from mockserve.metrics.overrides import MetricOverrides
from mockserve.options.fake_metrics import check_deviation, go_duration, milliseconds, read_fake_metrics
from mockserve.options.faults import FAILURE_TYPES
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import compact_json
from mockserve.routes.shared import json_reply, read_object
from mockserve.routes.states import metric_overrides
from mockserve.serving.service import SERVICE, Service

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
    timing = _timing(service)
    known = _FAILURE_SETTINGS if timing is None else (*_FAILURE_SETTINGS, *_TIMES, _LOAD_FACTOR, _CALCULATOR)
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise ApiError(f"{', '.join(known)} can be changed, got {unknown[0][:_MOST_CHARACTERS]!r}")
    rates = _fault_rates(service, body)
    try:
        changed = None if timing is None else _changed(timing, body)
        if "fake-metrics" in body:
            _set_fakes(metric_overrides(request), body["fake-metrics"] or {})
        service.faults.settings = service.faults.settings.changed({"rates": rates})
    except BlisError as error:
        raise ApiError(str(error)) from error
    if changed is not None and changed != timing:
        for each in service.engines.values():
            each.driver.call_engine(lambda engine, _at: engine.set_timing(changed))
    return json_reply(_admin_config(service))


def _timing(service: Service) -> RequestTiming | None:
    """Return the times that are set at present; None where the engine computes them."""
    return next(iter(service.engines.values())).driver.engine.timing


def _changed(timing: RequestTiming, body: Mapping[str, Any]) -> RequestTiming:
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
    now = _failures(service)
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
    timing = _timing(service)
    return {**_failures(service), **({} if timing is None else _times(timing))}


def _times(timing: RequestTiming) -> dict[str, Any]:
    return {
        _CALCULATOR: "per-token" if timing.per_token else "constant",
        **{name: go_duration(getattr(timing, field)) for name, field in _TIMES.items()},
        _LOAD_FACTOR: timing.load_factor,
    }


def _failures(service: Service) -> dict[str, Any]:
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
