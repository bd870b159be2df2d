"""Several servers in one process, with independent engines and lifecycles."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from mockserve.options.serve import ServeOptions
from tests import fork_server
from tests.docs.pages import PROJECT, fences
from tests.docs.terminal import missing_lines
from tests.patience import PATIENCE_S, wait_until


def ask(port: int, path: str, body: Any = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:  # nothing listens there, or the connection ends without a reply
        return 0, ""


@pytest.mark.slow
def test_each_server_has_its_own_engine_and_dies_alone() -> None:
    command = [sys.executable, "-m", "blis_sim.cli", "serve", "qwen/qwen3-14b", "--port", "0", "--count", "3"]
    command += ["--host", "127.0.0.1", "--enable-fault-control"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            ports = [int(re.findall(r":(\d+) ", process.stderr.readline())[0]) for _ in range(3)]
            for _ in range(2):
                assert ask(ports[0], "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
            counts = [ask(port, "/metrics")[1].count("} 2.0") for port in ports]
            assert counts[0] > counts[1] == counts[2]
            ask(ports[1], "/blis/faults", {"engine": {"death": None}})
            wait_until(lambda: ask(ports[1], "/health")[0] == 0)
            assert [ask(port, "/health")[0] for port in (ports[0], ports[2])] == [200, 200]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_the_commands_of_the_page_print_the_lines_it_shows() -> None:
    """The page is "serve.md"; the ports are those that are free."""
    page = fences(PROJECT / "docs" / "serve.md")
    fence = next(each for each in page if each.executed_by is not None and "endpoints" in each.executed_by[0])
    serving, asking = fence.commands
    for first in range(28_000, 32_000, 100):
        text = serving.text.replace("8000-8019", f"{first}-{first + 19}")
        command = [sys.executable, "-m", "blis_sim.cli", *shlex.split(text)[1:]]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        with fork_server.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            try:
                line = process.stderr.readline()
                if "cannot listen" in line:
                    continue
                assert missing_lines(serving, line.replace(f"{first}-{first + 19}", "8000-8019")) == []
                assert missing_lines(asking, ask(first + 19, "/metrics")[1]) == []
                return
            finally:
                process.kill()
    pytest.fail("no twenty ports in a row are free")


def test_ports_are_a_range_or_a_number_from_the_first_on() -> None:
    def ports(**settings: Any) -> list[int]:
        options = options_from(ServeOptions, model="qwen/qwen3-14b", **settings)
        return [each.network.port for each in options.endpoints]

    assert ports() == [8000]
    assert ports(ports="9000-9002") == [9000, 9001, 9002]
    assert ports(port=7000, count=2) == [7000, 7001]
    assert ports(port=0, count=2) == [0, 0]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"ports": "9000,9001"}, "--ports must be like 8000-8499, got '9000,9001'"),
        ({"ports": "9001-9000"}, "--ports must ascend between 1 and 65535, got 9001-9000"),
        ({"ports": "9000-9001", "count": 2}, "--ports and --count exclude each other"),
        ({"port": 65535, "count": 2}, "--count must be at most 1 with port 65535, got 2"),
        ({"count": 2, "uds": "s"}, "--count and --uds exclude each other"),
        ({"ports": "9000-9001", "api_server_count": 2}, "--ports and --api-server-count exclude each other"),
    ],
)
def test_invalid_endpoint_ports_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        options_from(ServeOptions, model="qwen/qwen3-14b", **settings)
