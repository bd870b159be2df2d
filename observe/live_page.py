"""The live page of a run: one file without others, served to this machine alone."""

import asyncio
import base64
import hashlib
import socket
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from importlib.resources import files
from urllib.parse import parse_qs, urlsplit

import orjson

from observe.client import reason_of
from observe.errors import RunError, print_message
from observe.figures import Snapshot, View

_HOST = "127.0.0.1"
_MOST_SNAPSHOTS = 3600
_MOST_HEAD_BYTES = 16384
_TIMEOUT_S = 5.0


class LivePage:
    """A display in a browser beside another one, which keeps its own period.

    It listens on the loopback address, and answers two paths to requests that name this machine as host. So no page of
    another site can read it. The browser may load and run nothing but its own text.
    """

    period_s = 1.0

    def __init__(self, beside: View, title: str) -> None:
        self._beside = beside
        self._title = title
        self._snapshots = deque[Snapshot](maxlen=_MOST_SNAPSHOTS)
        self._num_shown = 0
        self._shown_beside_s = 0.0
        self._server: asyncio.Server | None = None
        self._hosts: frozenset[str] = frozenset()
        page = files("observe").joinpath("live_page.html").read_bytes()
        script = page.split(b"<script>")[1].split(b"</script>")[0]
        own = base64.b64encode(hashlib.sha256(script).digest()).decode()
        self._page = page
        self._policy = (
            f"default-src 'none'; script-src 'sha256-{own}'; style-src 'unsafe-inline'; img-src data:;"
            " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    async def listen(self, port: int) -> str:
        """Serve the page at this port, 0 for a free one, and return its address. Raises RunError."""
        try:
            self._server = await asyncio.start_server(self._answer_request, _HOST, port, limit=_MOST_HEAD_BYTES)
        except OSError as error:
            raise _cannot_listen(port, error) from error
        port = self._server.sockets[0].getsockname()[1]
        self._hosts = frozenset(f"{host}:{port}" for host in (_HOST, "localhost"))
        return f"http://{_HOST}:{port}/"

    def show(self, snapshot: Snapshot) -> None:
        """Keep the snapshot for browsers, and show it beside if it is time."""
        self._snapshots.append(snapshot)
        self._num_shown += 1
        if snapshot.elapsed_s >= self._shown_beside_s + self._beside.period_s:
            self._shown_beside_s = snapshot.elapsed_s
            self._beside.show(snapshot)

    def close(self) -> None:
        """Answer no more; browsers keep what they show."""
        if self._server is not None:
            self._server.close()
        self._beside.close()

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close its connection."""
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_TIMEOUT_S):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                writer.write(self._reply_to(head))
                await writer.drain()
        writer.close()

    def _reply_to(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        method, target, *_ = [*first.split(" "), "", ""]
        hosts = [line[5:].strip().lower() for line in lines if line.lower().startswith("host:")]
        if method != "GET" or len(hosts) != 1 or hosts[0] not in self._hosts:
            return self._http_reply("403 Forbidden")
        url = urlsplit(target)
        if url.path == "/":
            return self._http_reply("200 OK", "text/html; charset=utf-8", self._page)
        if url.path == "/snapshots":
            return self._http_reply("200 OK", "application/json", self._snapshots_from(url.query))
        return self._http_reply("404 Not Found")

    def _snapshots_from(self, query: str) -> bytes:
        """Return the snapshots from a number on, as far as they are kept."""
        number = parse_qs(query).get("from", ["0"])[0]
        num_new = self._num_shown - (int(number) if number.isdecimal() and len(number) < 10 else 0)
        new = list(self._snapshots)[-num_new:] if num_new > 0 else []
        return orjson.dumps(
            {"title": self._title, "next": self._num_shown, "snapshots": [asdict(snapshot) for snapshot in new]}
        )

    def _http_reply(self, status: str, kind: str = "text/plain", body: bytes = b"") -> bytes:
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            f"cache-control: no-store\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
            f"content-security-policy: {self._policy}\r\n\r\n"
        )
        return head.encode("latin-1") + body


def check_live_port(port: int) -> None:
    """Raise RunError where no page can be served at this port, before anything is sent or moved."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
            probe.listen()
        except OSError as error:
            raise _cannot_listen(port, error) from error


def _cannot_listen(port: int, error: OSError) -> RunError:
    return RunError(f"--live-html cannot listen on port {port}: {reason_of(error)}")


async def with_live_page(beside: View, port: int | None, title: str) -> View:
    """The display with a page of its own at a port; alone where that is None. Raises RunError."""
    if port is None:
        return beside
    page = LivePage(beside, title)
    print_message(f"live at {await page.listen(port)}")
    return page
