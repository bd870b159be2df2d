"""What every route starts with."""

from typing import Any

from aiohttp import web

from mockserve.connection import wanted_rank
from mockserve.protocol.errors import ApiError, wrong_media_type
from mockserve.protocol.fields import parse_json
from mockserve.service import Service, new_id

SERVICE = web.AppKey("service", Service)


async def read_body(request: web.Request) -> dict[str, Any]:
    """The JSON object a client sent. Raises ApiError when it did not send one, or not as JSON."""
    if request.content_type != "application/json":
        raise wrong_media_type()
    return parse_json(await request.read())


def reply_id(request: web.Request, prefix: str, wanted: str | None) -> str:
    """The id of a reply: the request header's, else the body's, else a new one."""
    return f"{prefix}-{request.headers.get('X-Request-Id') or wanted or new_id()}"


def wanted_priority(request: web.Request) -> int | None:
    """The priority a request header asks for; None if there is none, or no number."""
    return _number(request.headers.get("X-Vllm-Priority"))


def check_rank(request: web.Request, service: Service) -> None:
    """Raise ApiError when a header asks for an engine that there is not."""
    rank = wanted_rank(request)
    if rank is not None and not 0 <= rank < service.num_engines:
        raise ApiError(f"data_parallel_rank {rank} is out of range [0, {service.num_engines}).")


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
