"""The HTTP application: the routes that this server has, and what every request goes through."""

from aiohttp import web

from mockserve.front.middlewares import MIDDLEWARES, sign
from mockserve.routes.documentation import OPENAPI, OpenApiText
from mockserve.routes.table import ROUTES
from mockserve.serving.service import SERVICE, Service


def build_app(service: Service) -> web.Application:
    """The application that serves `service`."""
    app = web.Application(middlewares=MIDDLEWARES, client_max_size=service.options.process.max_body_mb * 2**20)
    app[SERVICE] = service
    app[OPENAPI] = OpenApiText()
    taken: set[tuple[str, str]] = set()
    for route in ROUTES:
        if route.gate in service.gates and (route.method, route.path) not in taken:
            taken.add((route.method, route.path))
            for path in service.network.paths_of(route.path):
                app.router.add_route(route.method, path, route.handler)
    app.on_response_prepare.append(sign)
    return app
