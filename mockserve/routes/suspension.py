"""POST /pause, /resume, /sleep, /wake_up, /release_kv_cache_memory; GET /is_paused, /is_sleeping."""

from contextlib import AbstractContextManager
from typing import cast

from aiohttp import web

from mockserve.metrics.operations import SLEEP
from mockserve.protocol.reading.forms import QueryFields
from mockserve.routes.shared import json_reply, meant
from mockserve.serving.service import SERVICE
from mockserve.serving.suspension import PauseMode

PAUSE_MODES = ("abort", "wait", "keep")
MAX_SLEEP_LEVEL = 2


async def pause(request: web.Request) -> web.StreamResponse:
    """Suspend generation: requests under way are ended, waited for or kept; new ones are refused or kept."""
    query = QueryFields(request.query)
    mode, clears_caches = _pause_mode(query), query.flag("clear_cache", True)
    query.check()
    await meant(request).suspension.pause(mode, clears_caches)
    return json_reply({"status": "paused"})


async def resume(request: web.Request) -> web.StreamResponse:
    """Generate again."""
    meant(request).suspension.resume()
    return json_reply({"status": "resumed"})


async def is_paused(request: web.Request) -> web.StreamResponse:
    """Whether generation is suspended."""
    return json_reply({"is_paused": meant(request).suspension.is_paused})


async def sleep(request: web.Request) -> web.StreamResponse:
    """Suspend generation and, from level 1 on, give the memory away."""
    query = QueryFields(request.query)
    level, mode = query.integer("level", 1, 0, MAX_SLEEP_LEVEL), _pause_mode(query)
    query.check()
    with _timed(request, "sleep"):
        await meant(request).suspension.sleep(level, mode)
    return json_reply({"status": "sleeping", "level": level})


async def wake_up(request: web.Request) -> web.StreamResponse:
    """Take the memory back, all of it or the parts named by tags; with the last part generation resumes."""
    tags = request.query.getall("tags", None)
    with _timed(request, "wake"):
        is_awake = meant(request).suspension.wake_up(tags)
    return json_reply({"status": "awake" if is_awake else "sleeping", "tags": tags})


async def is_sleeping(request: web.Request) -> web.StreamResponse:
    """Whether the engine sleeps, at whatever level, or is paused."""
    return json_reply({"is_sleeping": meant(request).suspension.is_sleeping})


async def release_kv_cache_memory(request: web.Request) -> web.StreamResponse:
    """Give away the KV cache of a paused engine until it wakes up."""
    with _timed(request, "release_kv_cache_memory"):
        meant(request).suspension.release_kv_cache()
    return json_reply({"status": "kv_cache_released"})


def _timed(request: web.Request, operation: str) -> AbstractContextManager[None]:
    return request.app[SERVICE].metrics_source.operations.timed(SLEEP, operation)


def _pause_mode(query: QueryFields) -> PauseMode:
    return cast(PauseMode, query.choice("mode", "abort", PAUSE_MODES))
