"""Routes that force a state: pinned metrics, synthetic load, recorded replies."""

import math
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeGuard

from aiohttp import web

from blis_sim.options import BlisError, OptionError
from mockserve.metrics.overrides import MOST_PINS, MetricOverrides, Pin
from mockserve.metrics.page import MetricsSource
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import json_array, json_array_of_blocks
from mockserve.responding.answer import json_body
from mockserve.routes.shared import addressed_service, json_reply, read_object
from mockserve.serving.background import MOST_KV_FRACTION, MOST_RUNNING, BackgroundLoad
from mockserve.serving.service import SERVICE, Service

if TYPE_CHECKING:
    from mockserve.playback.playback import Playback

_FILTERS = ("path", "model", "contains", "answered_by", "matched_by")
_MOST_SHOWN = 100


async def show_playback(request: web.Request) -> web.StreamResponse:
    """The number of recorded replies, and the fixtures with how often each was used."""
    return await _shown(request)


async def add_fixtures(request: web.Request) -> web.StreamResponse:
    """Add fixtures, in the format of a fixture file, before the present ones."""
    from mockserve.playback.fixtures import MOST_BYTES, MOST_FIXTURES, read_fixtures  # few servers need it

    playback = _playback(request)
    body = await read_object(request)
    try:
        fixtures = await request.app[SERVICE].delivery.aside.run(True, read_fixtures, body, "the body")
    except OptionError as error:
        raise ApiError(str(error)) from None
    if len(playback.http_fixtures) + len(fixtures) > MOST_FIXTURES:
        raise ApiError(f"there may be at most {MOST_FIXTURES} fixtures")
    if sum(each.num_bytes for each in (*fixtures, *playback.http_fixtures)) > MOST_BYTES:
        raise ApiError(f"the fixtures may take at most {MOST_BYTES >> 20} MB")
    playback.http_fixtures[:0] = fixtures
    return await _shown(request, HTTPStatus.CREATED)


async def remove_fixtures(request: web.Request) -> web.StreamResponse:
    """Remove the fixtures that were set over HTTP."""
    _playback(request).http_fixtures.clear()
    return await _shown(request)


async def list_requests(request: web.Request) -> web.StreamResponse:
    """The latest requests, the oldest first, filtered by the query: path, model, contains, answered_by, matched_by."""
    query = dict(request.query)
    limit = query.pop("limit", str(_MOST_SHOWN))
    if not (limit.isascii() and limit.isdecimal() and 1 <= len(limit) <= 5):
        raise ApiError(f"limit must be a number of requests, got {limit[:40]!r}")
    from mockserve.playback.journal import matching  # few servers need it

    journal, num_shown = _playback(request).journal, int(limit)
    found = await request.app[SERVICE].delivery.aside.run(True, matching, journal.entries, _filters(query))
    shown = found[-num_shown:] if num_shown else []
    requests = json_array_of_blocks(lambda: (each.shown() for each in shown))
    reply = {"count": len(found), "seen": journal.num_seen, "requests": requests}
    return await json_body(request, lambda: reply, is_long=True)


async def assert_requests(request: web.Request) -> web.StreamResponse:
    """Compare the number of requests that the filters of the body find with its `count`: 200 if equal, else 417."""
    body = await read_object(request)
    count = body.pop("count", None)
    if type(count) is not int or count < 0:
        raise ApiError(f"count must be a whole number of at least 0, got {count!r:.40}")
    from mockserve.playback.journal import matching  # few servers need it

    entries, filters = _playback(request).journal.entries, _filters(body)
    found = len(await request.app[SERVICE].delivery.aside.run(True, matching, entries, filters))
    status = HTTPStatus.OK if found == count else HTTPStatus.EXPECTATION_FAILED
    return json_reply({"expected": count, "found": found}, status)


async def forget_requests(request: web.Request) -> web.StreamResponse:
    """Clear the journal of requests."""
    journal = _playback(request).journal
    journal.reset()
    return json_reply({"count": 0, "seen": journal.num_seen, "requests": []})


