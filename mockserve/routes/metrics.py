"""GET /metrics, and every method of every other path that begins with /metrics."""

import gzip
from urllib.parse import parse_qs

from aiohttp import HttpVersion11, web
from prometheus_client.exposition import choose_encoder, gzip_accepted

from mockserve.metrics.page import CONTENT_TYPE
from mockserve.serving.service import SERVICE

GZIP_LEVEL = 6
"""Python's default of 9 takes three times as long for 2 % fewer bytes."""


async def metrics(request: web.Request) -> web.StreamResponse:
    """Return the present figures as Prometheus text. The query is ignored, as vLLM ignores it on this path."""
    page = await request.app[SERVICE].metrics_source.page()
    return web.Response(body=page, headers={"Content-Type": CONTENT_TYPE})


async def mounted_metrics(request: web.Request) -> web.StreamResponse:
    """Return the present figures as the application does that prometheus_client offers and vLLM mounts.

    `name[]` picks samples, `Accept` the format and `Accept-Encoding` gzip. The length is not stated.
    """
    names = parse_qs(request.query_string).get("name[]", ())
    accept = ",".join(request.headers.getall("Accept", ()))
    page = await request.app[SERVICE].metrics_source.page(names, accept)
    _, content_type = choose_encoder(accept)
    response = web.StreamResponse(headers={"Content-Type": content_type})
    if gzip_accepted(",".join(request.headers.getall("Accept-Encoding", ()))):
        page = gzip.compress(page, GZIP_LEVEL)
        response.headers["Content-Encoding"] = "gzip"
    if request.method != "HEAD" and request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    await response.prepare(request)
    if request.method != "HEAD":
        await response.write(page)
    await response.write_eof()
    return response
