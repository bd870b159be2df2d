"""A minimal HTTP client on sockets, with the standard library only."""

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.patience import PATIENCE_S, wait_until
from tests.wire.serving import TestServer


@dataclass(frozen=True, slots=True)
class PlainReply:
    """A whole reply; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    server: TestServer,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> PlainReply:
    """One request on a connection of its own. `body` is sent as it is when it is bytes, else as JSON."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    try:
        return call_on(connection, method, path, body, headers)
    finally:
        connection.close()


def call_on(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> PlainReply:
    """One request on an open connection, which stays open."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"content-type": "application/json"} if data is not None else {}
    connection.request(method, path, data, {**sent, **(headers or {})})
    reply = connection.getresponse()
    return PlainReply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


def complete(server: TestServer, **fields: Any) -> PlainReply:
    """POST /v1/completions."""
    return call(server, "POST", "/v1/completions", {"model": "m", "prompt": "hello there", **fields})


def chat(server: TestServer, **fields: Any) -> PlainReply:
    """POST /v1/chat/completions."""
    messages = [{"role": "user", "content": "hello there"}]
    return call(server, "POST", "/v1/chat/completions", {"model": "m", "messages": messages, **fields})


def events_of(body: bytes) -> list[str]:
    """Return the data of each server-sent event."""
    assert body.endswith(b"\n\n"), body[-40:]
    return [each.removeprefix("data: ") for each in body.decode().split("\n\n")[:-1]]


def chunks_of(body: bytes) -> list[Any]:
    """The JSON of each event; the last event must be [DONE]."""
    *events, last = events_of(body)
    assert last == "[DONE]"
    return [json.loads(each) for each in events]


def metric(server: TestServer, name: str, **labels: str) -> float:
    """The value of one sample on the metrics page."""
    value = metric_or_none(server, name, **labels)
    assert value is not None, f"no sample {name} {labels}"
    return value


def metric_or_none(server: TestServer, name: str, **labels: str) -> float | None:
    """The value of one sample on the metrics page; None where there is no such sample."""
    page = call(server, "GET", "/metrics").body.decode()
    for line in page.splitlines():
        if line.startswith((name + "{", name + " ")) and all(
            f'{key}="{value}"' in line for key, value in labels.items()
        ):
            return float(line.rpartition(" ")[2])
    return None


def wait_for_metric(server: TestServer, name: str, value: float, **labels: str) -> None:
    """Poll until a sample has a value. Fails with the last one seen."""

    def complaint() -> str:
        return f"{name} is {metric_or_none(server, name, **labels)}, not {value}"

    wait_until(lambda: metric_or_none(server, name, **labels) == value, complaint)


def open_request(server: TestServer, **fields: Any) -> socket.socket:
    """Return a connection with a completion request in progress; closing it disconnects the client."""
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE_S)
    connection.sendall(raw_completion(prompt="hello there", **fields))
    return connection


def raw_completion(version: str = "1.1", **fields: Any) -> bytes:
    """The bytes of a completion request."""
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    """Return all bytes up to `wanted`; fails when the connection ends first."""
    received = b""
    while wanted not in received:
        data = connection.recv(65536)
        assert data, received
        received += data
    return received


def read_all(connection: socket.socket) -> bytes:
    """Return all bytes until the connection closes."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received