def _filters(given: dict[str, Any]) -> dict[str, str]:
    for name, value in given.items():
        if name not in _FILTERS or not isinstance(value, str):
            raise ApiError(f"requests are found by {', '.join(_FILTERS)}, each a text; got {name[:40]!r}")
    return given


def _playback(request: web.Request) -> "Playback":
    playback = request.app[SERVICE].playback
    assert playback is not None  # a condition of these routes
    return playback


async def _shown(request: web.Request, status: HTTPStatus = HTTPStatus.OK) -> web.StreamResponse:
    """Reply with the number of recorded replies, and the fixtures with how often each was used."""
    playback = _playback(request)
    fixtures = playback.fixtures

    def shown() -> Iterator[dict[str, Any]]:
        for each in fixtures:
            match = {**each.conditions, "headers": dict(each.headers)}
            yield {"match": match, "times": each.times, "used": each.num_used}

    reply = {"recorded": playback.num_replies, "fixtures": json_array(shown)}
    return await json_body(request, lambda: reply, is_long=True, status=status)


_LONGEST_S = 1e6


async def show_pins(request: web.Request) -> web.StreamResponse:
    """The series of the metrics page that are pinned."""
    return _pins(metric_overrides(request))


async def pin_metrics(request: web.Request) -> web.StreamResponse:
    """Pin series: each of `pins` has a name, perhaps labels, a value, and perhaps `for_s` seconds."""
    service = addressed_service(request)
    body = await read_object(request)
    rows = body.get("pins")
    if set(body) != {"pins"} or not isinstance(rows, list) or len(rows) > MOST_PINS:
        raise ApiError(f"the body must have pins, a list of at most {MOST_PINS}, got {sorted(body)}")
    pins = [_pin(row, number) for number, row in enumerate(rows)]
    page = (await service.metrics_source.page(in_thread=service.delivery.aside.in_thread)).decode()
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
    return _pins(overrides)


async def release_metrics(request: web.Request) -> web.StreamResponse:
    """Release the series given by `name` query parameters, or all series without any."""
    overrides = metric_overrides(request)
    overrides.release(request.query.getall("name", []))
    return _pins(overrides)


async def show_load(request: web.Request) -> web.StreamResponse:
    """The synthetic load beside the requests of clients."""
    return json_reply(_load(addressed_service(request)).shown())


async def set_load(request: web.Request) -> web.StreamResponse:
    """Set the number of `running` synthetic requests, their `prompt_tokens`, and the withheld `kv_fraction`."""
    load = _load(addressed_service(request))
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
    load = _load(addressed_service(request))
    load.set(0, 0.0, 1)
    return json_reply(load.shown())


def _pin(row: Any, number: int) -> Pin:
    where = f"pins[{number}]"
    if not isinstance(row, dict) or not set(row) <= {"name", "labels", "value", "for_s"}:
        raise ApiError(f"{where} must have name, value, and perhaps labels and for_s, got {row!r:.80}")
    name, labels, value, for_s = row.get("name"), row.get("labels", {}), row.get("value"), row.get("for_s")
    if not isinstance(name, str):
        raise ApiError(f"{where} must have a name, got {name!r:.40}")
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise ApiError(f"{where} must have labels as texts, got {labels!r:.80}")
    if not _is_number(value):
        raise ApiError(f"{where} must have a number as its value, got {value!r:.40}")
    if for_s is not None and not (_is_number(for_s) and 0 < for_s <= _LONGEST_S):
        raise ApiError(f"{where} must have for_s, seconds up to {_LONGEST_S:g}, got {for_s!r:.40}")
    return Pin(name, labels, float(value), None if for_s is None else time.monotonic() + for_s)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )


def _pins(overrides: MetricOverrides) -> web.StreamResponse:
    return json_reply({"pins": [each.shown() for each in overrides.active()]}, HTTPStatus.OK)


def metric_overrides(request: web.Request) -> MetricOverrides:
    """Return what the addressed metrics page shows in place of measured values."""
    source = addressed_service(request).metrics_source
    assert isinstance(source, MetricsSource)  # true in a server of one process
    return source.overrides


def _load(service: Service) -> BackgroundLoad:
    assert service.background is not None  # a condition of these routes
    return service.background
