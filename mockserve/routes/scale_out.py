"""What the routes of split deployments answer where they are not asked for."""

from aiohttp import web

from mockserve.protocol.errors import ApiError


async def scale_out_disabled(_request: web.Request) -> web.StreamResponse:
    """Refused: the server was started without --enable-scale-out."""
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    raise ApiError(message, status=403, kind="PermissionDeniedError")
