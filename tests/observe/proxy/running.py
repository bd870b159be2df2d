"""`blis observe --proxy` as a process, and a server behind it that answers with bytes of a test."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests import fork_server
from tests.patience import PATIENCE_S

PROJECT = Path(__file__).resolve().parents[3]


class RunningProxy:
    """A proxy that listens; `ports` in the order of its flags."""

    def __init__(self, process: "subprocess.Popen[str]", ports: list[int]) -> None:
        self.process = process
        self.ports = ports
        self.summary: dict[str, Any] = {}
        self.messages = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def stop(self) -> None:
        """Stop as Ctrl-C does, and read the summary."""
        self.process.send_signal(signal.SIGINT)
        out, self.messages = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, self.messages
        self.summary = json.loads(out)


@contextmanager
def running_proxy(url: str, prefix: Path, *flags: str, num_ports: int = 1) -> Iterator[RunningProxy]:
    """A proxy in front of a server, with ports of its own."""
    command = [sys.executable, "-m", "blis_sim.cli", "observe", "--url", url, "-o", str(prefix)]
    command += ["--proxy", ",".join(["0"] * num_ports), "--proxy-host", "127.0.0.1", "--rtt-ms", "0", "--model", "m"]
    process = fork_server.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert process.stderr is not None
    ports: list[int] = []
    while len(ports) < num_ports:
        line = process.stderr.readline()
        assert line, "the proxy has ended"
        if line.startswith("recording "):
            ports.append(int(line.split(" to ")[0].rsplit(":", 1)[1]))
    try:
        yield RunningProxy(process, ports)
    finally:
        process.kill()
        process.communicate()


class ByteServer:
    """Answers each request whose bytes it has with other bytes, and closes the connection where these are `None`."""

    def __init__(self, replies: dict[bytes, bytes]) -> None:
        self.replies = replies
        self.received: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        place = len(self.received)
        self.received.append(b"")
        waiting = b""
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                self.received[place] += data
                waiting += data
                while found := next((each for each in self.replies if waiting.startswith(each)), None):
                    waiting = waiting[len(found) :]
                    connection.sendall(self.replies[found])
                    if b"connection: close" in self.replies[found]:
                        return


def talk(port: int, *pieces: bytes, until: bytes = b"") -> bytes:
    """Send pieces on one connection; the bytes that come back, to the end of the connection or these."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        for piece in pieces:
            connection.sendall(piece)
        while not until or not received.endswith(until):
            data = connection.recv(65536)
            if not data:
                break
            received += data
    return received
