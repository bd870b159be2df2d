"""Routes that vLLM does not have: faults and instances under /blis/, API documentation, and the dashboard."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, partial
from html import escape
from http import HTTPStatus
from importlib.resources import files
from typing import Any

import orjson
from aiohttp import web

from blis_sim.engine.cluster.settings import LONGEST_DELAY_S
from blis_sim.options import BlisError, OptionError
from mockserve.options.faults import LONGEST_S
from mockserve.options.server import POOLING_FAMILY
from mockserve.protocol.errors import ApiError, bad_request, wrong_media_type
from mockserve.protocol.json_text import compact_json
from mockserve.protocol.server_info import Operation
from mockserve.routes.shared import addressed_service, json_reply, json_response, read_body, read_fields
from mockserve.serving.instances import InstanceControl
from mockserve.serving.model import RouteCondition
from mockserve.serving.service import SERVICE, Service


async def dashboard(_request: web.Request) -> web.StreamResponse:
    """Live plots of the server's metrics, for a browser."""
    return web.Response(text=dashboard_page(), content_type="text/html")


@cache
def dashboard_page() -> str:
    """Return the dashboard page, equal for every client: the browser fetches the metrics."""
    return files("mockserve.routes").joinpath("dashboard.html").read_text(encoding="utf-8")


async def dashboard_figures(request: web.Request) -> web.StreamResponse:
    """The server's settings and its figures over time, with percentiles of all observations, as JSON."""
    service = request.app[SERVICE]
    figures = await service.metrics_source.history_json()
    text = orjson.dumps({"server": _dashboard_settings(service), "figures": orjson.Fragment(figures)})
    return web.Response(body=text, content_type="application/json", headers={"Cache-Control": "no-store"})


def _dashboard_settings(service: Service) -> dict[str, Any]:
    """Return the server's settings for the dashboard."""
    options, deployment = service.options, service.model.deployment
    sets_times = options.timing.sets_times
    return {
        "model": service.model.names[0],
        "gpu": None if sets_times else deployment.gpu.name,
        "tp": deployment.tp,
        "dp": deployment.dp,
        "engine": deployment.config.engine,
        "latency_model": "set times" if sets_times else deployment.latency_name,
        "speed": options.speed if options.speed < float("inf") else None,
        "faults": {name: rate for name, rate in service.faults.settings.rates.items() if rate},
        "engine_faults": service.engine_faults.active,
    }


async def show_faults(request: web.Request) -> web.StreamResponse:
    """The settings of faults, and what is wrong with the engine."""
    return json_response(200, _fault_state(addressed_service(request)))


async def change_faults(request: web.Request) -> web.StreamResponse:
    """Set what the body names: settings of faults; under `engine` what starts (seconds, or null) or ends (false)."""
    service = addressed_service(request)
    body = await read_body(request)
    engine = body.pop("engine", {})
    try:
        settings = service.faults.settings.changed(body)
        if not isinstance(engine, dict):
            raise ApiError(f"engine must map faults to seconds, null or false, got {engine!r}")
        for kind, for_s in engine.items():
            is_time = isinstance(for_s, int | float) and not isinstance(for_s, bool) and 0 <= for_s <= LONGEST_S
            if for_s is not None and for_s is not False and not is_time:
                allowed = f"seconds from 0 to {LONGEST_S:g}, null or false"
                raise ApiError(f"engine must map {kind} to {allowed}, got {for_s!r}")
        await service.engine_faults.change(settings, engine)
    except BlisError as error:
        raise ApiError(str(error)) from error
    return json_response(200, _fault_state(service))


async def end_faults(request: web.Request) -> web.StreamResponse:
    """End all faults; an engine that has died stays dead."""
    service = addressed_service(request)
    settings = service.faults.settings.changed({"rates": {}})
    await service.engine_faults.change(settings, dict.fromkeys(service.engine_faults.active, False))
    return json_response(200, _fault_state(service))


def _fault_state(service: Service) -> dict[str, Any]:
    return {**asdict(service.faults.settings), "engine": service.engine_faults.active}


_MOST_DIGITS = 18
"""Most digits of the number of an instance; Python refuses to convert thousands."""


async def list_instances(request: web.Request) -> web.StreamResponse:
    """The instances with their life and load, removed ones too, and how many requests never came to one."""
    control = _instance_control(request)
    return json_reply({"instances": control.describe_all(), "door": control.unrouted_counts()})


async def add_instance(request: web.Request) -> web.StreamResponse:
    """Add an instance like instance 0; it takes requests `startup_s` simulated seconds later, by default at once."""
    control = _instance_control(request)
    body = await read_body(request) if request.can_read_body else {}
    startup_s: Any = body.pop("startup_s", 0)
    is_number = isinstance(startup_s, int | float) and not isinstance(startup_s, bool)
    if body or not is_number or not 0 <= startup_s <= LONGEST_DELAY_S:
        expected = f"startup_s, seconds from 0 to {LONGEST_DELAY_S:g}"
        raise ApiError(f"the body may have {expected}, got {body or startup_s!r}")
    try:
        number = await control.add(startup_s)
    except OptionError as error:
        raise ApiError(str(error), status=HTTPStatus.CONFLICT, kind="ConflictError") from error
    return json_response(HTTPStatus.CREATED, control.describe(number))


async def drain_instance(request: web.Request) -> web.StreamResponse:
    """Send an instance no more requests; it finishes those it has."""
    control, number = _instance_control(request), _instance_number(request)
    await control.drain(number)
    return json_reply(control.describe(number))


async def kill_instance(request: web.Request) -> web.StreamResponse:
    """End an instance. Its requests fail as if its engine had died."""
    control, number = _instance_control(request), _instance_number(request)
    await control.kill(number)
    return json_reply(control.describe(number))


