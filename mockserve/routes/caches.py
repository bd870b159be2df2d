"""POST /reset_prefix_cache, /reset_mm_cache and /reset_encoder_cache."""

from aiohttp import web

from mockserve.protocol.reading.query import QueryFields
from mockserve.routes.shared import json_reply, meant, untyped_reply


async def reset_prefix_cache(request: web.Request) -> web.StreamResponse:
    """Forget all cached prefixes; fails while requests run, unless they may be preempted."""
    query = QueryFields(request.query)
    preempts_running = query.flag("reset_running_requests", False)
    query.flag("reset_external", False)
    query.check()
    return json_reply({"success": meant(request).suspension.reset_prefix_cache(preempts_running)})


async def reset_other_cache(_request: web.Request) -> web.StreamResponse:
    """Empty: what the multi-modal and the encoder cache would hold is not kept in the first place."""
    return untyped_reply()
