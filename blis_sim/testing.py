"""A server of `blis serve` as a process of its own, for tests of clients: `with server("qwen3-14b") as vllm: ...`.

`python -m blis_sim.testing` is the process of `blis_sim.server`: a server with the settings that standard input has by
name, as JSON.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import IO, Any

from blis_sim.options import BlisError, options_from

_READY = re.compile(rb"https?://[^\s/]+:\d+")
_START_S = 120.0
_STOP_S = 10.0
_LOOK_S = 0.02
_SAMPLE = re.compile(r"(?P<name>[^{\s]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ServerError(RuntimeError):
    """The server did not start, or has ended; the message has the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A request as the server received it, without keys. `body` is its JSON value; None for one over 1 MB.

    `answered_by` is `playback` for a reply that the test has set, else `generated`.
    """

    path: str
    headers: Mapping[str, str]
    model: str
    last_user: str
    body: Any
    answered_by: str


@dataclass(slots=True)
class Server:
    """A running server. `url` is its address, and `base_url` what clients of OpenAI take."""

    url: str
    process: "subprocess.Popen[bytes]"
    _log: IO[bytes]
    _counted: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    _logged_bytes: int = 0

    @property
    def base_url(self) -> str:
        """The address of the OpenAI routes."""
        return f"{self.url}/v1"

    @property
    def log(self) -> str:
        """Return the text that the server has written to standard output and standard error since `mark`, or since its
        start."""
        self._log.seek(self._logged_bytes)
        return self._log.read().decode("utf-8", "replace")

    def mark(self) -> None:
        """Make `log` and `count` start from this instant."""
        self._counted = dict(self._samples())
        self._logged_bytes = self._log.seek(0, os.SEEK_END)

    def count(self, name: str, **labels: str) -> float:
        """Return by how much a series of `/metrics` has grown since `mark`, all series with these labels together.

        `name` is that of the exposition, such as `vllm:request_success_total`. Raises KeyError when there is no such
        series.
        """
        asked = set(labels.items())
        found = {key: value for key, value in self._samples().items() if key[0] == name and asked <= key[1]}
        if not found:
            raise KeyError(f"no series {name} with {labels} at {self.url}/metrics")
        return sum(value - self._counted.get(key, 0.0) for key, value in found.items())

    @property
    def requests(self) -> list[ReceivedRequest]:
        """The requests to a model since `mark`, the oldest first; the server keeps the latest 10,000."""
        found = json.loads(self._call("GET", "/blis/requests"))["requests"]
        names = [each.name for each in fields(ReceivedRequest)]
        return [ReceivedRequest(**{name: each[name] for name in names}) for each in found]

    def reply(
        self,
        text: str | None = None,
        *,
        reasoning: str | None = None,
        tool_calls: Sequence[Mapping[str, Any]] = (),
        fault: str | int = "",
        times: int | None = None,
        **match: str,
    ) -> None:
        """Let later requests have this reply, streamed or whole, on every route that generates text.

        A tool call has a `name` and `arguments`. Without a message the reply is generated.

        `fault` is an error by name or status, such as 429, or breaks the reply: `"disconnect; after_events=3"`,
        `"slow_first_token; first_token_delay_s=2"`. `times` bounds the uses. `match` has conditions on requests:
        `last_user_regex="weather"`, `model="m"`, `path="/v1/completions"`, `body_regex=...`. The latest reply whose
        conditions hold answers. Raises ValueError for what the server refuses.
        """
        message = {"text": text, "reasoning": reasoning, "tool_calls": list(tool_calls)}
        fixture: dict[str, Any] = {"match": match}
        if given := {name: value for name, value in message.items() if value}:
            fixture["reply"] = given
        if fault:
            fixture["fault"] = str(fault)
        if times is not None:
            fixture["times"] = times
        self._call("POST", "/blis/playback", {"fixtures": [fixture]})

    def clear_replies(self) -> None:
        """Forget all replies that were set, and the requests that were received."""
        self._call("DELETE", "/blis/playback")
        self._call("DELETE", "/blis/requests")

    def set_faults(self, **faults: Any) -> None:
        """Change the faults of the server, such as `rates={"overloaded": 0.5}`: the fields of POST /blis/faults."""
        self._call("POST", "/blis/faults", faults)

    def clear_faults(self) -> None:
        """End all faults."""
        self._call("DELETE", "/blis/faults")

    def _samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        lines = self._call("GET", "/metrics").decode().splitlines()
        samples = (_SAMPLE.fullmatch(line) for line in lines if line and not line.startswith("#"))
        return {
            (each["name"], frozenset(_LABEL.findall(each["labels"] or ""))): float(each["value"])
            for each in samples
            if each is not None
        }

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_START_S) as response:
                found: bytes = response.read()
        except urllib.error.HTTPError as error:
            raise ValueError(f"{method} {path}: {_message_of(error.read())}") from None
        return found


def _message_of(reply: bytes) -> str:
    """Return the message of an error's body."""
    return str(json.loads(reply)["error"]["message"])


@contextmanager
def server(*flags: str) -> Iterator[Server]:
    """Start `blis serve` with these flags on a free port, with faults and replies that can be set, and end it
    afterwards.

    `flags` are words of the command line, such as `"qwen3-14b", "--speed", "10"`. Raises ServerError when the server
    ends before its port is open.
    """
    own_flags = ("--host", "127.0.0.1", "--port", "0", "--enable-fault-control", "--enable-playback-control")
    with serving(["-m", "blis_sim.cli", "serve", *flags, *own_flags]) as running:
        yield running


@contextmanager
def serving(words: Sequence[str], read: bytes = b"") -> Iterator[Server]:
    """Run Python with these arguments and `read` as standard input, which starts a server, and end it afterwards.

    Raises ServerError when the server ends before its port is open.
    """
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as given:
        given.write(read)
        given.seek(0)
        process = subprocess.Popen([sys.executable, *words], stdin=given, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield Server(_address(process, log), process, log)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: "subprocess.Popen[bytes]", log: IO[bytes]) -> str:
    """Wait for the line with the address, which is written when the port is open."""
    deadline, written = time.monotonic() + _START_S, b""
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        log.seek(0)
        written = log.read()
        found = _READY.search(written)
        if found is not None and not has_ended:
            return found[0].decode()
        if has_ended:
            break
        time.sleep(_LOOK_S)
    lines = written.decode("utf-8", "replace").strip().splitlines()[-10:]
    raise ServerError("blis serve did not start: " + "\n".join(lines))


def main() -> int:
    """Serve with the settings on standard input. Exit codes: 0 done, 2 bad input."""
    from mockserve.command import run
    from mockserve.options.serve import ServeOptions

    given = json.load(sys.stdin)
    try:
        # Lists of settings are tuples, which JSON does not have.
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        return run(options_from(ServeOptions, **values))
    except BlisError as error:
        sys.stderr.write(f"blis serve: error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
