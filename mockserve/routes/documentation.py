"""Pages for people: the documentation of the interface, and the dashboard."""

import asyncio
from functools import cache, partial
from html import escape
from importlib.resources import files

from aiohttp import web

from mockserve.protocol.json_text import compact_json
from mockserve.protocol.server.openapi.document import Operation, openapi_document
from mockserve.routes.control import scale_out_disabled
from mockserve.serving.gates import Gate
from mockserve.serving.service import SERVICE, Service

REDIRECT_PAGE = (
    '<!DOCTYPE html><html lang="en-US"><title>OAuth2 Redirect</title>'
    "<p>No route of this server uses OAuth2; this window can be closed.</p></html>"
)


class OpenApiText:
    """The OpenAPI document of one application, which never changes.

    The first request for the document has it made on a thread: its tables are files of 100 kB, and what they say takes
    tens of milliseconds to read.
    """

    def __init__(self) -> None:
        self._text: bytes | None = None
        self._is_made_once = asyncio.Lock()

    async def read(self, app: web.Application) -> bytes:
        """Return the document of `app` as JSON."""
        async with self._is_made_once:
            if self._text is None:
                self._text = await app[SERVICE].aside.in_thread(partial(_openapi_text, app))
            return self._text


OPENAPI = web.AppKey("openapi", OpenApiText)
"""The place of an application's own document."""


async def openapi(request: web.Request) -> web.StreamResponse:
    """The server's own OpenAPI document."""
    _check_documented(request)
    return web.Response(body=await request.app[OPENAPI].read(request.app), content_type="application/json")


def _openapi_text(app: web.Application) -> bytes:
    service = app[SERVICE]
    document = openapi_document([each for each in _operations(app) if _is_described(each)], _section(service))
    if service.network.root_path:
        document["servers"] = [{"url": service.network.root_path}]
    return compact_json(document)


async def documentation(request: web.Request) -> web.StreamResponse:
    """The routes of the server, as a page to read."""
    _check_documented(request)
    rows = "".join(
        f"<tr><td>{each.method}</td><td><code>{escape(each.path)}</code></td><td>{escape(each.summary)}</td></tr>"
        for each in _operations(request.app)
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


def _operations(app: web.Application) -> list[Operation]:
    """Return what a server answers, in the order of its routes."""
    root_path = app[SERVICE].network.root_path
    found: dict[tuple[str, str], Operation] = {}
    for route in app.router.routes():
        if route.resource is not None and route.handler not in (documentation, oauth2_redirect):
            path = route.resource.canonical
            if root_path and path.startswith(root_path + "/"):
                continue  # vLLM's paths are written without it
            summary = (route.handler.__doc__ or "").strip().partition("\n")[0]
            found.setdefault((route.method, path), Operation(route.method, path, summary, route.handler.__name__))
    return list(found.values())


def _is_described(operation: Operation) -> bool:
    """Whether the document names a route: vLLM's leaves out itself, what is mounted, and what is switched off."""
    hidden = (openapi.__name__, scale_out_disabled.__name__)
    return operation.method in ("GET", "POST", "DELETE") and operation.name not in hidden


def _section(service: Service) -> str:
    """Return which schemas differ from those of a plain server."""
    if Gate.POOLING in service.gates:
        return "pooling"
    return "scale-out" if Gate.SCALE_OUT in service.gates else "base"


async def dashboard(_request: web.Request) -> web.StreamResponse:
    """Live plots of the server's own metrics, for a browser."""
    return web.Response(text=dashboard_page(), content_type="text/html")


@cache
def dashboard_page() -> str:
    """Equal bytes for every client: the browser asks for /metrics by itself."""
    return files("mockserve.routes").joinpath("dashboard.html").read_text(encoding="utf-8")
