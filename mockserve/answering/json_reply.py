"""Whole replies as JSON, with the header that reports load."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from aiohttp import HttpVersion11, web
from multidict import istr

from blis_sim.engine.stats import EngineStats
from mockserve.protocol.json_text import reply_blocks, reply_json
from mockserve.serving.service import SERVICE

ASKED_BY = istr("endpoint-load-metrics-format")
ANSWERED_IN = "endpoint-load-metrics"


class Counted(Protocol):
    """What has figures of itself, which cost something to find."""

    @property
    def stats(self) -> EngineStats: ...


def load_headers(asked: str | None, engine: Counted) -> Mapping[str, str]:
    """The header in the format asked for, `TEXT` or `JSON`; none for any other."""
    if not asked:
        return {}
    stats = engine.stats
    metrics = {
        "num_requests_waiting": float(stats.num_waiting),
        "kv_cache_usage_perc": float(stats.kv_usage_fraction),
    }
    wanted = asked.upper()
    if wanted == "TEXT":
        named = ", ".join(f"named_metrics.{name}={value}" for name, value in metrics.items())
        return {ANSWERED_IN: f"TEXT {named}"}
    if wanted == "JSON":
        return {ANSWERED_IN: f"JSON {json.dumps({'named_metrics': metrics})}"}
    return {}


JSON = "application/json"
WHOLE_BYTES = 1 << 20
"""A longer body is sent in parts."""
PART_BYTES = 1 << 18


async def json_body(
    request: web.Request, make: Callable[[], Any], is_long: bool, headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """What `make` gives as the response to `request`."""
    if not is_long:
        return web.Response(body=reply_json(make()), content_type=JSON, headers=headers)
    parts = _Parts(make)
    aside = request.app[SERVICE].aside
    first = await aside.run(True, parts.next, WHOLE_BYTES)
    if parts.have_ended:
        return web.Response(body=first, content_type=JSON, headers=headers)
    response = web.StreamResponse(headers={**(headers or {}), "Content-Type": JSON})
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    await response.prepare(request)
    await response.write(first)
    while not parts.have_ended:
        await response.write(await aside.run(True, parts.next, PART_BYTES))
    await response.write_eof()
    return response


class _Parts:
    """The text of a JSON value by and by."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._blocks: Iterator[bytes] | None = None
        self.have_ended = False

    def next(self, least_bytes: int) -> bytes:
        """The next so many bytes or a few more; fewer at the end."""
        if self._blocks is None:
            self._blocks = reply_blocks(self._make())
        found: list[bytes] = []
        num_bytes = 0
        for each in self._blocks:
            found.append(each)
            num_bytes += len(each)
            if num_bytes >= least_bytes:
                break
        else:
            self.have_ended = True
        return b"".join(found)
