"""One request to both servers, and what differs in the shape of the replies."""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.wire.captured.events import events_of
from tests.wire.captured.normal import normal, normal_text

TIMEOUT_S = 60
MAX_SHOWN_CHARS = 160
WORDS = ("partial_json",)
"""Keys of a model's words beside those that captures have."""
_MISSING = object()
_DRAWN = ((re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{16,32}\b"), "X"), (re.compile(r"^[A-Za-z0-9]{9}$"), "<nine>"))


class Reply(NamedTuple):
    """The reply of one server."""

    status: int
    content_type: str
    text: str

    @property
    def json(self) -> Any:
        """The body of a whole reply."""
        return json.loads(self.text)


class Server(NamedTuple):
    """A server by its address."""

    host: str
    port: int

    @classmethod
    def at(cls, url: str) -> "Server":
        """The server of a URL."""
        address = urlsplit(url)
        return cls(str(address.hostname), int(address.port or 80))

    def ask(self, path: str, body: Any, headers: Mapping[str, str] | None = None, method: str = "POST") -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        try:
            text = reply.read()
        except http.client.IncompleteRead as error:
            text = error.partial + b"\n(the connection was closed)"
        connection.close()
        return Reply(reply.status, reply.getheader("content-type") or "", text.decode("utf-8", "replace"))


def differences(theirs: Reply, ours: Reply) -> list[str]:
    """Every place at which the shapes differ; where the status does, that alone."""
    if theirs.status != ours.status:
        return [f"status: vLLM {theirs.status} {_shown(theirs.text)}, ours {ours.status} {_shown(ours.text)}"]
    if theirs.content_type != ours.content_type:
        return [f"content type: vLLM {theirs.content_type}, ours {ours.content_type}"]
    return list(_walk("", _shape(theirs), _shape(ours)))


def _shape(reply: Reply) -> Any:
    if reply.content_type.startswith("text/event-stream"):
        events = [_masked(each) for each in events_of(reply.text, is_cut=False)]
        return [each for number, each in enumerate(events) if number == 0 or each != events[number - 1]]
    try:
        return _masked(normal(reply.json))
    except ValueError:
        return normal_text(reply.text)


def _masked(value: Any, key: str = "") -> Any:
    """Without ids of calls and counts of tokens, which depend on how a model writes its calls."""
    if isinstance(value, dict):
        return {name: _masked(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_masked(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and key.endswith("_tokens"):
        return "<count>"
    if isinstance(value, str) and key in WORDS:
        return "<text>" if value else ""
    if isinstance(value, str) and key in ("id", "call_id", "item_id", "signature"):
        for pattern, replacement in _DRAWN:
            value = pattern.sub(replacement, value)
    return value


def _walk(place: str, theirs: Any, ours: Any) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*theirs, *(each for each in ours if each not in theirs)]:
            yield from _walk(f"{place}.{name}", theirs.get(name, _MISSING), ours.get(name, _MISSING))
        if set(theirs) == set(ours) and list(theirs) != list(ours):
            yield f"{place} order: vLLM {list(theirs)}, ours {list(ours)}"
    elif isinstance(theirs, list) and isinstance(ours, list):
        for index, (their, our) in enumerate(zip(theirs, ours, strict=False)):
            yield from _walk(f"{place}[{index}]", their, our)
        if len(theirs) != len(ours):
            yield f"{place} length: vLLM {_ends(theirs, ours)}, ours {_ends(ours, theirs)}"
    elif theirs != ours or type(theirs) is not type(ours):
        yield f"{place}: vLLM {_shown(theirs)}, ours {_shown(ours)}"


def _ends(these: list[Any], those: list[Any]) -> str:
    """How many there are, and those that the other has not."""
    return f"{len(these)} {_shown(these[len(those) :])}"


def _shown(value: Any) -> str:
    text = "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "..."
