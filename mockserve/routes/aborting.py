"""POST /abort_requests and /inference/v1/abort_requests."""

from http import HTTPStatus
from typing import Any

from aiohttp import web

from mockserve.protocol.errors import bad_request
from mockserve.realtime.interface import Driver
from mockserve.routes.shared import json_reply, meant, read_fields, read_object, untyped_reply


async def abort_requests(request: web.Request) -> web.StreamResponse:
    """End the named requests, or all, with the tokens they have."""
    driver = meant(request).driver
    named = (await read_object(request, "Invalid JSON format")).get("request_ids")
    if named:
        if isinstance(named, bool | int | float):
            reason = f"'{type(named).__name__}' object is not iterable"
            return json_reply({"error": f"Failed to abort requests: {reason}"}, HTTPStatus.INTERNAL_SERVER_ERROR)
        _end_named(driver, named)
        return json_reply({"status": "aborted", "aborted": len(named)})
    return json_reply({"status": "aborted", "aborted": driver.end_early()})


async def abort_named_requests(request: web.Request) -> web.StreamResponse:
    """End the named requests with the tokens they have."""
    named = (await read_fields(request)).get("request_ids")
    if named is None:
        raise bad_request("Missing 'request_ids' in request body")
    if isinstance(named, list | str | dict):  # of other values vLLM says nothing
        _end_named(meant(request).driver, named)
    return untyped_reply()


def _end_named(driver: Driver, named: Any) -> None:
    """`named` are ids as clients know them; the engine knows one for each choice, with a number behind it."""
    wanted = {named} if isinstance(named, str) else {each for each in named if isinstance(each, str)}
    driver.end_early({each for each in driver.request_ids if each.rpartition("-")[0] in wanted})
