"""The routes of recorded replies: fixtures, and the journal of requests."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from aiohttp import web

from blis_sim.options import OptionError
from mockserve.protocol.errors import ApiError
from mockserve.routes.shared import json_reply, read_object
from mockserve.serving.service import SERVICE

if TYPE_CHECKING:
    from mockserve.playback.playback import Playback

_FILTERS = ("path", "model", "contains", "answered_by", "matched_by")
_MOST_SHOWN = 100


async def show_playback(request: web.Request) -> web.StreamResponse:
    """The number of recorded replies, and the fixtures with how often each was used."""
    return json_reply(_state(_playback(request)))


async def add_fixtures(request: web.Request) -> web.StreamResponse:
    """Add fixtures, in the form of a file's, before those that are there."""
    from mockserve.playback.fixtures import MOST_FIXTURES, read_fixtures  # few servers have recorded replies

    playback = _playback(request)
    body = await read_object(request)
    try:
        fixtures = read_fixtures(body, "the body")
    except OptionError as error:
        raise ApiError(str(error)) from None
    if len(playback.set_fixtures) + len(fixtures) > MOST_FIXTURES:
        raise ApiError(f"there may be at most {MOST_FIXTURES} fixtures")
    playback.set_fixtures[:0] = fixtures
    return json_reply(_state(playback), HTTPStatus.CREATED)


async def remove_fixtures(request: web.Request) -> web.StreamResponse:
    """Remove the fixtures that were set over HTTP."""
    playback = _playback(request)
    playback.set_fixtures.clear()
    return json_reply(_state(playback))


async def list_requests(request: web.Request) -> web.StreamResponse:
    """The latest requests, the oldest first, filtered by the query: path, model, contains, answered_by, matched_by."""
    query = dict(request.query)
    limit = query.pop("limit", str(_MOST_SHOWN))
    if not (limit.isascii() and limit.isdecimal() and 1 <= len(limit) <= 5):
        raise ApiError(f"limit must be a number of requests, got {limit[:40]!r}")
    journal = _playback(request).journal
    found = journal.found(_filters(query))
    return json_reply({"count": len(found), "seen": journal.num_seen, "requests": found[-int(limit) or len(found) :]})


async def assert_requests(request: web.Request) -> web.StreamResponse:
    """Compare the number of requests that the filters of the body find with its `count`: 200 if equal, else 417."""
    body = await read_object(request)
    count = body.pop("count", None)
    if type(count) is not int or count < 0:
        raise ApiError(f"count must be a whole number of at least 0, got {count!r:.40}")
    found = len(_playback(request).journal.found(_filters(body)))
    status = HTTPStatus.OK if found == count else HTTPStatus.EXPECTATION_FAILED
    return json_reply({"expected": count, "found": found}, status)


async def forget_requests(request: web.Request) -> web.StreamResponse:
    """Forget the requests that were noted."""
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
    assert playback is not None  # the gate of these routes
    return playback


def _state(playback: "Playback") -> dict[str, Any]:
    fixtures = [
        {"match": {**each.conditions, "headers": dict(each.headers)}, "times": each.times, "used": each.num_used}
        for each in playback.fixtures
    ]
    return {"recorded": playback.num_replies, "fixtures": fixtures}
