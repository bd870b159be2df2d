"""JSON bodies as responses: what is long is made on another thread and sent while it is made."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from aiohttp import HttpVersion11, web

from mockserve.protocol.json_text import reply_blocks, reply_json
from mockserve.serving.service import SERVICE

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
