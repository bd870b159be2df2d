"""Compares replies of two servers, without what differs by nature: ids, times, vectors and the model's words."""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 30.0
COMPARED_HEADERS = ("content-type", "allow", "metadata", "x-request-id", "vary")
FIXED_TEXTS = frozenset({"object", "type", "role", "status", "version", "detail", "message", "param", "tags"})
"""Members whose text is compared; other text may be the model's."""
COUNTS = frozenset({"prompt_tokens", "count", "max_model_len", "code", "num_classes", "world_size", "aborted"})

_ID = re.compile(r"\b(?:[0-9a-f]{16}|[0-9a-f]{32})\b|0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `body` is sent as it is if it is bytes, else as JSON."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = self.body if isinstance(self.body, bytes) else json.dumps(self.body)
        return f"{self.method} {self.path} {str(shown)[:300]} {dict(self.headers) or ''}".rstrip()


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole reply, or why there is none, as status 0."""

    status: int
    headers: Mapping[str, str]
    body: str


def answer(url: str, ask: HttpRequest) -> HttpReply:
    """Send one request on a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S)
    data = ask.body if isinstance(ask.body, bytes) or ask.body is None else json.dumps(ask.body).encode()
    kind = {"content-type": "application/json"} if data is not None else {}
    try:
        connection.request(ask.method, ask.path, data, {**kind, **ask.headers})
        reply = connection.getresponse()
        headers = {name.lower(): value for name, value in reply.getheaders()}
        return HttpReply(reply.status, headers, reply.read().decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        return HttpReply(0, {}, type(error).__name__)
    finally:
        connection.close()


def differences(path: str, theirs: HttpReply, ours: HttpReply) -> Iterator[str]:
    """Yield each place at which the replies differ; where the status does, that alone."""
    if theirs.status != ours.status:
        yield f"status {theirs.status} {theirs.body[:300]!r}, ours {ours.status} {ours.body[:300]!r}"
        return
    for name in COMPARED_HEADERS:
        first, second = (_normal_header(name, each.headers.get(name)) for each in (theirs, ours))
        if first != second:
            yield f"header {name} {first!r}, ours {second!r}"
    if theirs.headers.get("content-type", "").startswith(("text/event-stream", "text/plain", "text/html")):
        return
    first, second = (_normal(_shown(path, _parsed(each.body))) for each in (theirs, ours))
    if first != second:
        yield f"body {json.dumps(first)[:600]}\n          ours {json.dumps(second)[:600]}"


def _shown(path: str, body: Any) -> Any:
    """Return what is to be compared: of a description of a server the first members of a dictionary alone."""
    if path.startswith("/server_info") and isinstance(body, dict) and "error" not in body:
        return list(body)
    if path.startswith("/tokenizer_info") and isinstance(body, dict) and "error" not in body:
        return "tokenizer_class" in body
    return body


def _normal_header(name: str, value: str | None) -> str | None:
    if value is None or name == "metadata":
        return value and "<metadata>"
    return ", ".join(sorted(value.split(", "))) if name == "allow" else _ID.sub("X", value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _normal(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return [[key, _normal(each, key)] for key, each in value.items()]
    if isinstance(value, list):
        kinds = [_normal(each, name) for each in value]
        return kinds if len(kinds) < 40 and not all(isinstance(each, int | float) for each in value) else "<numbers>"
    if isinstance(value, str):
        return _ID.sub("X", value) if name in FIXED_TEXTS or not name else "<text>"
    if isinstance(value, bool) or value is None or name in COUNTS:
        return value
    return "<number>"
