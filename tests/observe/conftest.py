"""A real server for the tests of the load client, and the client run against it as a user would."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from observe.command import run
from observe.options import ObserveOptions
from tests.patience import wait_until
from traces import read_trace


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """The base URL of a running `fake_server.py`."""
    script = Path(__file__).with_name("fake_server.py")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.fixture
def seen(server_url: str) -> Callable[[], list[dict[str, Any]]]:
    """A function that returns the completion requests the server received since it was last called."""

    def received() -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{server_url}/seen") as answer:
            requests: list[dict[str, Any]] = json.load(answer)
        return requests

    received()
    return received


class Holding:
    """Lets the server answer a fixed number of requests, so that a run cannot end before the test acts."""

    def __init__(self, server_url: str) -> None:
        self._url = server_url

    def after(self, num_requests: int) -> None:
        """Keep all waiting that come after so many."""
        self._get(f"hold/{num_requests}")

    def wait_for_some(self) -> None:
        """Return when a request is kept waiting."""
        wait_until(lambda: int(self._get("held")) > 0)

    def release(self) -> None:
        """Answer those that wait, and all others."""
        self._get("release")

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self._url}/{path}") as answer:
            body: bytes = answer.read()
        return body


@pytest.fixture
def holding(server_url: str) -> Iterator[Holding]:
    """A server that keeps requests waiting, until the end of the test at the latest."""
    made = Holding(server_url)
    yield made
    made.release()


@pytest.fixture
def observe(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run `blis observe` with these options; gives `code`, `summary`, `messages` and the `trace` it wrote."""

    def observed(**options: Any) -> SimpleNamespace:
        prefix = str(tmp_path / options.pop("output", "out"))
        workload = {} if "trace" in options else {"rate": 200.0, "num_requests": 10}
        defaults: dict[str, Any] = {"url": server_url, "prompt_tokens": 20, "output_tokens": 4, "output": prefix}
        code = run(ObserveOptions(**(defaults | workload | options)))
        written = capsys.readouterr()
        return SimpleNamespace(
            code=code,
            summary=json.loads(written.out),
            messages=written.err,
            trace=read_trace(f"{prefix}.yaml"),
            prefix=prefix,
        )

    return observed
