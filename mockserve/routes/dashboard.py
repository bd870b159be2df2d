"""The dashboard: a page for browsers, and the figures that it shows."""

from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from aiohttp import web

from mockserve.serving.service import SERVICE, Service


async def dashboard(_request: web.Request) -> web.StreamResponse:
    """Live plots of the server's own figures, for a browser."""
    return web.Response(text=dashboard_page(), content_type="text/html")


@cache
def dashboard_page() -> str:
    """Return the dashboard page, equal for every client: the browser fetches the figures."""
    return files("mockserve.routes").joinpath("dashboard.html").read_text(encoding="utf-8")


async def dashboard_figures(request: web.Request) -> web.StreamResponse:
    """The server's settings and its figures over time, with percentiles of all observations, as JSON."""
    service = request.app[SERVICE]
    figures = await service.metrics_source.live()
    text = orjson.dumps({"server": _facts(service), "figures": orjson.Fragment(figures)})
    return web.Response(body=text, content_type="application/json", headers={"Cache-Control": "no-store"})


def _facts(service: Service) -> dict[str, Any]:
    """Return what a reader of the figures must know about the server."""
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
