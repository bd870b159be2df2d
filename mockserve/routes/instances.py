"""/blis/instances: who is behind the router, and how to let instances come and go while running."""

from http import HTTPStatus
from typing import Any

from aiohttp import web

from blis_sim.engine.cluster.autoscaling.delays import LONGEST_DELAY_S
from blis_sim.options import OptionError
from mockserve.protocol.errors import ApiError
from mockserve.routes.handlers import json_response
from mockserve.routes.shared import json_reply, read_body
from mockserve.serving.instances import InstanceControl
from mockserve.serving.service import SERVICE

_MOST_DIGITS = 18
"""Of the number of an instance; Python refuses to convert thousands."""


async def list_instances(request: web.Request) -> web.StreamResponse:
    """The instances with their life and load, removed ones too, and how many requests never came to one."""
    control = _control(request)
    return json_reply({"instances": control.described_all(), "door": control.door()})


async def add_instance(request: web.Request) -> web.StreamResponse:
    """One more instance, like instance 0; it takes requests `startup_s` simulated seconds later, by default at once."""
    control = _control(request)
    body = await read_body(request) if request.can_read_body else {}
    startup_s: Any = body.pop("startup_s", 0)
    is_number = isinstance(startup_s, int | float) and not isinstance(startup_s, bool)
    if body or not is_number or not 0 <= startup_s <= LONGEST_DELAY_S:
        wanted = f"startup_s, seconds from 0 to {LONGEST_DELAY_S:g}"
        raise ApiError(f"the body may have {wanted}, got {body or startup_s!r}")
    try:
        number = await control.add(startup_s)
    except OptionError as error:
        raise ApiError(str(error), status=HTTPStatus.CONFLICT, kind="ConflictError") from error
    return json_response(HTTPStatus.CREATED, control.described(number))


async def drain_instance(request: web.Request) -> web.StreamResponse:
    """Send an instance no more requests; it finishes those it has."""
    control, number = _control(request), _number(request)
    await control.drain(number)
    return json_reply(control.described(number))


async def kill_instance(request: web.Request) -> web.StreamResponse:
    """End an instance; the requests it has fail as those of a dead engine."""
    control, number = _control(request), _number(request)
    await control.kill(number)
    return json_reply(control.described(number))


def _control(request: web.Request) -> InstanceControl:
    control = request.app[SERVICE].cluster
    assert control is not None  # the gate of these routes
    return control


def _number(request: web.Request) -> int:
    text = request.match_info["instance"]
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise ApiError(f"an instance has a number, got {text[:40]!r}", status=HTTPStatus.NOT_FOUND)
    return int(text)
