"""Routes under /blis/: faults and instances, looked at and changed while the server runs."""

from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from aiohttp import web

from blis_sim.engine.cluster.autoscaling.pipeline import LONGEST_DELAY_S
from blis_sim.options import BlisError, OptionError
from mockserve.options.faults import LONGEST_S
from mockserve.protocol.errors import ApiError, bad_request, wrong_media_type
from mockserve.protocol.json_text import compact_json
from mockserve.routes.shared import json_reply, json_response, meant, read_body, read_fields
from mockserve.serving.instances import InstanceControl
from mockserve.serving.service import SERVICE, Service


async def show_faults(request: web.Request) -> web.StreamResponse:
    """The settings of faults, and what is wrong with the engine."""
    return json_response(200, _state(meant(request)))


async def change_faults(request: web.Request) -> web.StreamResponse:
    """Set what the body names: settings of faults; under `engine` what starts (seconds, or null) or ends (false)."""
    service = meant(request)
    body = await read_body(request)
    engine = body.pop("engine", {})
    try:
        settings = service.faults.settings.changed(body)
        changes = _engine_changes(engine)
        service.engine_faults.check(settings.rank, changes)
        service.faults.settings = settings
        for kind, for_s in changes.items():
            if for_s is False:
                service.engine_faults.end(kind)
            else:
                service.engine_faults.start(kind, for_s)
    except BlisError as error:
        raise ApiError(str(error)) from error
    return json_response(200, _state(service))


async def end_faults(request: web.Request) -> web.StreamResponse:
    """Let nothing go wrong any more; the dead stay dead."""
    service = meant(request)
    service.faults.settings = service.faults.settings.changed({"rates": {}})
    for kind in service.engine_faults.active:
        service.engine_faults.end(kind)
    return json_response(200, _state(service))


def _engine_changes(engine: Any) -> dict[str, float | bool | None]:
    if not isinstance(engine, dict):
        raise ApiError(f"engine must map faults to seconds, null or false, got {engine!r}")
    for kind, for_s in engine.items():
        is_time = isinstance(for_s, int | float) and not isinstance(for_s, bool) and 0 <= for_s <= LONGEST_S
        if for_s is not None and for_s is not False and not is_time:
            allowed = f"seconds from 0 to {LONGEST_S:g}, null or false"
            raise ApiError(f"engine must map {kind} to {allowed}, got {for_s!r}")
    return engine


def _state(service: Service) -> dict[str, Any]:
    return {**asdict(service.faults.settings), "engine": service.engine_faults.active}


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


DEFAULT_DRAIN_TIMEOUT_S = 120


async def scale_elastic_ep(request: web.Request) -> web.StreamResponse:
    """Succeeds for the number of engines there is, fails for any other."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    body = await read_fields(request, "Invalid JSON format")
    wanted = body.get("new_data_parallel_size")
    if wanted is None:
        raise bad_request("new_data_parallel_size is required")
    _demand_positive("new_data_parallel_size", wanted)
    _demand_positive("drain_timeout", body.get("drain_timeout", DEFAULT_DRAIN_TIMEOUT_S))
    if wanted != request.app[SERVICE].deployment.dp:
        raise ApiError("Scale failed", status=500, kind="Internal Server Error")
    return json_reply({"message": f"Scaled to {wanted} data parallel engines"})


async def is_scaling_elastic_ep(_request: web.Request) -> web.StreamResponse:
    """Never."""
    idle = {"phase": "idle", "epoch": None, "error": None, "requested_data_parallel_size": None}
    return json_reply({"is_scaling_elastic_ep": False, **idle})


def _demand_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or value <= 0:
        raise bad_request(f"{name} must be a positive integer")


async def query(request: web.Request) -> web.StreamResponse:
    """The engines that hand prompts on, by data-parallel rank, with the address of each of their workers."""
    service = request.app[SERVICE]
    transfer = service.transfer
    assert transfer is not None  # the gate of this route
    ranks = range(len(service.engines))
    workers = {str(worker): {"0": f"tcp://{transfer.host}:{transfer.port + worker}"} for worker in range(transfer.tp)}
    found = {
        str(rank): {
            "engine_id": transfer.engine_id if len(ranks) == 1 else f"{transfer.engine_id}_dp{rank}",
            "worker_addr": workers,
        }
        for rank in ranks
    }
    return web.Response(body=compact_json(found), content_type="application/json")


async def scale_out_disabled(_request: web.Request) -> web.StreamResponse:
    """Refused: the server was started without --enable-scale-out."""
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    raise ApiError(message, status=403, kind="PermissionDeniedError")
