"""The routes whose usual requests are answered without the library's router."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from aiohttp import web
from yarl import URL

from mockserve.front.middlewares import MIDDLEWARES

Respond: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class FrontRoute:
    """One path, and what answers it: the handler within all that goes on around every handler."""

    url: URL
    app: web.Application
    match_info: web.UrlMappingMatchInfo
    respond: Respond


def front_routes(app: web.Application) -> Mapping[tuple[str, str], FrontRoute]:
    """Those of `app` whose path is always the same, by method and path."""
    found = {}
    for route in app.router.routes():
        resource = route.resource
        if isinstance(resource, web.PlainResource):
            found[route.method, resource.canonical] = _front_route(app, route, resource.canonical)
    return found


def _front_route(app: web.Application, route: web.AbstractRoute, path: str) -> FrontRoute:
    match_info = web.UrlMappingMatchInfo({}, route)
    match_info.add_app(app)
    match_info.freeze()
    respond: Respond = route.handler
    for middleware in reversed(MIDDLEWARES):
        respond = partial(middleware, handler=respond)
    return FrontRoute(URL.build(path=path, encoded=True), app, match_info, respond)
