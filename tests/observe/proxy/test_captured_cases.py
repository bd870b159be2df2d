"""Requests that a genuine vLLM was captured with, through the proxy: each reply has the bytes that the server sent.

Every sixteenth request is sent, and all of them by the nightly profile.
"""

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path

from tests.examples import is_nightly
from tests.observe.proxy.running import running_proxy, talk
from tests.wire.asked.cases_responses import response_cases
from tests.wire.asked.setups import Asked
from tests.wire.captured.case_files import Case, read_cases
from tests.wire.serving import running_server

_FILES = ("c1", "c1b", "c1c", "c2", "c3", "c4", "c6")


class Relay:
    """Stands between the proxy and the server, and keeps the bytes that the server sent on each connection."""

    def __init__(self, port: int) -> None:
        self.sent: list[bytes] = []
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self.sent.append(b"")
                place = len(self.sent) - 1
                threading.Thread(target=self._pass, args=(near, far, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, place), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, place: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if place is not None:
                    self.sent[place] += data
                target.sendall(data)
        if place is None:
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)
        else:
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # which wakes up the other thread as well
        source.close()


def raw(case: Case) -> bytes:
    body = case.body or b""
    headers = {"host": "h", "connection": "close", "content-type": "application/json", **case.headers}
    lines = [f"{case.method} {case.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1") + body


def case_of(asked: Asked) -> Case:
    body = None if asked.body is None else json.dumps(asked.body).encode()
    return Case(asked.name, asked.method, asked.path, asked.headers, body, limit_chars=0)


def test_replies_to_captured_requests_come_byte_for_byte(reference: Path, tmp_path: Path) -> None:
    cases = [*read_cases([reference / "oracle" / f"{name}.py" for name in _FILES]), *map(case_of, response_cases())]
    cases = cases if is_nightly() else cases[::16]
    assert len(cases) > 16
    with running_server(speed=50.0) as server:
        relay = Relay(server.port)
        with running_proxy(relay.url, tmp_path / "r") as proxy:
            for case in cases:
                num_before = len(relay.sent)
                received = talk(proxy.ports[0], raw(case))
                assert received == relay.sent[-1], case.name
                assert received.startswith(b"HTTP/1.1 "), case.name
                assert len(relay.sent) == num_before + 1
            proxy.stop()
        relay.close()