def _instance_control(request: web.Request) -> InstanceControl:
    control = request.app[SERVICE].cluster
    assert isinstance(control, InstanceControl)  # a condition of these routes
    return control


def _instance_number(request: web.Request) -> int:
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
    size = body.get("new_data_parallel_size")
    if size is None:
        raise bad_request("new_data_parallel_size is required")
    _demand_positive("new_data_parallel_size", size)
    _demand_positive("drain_timeout", body.get("drain_timeout", DEFAULT_DRAIN_TIMEOUT_S))
    if size != request.app[SERVICE].model.deployment.dp:
        raise ApiError("Scale failed", status=500, kind="Internal Server Error")
    return json_reply({"message": f"Scaled to {size} data parallel engines"})


async def is_scaling_elastic_ep(_request: web.Request) -> web.StreamResponse:
    """Whether elastic scaling is in progress; always false."""
    idle = {"phase": "idle", "epoch": None, "error": None, "requested_data_parallel_size": None}
    return json_reply({"is_scaling_elastic_ep": False, **idle})


def _demand_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or value <= 0:
        raise bad_request(f"{name} must be a positive integer")


async def query(request: web.Request) -> web.StreamResponse:
    """The engines that hand prompts on, by data-parallel rank, with the address of each of their workers."""
    service = request.app[SERVICE]
    transfer = service.model.transfer
    assert transfer is not None  # a condition of this route
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
    """Refuse the request: the server was started without --enable-scale-out."""
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    raise ApiError(message, status=403, kind="PermissionDeniedError")


REDIRECT_PAGE = (
    '<!DOCTYPE html><html lang="en-US"><title>OAuth2 Redirect</title>'
    "<p>No route of this server uses OAuth2; this window can be closed.</p></html>"
)


class OpenApiText:
    """The OpenAPI document of one application, which never changes.

    The first request for the document builds it on a thread, because reading its tables of 100 kB takes tens of
    milliseconds.
    """

    def __init__(self, summaries: Callable[[], Mapping[str, str]]) -> None:
        """`summaries` returns what each handler does, by its name; it loads the modules of all handlers."""
        self.summaries = summaries
        self._text: bytes | None = None
        self._is_made_once = asyncio.Lock()

    async def read(self, app: web.Application) -> bytes:
        """Return the document of `app` as JSON."""
        async with self._is_made_once:
            if self._text is None:
                self._text = await app[SERVICE].delivery.executor.in_thread(partial(_openapi_text, app))
            return self._text


OPENAPI = web.AppKey("openapi", OpenApiText)
"""Key of an application's OpenAPI document."""


async def openapi(request: web.Request) -> web.StreamResponse:
    """The server's own OpenAPI document."""
    _check_documented(request)
    return web.Response(body=await request.app[OPENAPI].read(request.app), content_type="application/json")


def _openapi_text(app: web.Application) -> bytes:
    from mockserve.protocol.openapi import openapi_document  # loads the bodies of all routes

    service = app[SERVICE]
    document = openapi_document(
        [each for each in _described_operations(app) if _is_described(each)], _schema_section(service.conditions)
    )
    if service.network.root_path:
        document["servers"] = [{"url": service.network.root_path}]
    return compact_json(document)


async def documentation(request: web.Request) -> web.StreamResponse:
    """The routes of the server, as a page to read."""
    _check_documented(request)
    rows = "".join(
        f"<tr><td>{each.method}</td><td><code>{escape(each.path)}</code></td><td>{escape(each.summary)}</td></tr>"
        for each in await request.app[SERVICE].delivery.executor.in_thread(_described_operations, request.app)
    )
    page = f'<!DOCTYPE html><title>Routes</title><table>{rows}</table><p><a href="openapi.json">openapi.json</a></p>'
    return web.Response(text=page, content_type="text/html")


async def oauth2_redirect(request: web.Request) -> web.StreamResponse:
    """Return the page to which an authorization server sends a browser back; no route here uses OAuth2."""
    _check_documented(request)
    return web.Response(text=REDIRECT_PAGE, content_type="text/html")


def _check_documented(request: web.Request) -> None:
    """Raise a 404 where `--disable-fastapi-docs` is given."""
    if request.app[SERVICE].options.network.disable_fastapi_docs:
        raise web.HTTPNotFound


def _described_operations(app: web.Application) -> list[Operation]:
    """Return the described operations of a server, in the order of its routes."""
    summaries = app[OPENAPI].summaries()
    root_path = app[SERVICE].network.root_path
    found: dict[tuple[str, str], Operation] = {}
    for route in app.router.routes():
        if route.resource is not None and route.handler not in (documentation, oauth2_redirect):
            path = route.resource.canonical
            if root_path and path.startswith(root_path + "/"):
                continue  # vLLM's document has paths without the root path
            name = route.handler.__name__
            found.setdefault((route.method, path), Operation(route.method, path, summaries[name], name))
    return list(found.values())


SETTINGS_PATH = "/blis/settings"


def _is_described(operation: Operation) -> bool:
    """Whether the document lists a route: vLLM omits the document's own, mounted and disabled routes.

    The settings of a simulation are a route of this server alone.
    """
    hidden = (openapi.__name__, scale_out_disabled.__name__)
    return (
        operation.path != SETTINGS_PATH
        and operation.method in ("GET", "POST", "DELETE")
        and operation.name not in hidden
    )


def _schema_section(conditions: frozenset[RouteCondition]) -> str:
    """Return the name of the schema variant for the conditions."""
    if RouteCondition.POOLING in conditions:
        return POOLING_FAMILY
    return "scale-out" if RouteCondition.SCALE_OUT in conditions else "base"
