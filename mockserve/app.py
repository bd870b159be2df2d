"""The HTTP application: which routes there are."""

from aiohttp import web

from mockserve.handlers import Handler
from mockserve.middlewares import MIDDLEWARES, sign
from mockserve.routes.chat import chat_completions
from mockserve.routes.completions import completions
from mockserve.routes.documentation import documentation, openapi
from mockserve.routes.faults import change_faults, end_faults, show_faults
from mockserve.routes.metrics import metrics
from mockserve.routes.models import models
from mockserve.routes.server_state import health, load, version
from mockserve.routes.shared import SERVICE
from mockserve.service import Service

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("GET", "/v1/models", models),
    ("GET", "/health", health),
    ("GET", "/ping", health),
    ("POST", "/ping", health),
    ("GET", "/version", version),
    ("GET", "/load", load),
    ("GET", "/metrics", metrics),
    ("HEAD", "/metrics", metrics),
    ("GET", "/metrics/", metrics),
    ("HEAD", "/metrics/", metrics),
    ("GET", "/openapi.json", openapi),
    ("GET", "/docs", documentation),
    ("GET", "/redoc", documentation),
)
"""Every route. `web.Request` is all a handler gets; what it shares with others is in `SERVICE`."""

FAULT_ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/blis/faults", show_faults),
    ("POST", "/blis/faults", change_faults),
    ("DELETE", "/blis/faults", end_faults),
)
"""Only there with --enable-fault-control."""


def build_app(service: Service) -> web.Application:
    """The application that serves `service`."""
    app = web.Application(middlewares=MIDDLEWARES, client_max_size=service.options.max_body_mb * 2**20)
    app[SERVICE] = service
    root_path = service.network.root_path
    options = service.options
    routes = ROUTES + (FAULT_ROUTES if options.enable_fault_control else ())
    if options.offers_ready_route:
        routes += (("GET", "/health/ready", health),)
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
        if root_path:
            app.router.add_route(method, root_path + path, handler)
    app.on_response_prepare.append(sign)
    return app
