"""Routes of playback: its fixtures, and the journal of requests."""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from aiohttp import web

from blis_sim.options import OptionError
from blis_sim.wings.playback.playing import playback_of
from blis_sim.wings.playback.recordings import MOST_BYTES, MOST_FIXTURES, matching, read_fixtures
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import json_array, json_array_of_blocks
from mockserve.reply.stream import json_body
from mockserve.routes.shared import json_reply, read_object
from mockserve.serving.service import SERVICE

_FILTERS = ("path", "model", "contains", "answered_by", "matched_by")
_MOST_SHOWN = 100


async def show_playback(request: web.Request) -> web.StreamResponse:
    """The number of recorded replies, and the fixtures with how often each was used."""
    return await _shown(request)


async def add_fixtures(request: web.Request) -> web.StreamResponse:
    """Add fixtures, in the format of a fixture file, before the present ones."""
    playback = playback_of(request.app[SERVICE])
    body = await read_object(request)
    try:
        fixtures = await request.app[SERVICE].delivery.executor.run(True, read_fixtures, body, "the body")
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
    playback_of(request.app[SERVICE]).http_fixtures.clear()
    return await _shown(request)


async def list_requests(request: web.Request) -> web.StreamResponse:
    """The latest requests, the oldest first, filtered by the query: path, model, contains, answered_by, matched_by."""
    query = dict(request.query)
    limit = query.pop("limit", str(_MOST_SHOWN))
    if not (limit.isascii() and limit.isdecimal() and 1 <= len(limit) <= 5):
        raise ApiError(f"limit must be a number of requests, got {limit[:40]!r}")
    journal, num_shown = playback_of(request.app[SERVICE]).journal, int(limit)
    found = await request.app[SERVICE].delivery.executor.run(True, matching, journal.entries, _filters(query))
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
    entries, filters = playback_of(request.app[SERVICE]).journal.entries, _filters(body)
    found = len(await request.app[SERVICE].delivery.executor.run(True, matching, entries, filters))
    status = HTTPStatus.OK if found == count else HTTPStatus.EXPECTATION_FAILED
    return json_reply({"expected": count, "found": found}, status)


async def forget_requests(request: web.Request) -> web.StreamResponse:
    """Clear the journal of requests."""
    journal = playback_of(request.app[SERVICE]).journal
    journal.reset()
    return json_reply({"count": 0, "seen": journal.num_seen, "requests": []})


def _filters(given: dict[str, Any]) -> dict[str, str]:
    for name, value in given.items():
        if name not in _FILTERS or not isinstance(value, str):
            raise ApiError(f"requests are found by {', '.join(_FILTERS)}, each a text; got {name[:40]!r}")
    return given


async def _shown(request: web.Request, status: HTTPStatus = HTTPStatus.OK) -> web.StreamResponse:
    """Reply with the number of recorded replies, and the fixtures with how often each was used."""
    playback = playback_of(request.app[SERVICE])
    fixtures = playback.fixtures

    def shown() -> Iterator[dict[str, Any]]:
        for each in fixtures:
            match = {**each.conditions, "headers": dict(each.headers)}
            yield {"match": match, "times": each.times, "used": each.num_used}

    reply = {"recorded": playback.num_replies, "fixtures": json_array(shown)}
    return await json_body(request, lambda: reply, is_long=True, status=status)
