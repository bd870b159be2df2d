"""One hostile request: the bytes of an HTTP message, and how the attack has to treat it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

JSON_TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An HTTP request before it is serialised, so that any part of it can be made hostile."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_TYPE)
    version: str = "HTTP/1.1"

    def with_headers(self, **headers: str | None) -> "Message":
        """A copy with further headers; underscores in a name stand for dashes, and None removes a header."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        merged = {**self.headers, **named}
        return replace(self, headers={name: value for name, value in merged.items() if value is not None})

    def serialised(self, further_lines: Sequence[bytes] = (), adds_length: bool = True) -> bytes:
        """The bytes to send; `further_lines` are header lines that need not be well-formed."""
        lines = [f"{self.method} {self.path} {self.version}".encode("utf-8", "surrogateescape"), b"Host: localhost"]
        lines += [f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in self.headers.items()]
        if adds_length:
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join((*lines, *further_lines, b"", self.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostileRequest:
    """Bytes to send in pieces, and what is known about the answer to them."""

    kind: str
    route: str
    pieces: tuple[bytes, ...]
    is_complete: bool = True
    """Whether the bytes are a whole HTTP message, so that the server owes an answer."""
    may_generate: bool = True
    """Whether a valid reply may take long because tokens are generated."""
    runs_alone: bool = False
    """Whether no other request of the attack is in flight meanwhile."""
    disturbs: bool = False
    """Whether the request may legitimately end or stall other requests."""
    name: str = ""
    """The name by which the request was drawn, where it can be drawn again and shrunk."""
    shown: str = ""
    """The beginning of the body, for the report."""
