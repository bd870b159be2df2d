"""`blis calibrate --watch --traffic`: what recorded requests must find in the prefix cache of the watched server."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from blis_sim.bench import BenchError
from blis_sim.bench.watched_traffic import WatchedTraffic, cache_bound
from blis_sim.testing import Server, serving
from observe.proxy.cache_canary import CacheBound
from tests import fork_server
from tests.observe.proxy.running import running_proxy
from tests.observe.proxy.test_cache_canary import MODEL, chat, emptied
from tests.patience import PATIENCE_S
from traces import TraceError

PLAIN = {"enable_prefix_caching": "True", "block_size": "16", "num_gpu_blocks": "100"}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in development mode, whose cache can be emptied behind the back of the proxy."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    words = ["-m", "blis_sim.cli", "serve", MODEL, "--hardware", "H100", "--speed", "20", "--port", "0"]
    with serving([*words, "--host", "127.0.0.1", "--enable-prompt-tokens-details"]) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_lost_cache_is_an_alarm_with_the_first_request_that_missed(
    vllm: Server, tmp_path: Path, *, is_broken: bool
) -> None:
    metrics, flags = tmp_path / "drift.prom", ("--hardware", "H100", "--tp", "1", "--keep-watching")
    times = ("--scrape-interval", "0.2", "--watch-interval", "2", "--watch-window", "2", "--comparisons", "4")
    with running_proxy(vllm.url, tmp_path / "r", "--record-content") as proxy:
        content = tmp_path / "r.content.jsonl"
        words = ["calibrate", "--watch", "--url", vllm.url, *flags, *times, "--traffic", str(content)]
        watching = fork_server.Popen(
            [sys.executable, "-m", "blis_sim.cli", *words, "--drift-metrics", str(metrics)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watching.stderr is not None
        assert "the metrics page names the model" in watching.stderr.readline()
        time.sleep(1)  # the end of the file is where it begins to read
        for number in range(3):
            chat(proxy.url, f"Question {number}")
        if is_broken:
            emptied(vllm)
        for number in range(3, 5):
            chat(proxy.url, f"Question {number}")
        out, messages = watching.communicate(timeout=PATIENCE_S)
    assert watching.returncode == (3 if is_broken else 0), messages
    expected, reported = map(int, re.findall(r"hit_tokens (\d+)\n", metrics.read_text()))
    assert expected > 250
    assert ("CACHE ALARM: request 3 found 0 of " in out) is is_broken
    missed = re.findall(r"blis_watch_cache_missed (\d)\n", metrics.read_text())
    assert missed[0] in (("1", "2") if is_broken else ("0",))  # by its reply, and perhaps by the counters, too
    assert "blis_watch_cache_requests 5\n" in metrics.read_text()
    if not is_broken:
        assert reported >= expected


@pytest.mark.parametrize(
    ("labels", "num_engines", "message"),
    [
        (PLAIN, 2, "needs one engine behind --url, it has 2"),
        (PLAIN | {"enable_prefix_caching": "False"}, 1, "needs a prefix cache, the server has none"),
        ({"enable_prefix_caching": "True"}, 1, "the size and the number of KV blocks"),
    ],
)
def test_a_cache_that_cannot_be_checked_is_refused(labels: dict[str, str], num_engines: int, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        cache_bound(labels, num_engines)
    assert cache_bound(PLAIN, 1).capacity_tokens == 90 * 16


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ({"blis_content": 1, "redact": ["a+"]}, BenchError, "needs prompts as they were sent"),
        ({"other": 1}, TraceError, "line 1: expected the start of contents"),
    ],
)
def test_contents_that_show_no_prompts_are_refused(
    tmp_path: Path, line: dict[str, object], error: type[Exception], message: str
) -> None:
    path = tmp_path / "a.content.jsonl"
    path.write_bytes(orjson.dumps(line) + b"\n")
    with pytest.raises(error, match=message):
        WatchedTraffic(path, "http://127.0.0.1:9", None, CacheBound(16, 100))


def test_a_pipe_a_folder_and_a_device_are_no_files_to_follow(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(TraceError, match="expected a file, got a folder, a pipe or a device"):
            WatchedTraffic(path, "http://127.0.0.1:9", None, CacheBound(16, 100))
