"""Parses the head of an HTTP/1.1 response, which determines the framing of the body."""

from collections.abc import Mapping
from dataclasses import dataclass

from blis_sim.options.memo import Memo
from observe.errors import ResponseError

_NO_BODY = frozenset({204, 304})
_MOST_KNOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A parsed head; names of headers are in lower case.

    The body is chunked, or `length` bytes long, or lasts until the connection is closed where that is None.
    """

    status: int
    headers: Mapping[str, str]
    keep_alive: bool
    chunked: bool
    length: int | None

    @property
    def is_interim(self) -> bool:
        """Whether the real response is still to come."""
        return 100 <= self.status < 200 and self.status != 101


def parse_head(head: bytes) -> Head:
    """Parse a head without the empty line at its end. Raises ResponseError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ResponseError(f"expected a status line of HTTP/1.1, got {first[:60]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    status = int(rest[:3])
    chunked = status not in _NO_BODY and "chunked" in headers.get("transfer-encoding", "").lower()
    length = None if chunked else _length(status, headers)
    connection = headers.get("connection", "").lower()
    stays_open = "close" not in connection and (version != "HTTP/1.0" or "keep-alive" in connection)
    return Head(
        status=status,
        headers=headers,
        keep_alive=stays_open and (chunked or length is not None),
        chunked=chunked,
        length=length,
    )


class KnownHeads:
    """Parses each head once: those of one server differ in little, mostly in the second they were written."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads = Memo[bytes, Head](_MOST_KNOWN)

    def parse(self, head: bytes) -> Head:
        """Parse a head like `parse_head`, with a cache. Raises ResponseError."""
        known = self._heads.get(head)
        if known is None:
            known = self._heads.keep(head, parse_head(head))
        return known


def _length(status: int, headers: Mapping[str, str]) -> int | None:
    if status in _NO_BODY:
        return 0
    length = headers.get("content-length")
    if length is not None and not (length.isdecimal() and len(length) < 20):
        raise ResponseError(f"content-length must be a number, got {length[:60]!r}")
    return None if length is None else int(length)
