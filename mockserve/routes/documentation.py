"""GET /openapi.json, and /docs and /redoc, which show it."""

from html import escape

from aiohttp import web

from mockserve.protocol.json_text import compact_json
from mockserve.protocol.server.openapi import Operation, openapi_document
from mockserve.serving.service import SERVICE

REDIRECT_PAGE = (
    '<!DOCTYPE html><html lang="en-US"><title>OAuth2 Redirect</title>'
    "<p>No route of this server uses OAuth2; this window can be closed.</p></html>"
)


async def openapi(request: web.Request) -> web.StreamResponse:
    """The server's own OpenAPI document."""
    document = openapi_document(_operations(request))
    return web.Response(body=compact_json(document), content_type="application/json")


async def documentation(request: web.Request) -> web.StreamResponse:
    """The routes of the server, as a page to read."""
    rows = "".join(
        f"<tr><td>{each.method}</td><td><code>{escape(each.path)}</code></td><td>{escape(each.summary)}</td></tr>"
        for each in _operations(request)
    )
    page = f'<!DOCTYPE html><title>Routes</title><table>{rows}</table><p><a href="openapi.json">openapi.json</a></p>'
    return web.Response(text=page, content_type="text/html")


async def oauth2_redirect(_request: web.Request) -> web.StreamResponse:
    """Return the page to which an authorization server sends a browser back; no route here uses OAuth2."""
    return web.Response(text=REDIRECT_PAGE, content_type="text/html")


def _operations(request: web.Request) -> list[Operation]:
    """What this server answers, in the order of its routes. Raises a 404 where it is not to tell."""
    if request.app[SERVICE].options.disable_fastapi_docs:
        raise web.HTTPNotFound
    found: dict[tuple[str, str], Operation] = {}
    for route in request.app.router.routes():
        if route.resource is not None and route.handler is not documentation:
            path = route.resource.canonical
            summary = (route.handler.__doc__ or "").strip().partition("\n")[0]
            found.setdefault((route.method, path), Operation(route.method, path, summary))
    return list(found.values())
