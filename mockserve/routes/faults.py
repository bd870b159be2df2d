"""/blis/faults: what goes wrong on purpose, seen and changed while running. Only there with --enable-fault-control."""

from dataclasses import asdict
from typing import Any

from aiohttp import web

from blis_sim.options import BlisError
from mockserve.options.fault_settings import LONGEST_S
from mockserve.protocol.errors import ApiError
from mockserve.routes.handlers import json_response
from mockserve.routes.shared import meant, read_body
from mockserve.serving.service import Service


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
