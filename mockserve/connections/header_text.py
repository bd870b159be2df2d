"""Header fields as vLLM's server reads them: bytes that are not ASCII are Latin-1."""

from aiohttp import web
from multidict import istr


def header_text(request: web.Request, name: istr) -> str | None:
    """The value of a header field; None if it is missing."""
    value = request.headers.get(name)
    if value is None or value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("latin-1")  # which is how the library has read it
