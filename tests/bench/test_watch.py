"""`blis calibrate --watch` against servers over sockets: our own, and a Prometheus that has scraped one."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from tests.bench.simulated_readings import prometheus_reply, readings_of
from tests.patience import PATIENCE_S
from tests.wire.serving import TestServer, running_server

ASKED = json.dumps({"model": "qwen/qwen3-14b", "prompt": "a b c d e f " * 40, "max_tokens": 12, "ignore_eos": True})
FAST = ("--watch-interval", "3", "--watch-window", "2.5", "--scrape-interval", "0.2", "--draws", "10")
ONLY = ("--comparisons", "1", "--hardware", "H100", "--tp", "1")


@contextmanager
def served(**faults: object) -> Iterator[TestServer]:
    """A server with the step times of its deployment."""
    latency = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1)).latency
    names: dict[str, object] = {"served_model_name": ("qwen/qwen3-14b",), "speed": 1.0, **faults}
    with running_server(latency, **names) as server, loaded(server):
        yield server


@contextmanager
def loaded(server: TestServer) -> Iterator[None]:
    """Sixty requests a second."""
    ended = threading.Event()

    def ask() -> None:
        connection = HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", ASKED, {"Content-Type": "application/json"})
        connection.getresponse().read()
        connection.close()

    def send() -> None:
        with ThreadPoolExecutor(40) as pool:
            while not ended.is_set():
                pool.submit(ask)
                time.sleep(1 / 60)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    yield
    ended.set()
    sender.join(PATIENCE_S)


@pytest.mark.slow
def test_a_server_that_does_not_drift_ends_with_0_and_one_that_does_with_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page, metrics = tmp_path / "drift.html", tmp_path / "drift.prom"
    with served() as steady:
        written = ("--html", str(page), "--drift-metrics", str(metrics))
        assert run(["calibrate", "--url", steady.url, "--watch", *FAST, *ONLY, "--tolerance", "0.1", *written]) == 0
    printed = capsys.readouterr()
    assert "TTFT" in printed.out
    assert "DRIFT" not in printed.out
    assert "the metrics page names the model qwen/qwen3-14b" in printed.err
    assert 'blis_watch_drift{figure="itl"} 0\n' in metrics.read_text()
    assert "all figures within the intervals of their predictions" in page.read_text()
    assert '<meta http-equiv="refresh" content="3">' in page.read_text()
    with served(fault_engine=("slow@0+600",), fault_settings=("slow_factor=1.6",)) as drifting:
        assert run(["calibrate", "--watch", "--url", f"{drifting.url}/metrics", *FAST, *ONLY, *written]) == 3
    assert "DRIFT: ITL is +" in capsys.readouterr().out
    assert 'blis_watch_drift{figure="itl"} 1\n' in metrics.read_text()
    assert '<li class="bad">DRIFT: ITL' in page.read_text()


@contextmanager
def prometheus(
    factor: float, instances: tuple[str, ...] = ("a:8000",), most_replies: int = 10**9
) -> Iterator[tuple[str, list[str]]]:
    """A Prometheus that has scraped a simulated server, its URL and the queries it got; it fails after some replies."""
    deployment = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1))
    body = json.dumps(
        prometheus_reply(readings_of(deployment, rate=6, seconds=30, every_s=3, factor=factor), instances)
    )
    queries: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            queries.extend(parse_qs(urlsplit(self.path).query)["query"])
            self.send_response(200 if len(queries) <= most_replies else 503)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/api/v1/query", queries
        server.shutdown()
        thread.join()


WINDOW = ("--watch-interval", "0.2", "--watch-window", "25", "--selector", 'job="vllm"')


@pytest.mark.parametrize(("factor", "code"), [pytest.param(1.0, 0, marks=pytest.mark.slow), (1.3, 3)])
def test_a_prometheus_has_the_readings_of_minutes_at_once(
    capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    with prometheus(factor) as (url, queries):
        assert run(["calibrate", "--watch", "--url", url, *WINDOW, *ONLY]) == code
    assert ("DRIFT" in capsys.readouterr().out) == bool(code)
    assert queries[0].endswith(',job="vllm"}[50s]')


def test_a_prometheus_with_several_servers_needs_a_selector(capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus(1.0, ("a:8000", "b:8000")) as (url, _):
        assert run(["calibrate", "--watch", "--url", url, *WINDOW, *ONLY]) == 2
    error = capsys.readouterr().err
    assert "metrics of 2 servers, name one by --selector" in error
    assert 'instance="b:8000"' in error


def test_a_server_that_stops_answering_is_named_in_each_comparison_and_may_come_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    metrics = tmp_path / "drift.prom"
    with prometheus(1.0, most_replies=1) as (url, _):
        arguments = ["--url", url, *WINDOW, "--comparisons", "2", "--hardware", "H100", "--tp", "1"]
        assert run(["calibrate", "--watch", *arguments, "--drift-metrics", str(metrics)]) == 0
        printed = capsys.readouterr()
    assert printed.out.count(f"cannot read {url}: status 503") == 2
    assert "blis_watch" in metrics.read_text()


@pytest.mark.parametrize("url", ["http://ann:planted@127.0.0.1:9/metrics", "http://127.0.0.1:9/metrics?key=planted"])
def test_keys_in_the_url_are_in_no_message_and_no_file(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = ("--html", "drift.html", "--drift-metrics", "drift.prom")
    assert run(["calibrate", "--watch", "--url", url, *FAST, *ONLY, *written]) in (1, 2)
    shown = capsys.readouterr().err + "".join(each.read_text() for each in tmp_path.iterdir())
    assert "--url must not carry" in shown or "cannot read http://127.0.0.1:9/metrics: " in shown
    assert "planted" not in shown


def test_a_server_out_of_reach_at_the_start_is_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert run(["calibrate", "--watch", "--url", url, "--model", "qwen/qwen3-14b"]) == 1
    complaint = f"blis calibrate --watch: error: cannot read {url}/metrics: Connection refused\n"
    assert capsys.readouterr() == ("", complaint)
