"""GET /dashboard: a page that plots the metrics page while it changes."""

from functools import cache
from importlib.resources import files

from aiohttp import web


async def dashboard(_request: web.Request) -> web.StreamResponse:
    """Live plots of the server's own metrics, for a browser."""
    return web.Response(text=_page(), content_type="text/html")


@cache
def _page() -> str:
    """The same bytes for everybody: the browser asks for /metrics by itself."""
    return files("mockserve.routes").joinpath("dashboard.html").read_text(encoding="utf-8")
