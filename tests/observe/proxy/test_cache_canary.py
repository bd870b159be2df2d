"""The cache canary on real connections: no alarm of a healthy server, and one of a server whose cache is lost."""

import json
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blis_sim.testing import Server, serving
from tests import fork_server
from tests.observe.proxy.running import RunningProxy, running_proxy
from tests.patience import PATIENCE_S

MODEL = "qwen/qwen3-14b"
SHARED = "You are a patient assistant who answers in few words. " * 40

pytestmark = pytest.mark.slow


@pytest.fixture
def vllm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in development mode, whose cache can be emptied behind the back of the proxy."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    flags = getattr(request, "param", ())
    words = ["-m", "blis_sim.cli", "serve", MODEL, "--hardware", "H100", "--speed", "20", "--port", "0", *flags]
    with serving([*words, "--host", "127.0.0.1"]) as running:
        yield running


def chat(url: str, *contents: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents)]
    body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "system", "content": SHARED}, *messages], **fields}
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as reply:
        found: dict[str, Any] = json.load(reply)
    return found


def ended(proxy: RunningProxy) -> tuple[int, dict[str, Any], str]:
    """Stop a proxy: its exit code, what it found of the cache, and its messages."""
    proxy.process.send_signal(signal.SIGINT)
    out, messages = proxy.process.communicate(timeout=PATIENCE_S)
    (cache,) = json.loads(out)["cache"]
    return proxy.process.returncode, cache, messages


def emptied(server: Server) -> None:
    asked = urllib.request.Request(f"{server.url}/reset_prefix_cache", b"", method="POST")
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as reply:
        assert reply.status == 200


@pytest.mark.parametrize("vllm", [("--enable-prompt-tokens-details",), ()], indirect=True)
def test_a_healthy_server_has_no_alarm(vllm: Server, tmp_path: Path) -> None:
    with running_proxy(vllm.url, tmp_path / "r", "--cache-canary") as proxy:
        for number in range(6):
            chat(proxy.url, f"Question {number}", "An answer", "And then?")
        code, cache, messages = ended(proxy)
    assert (code, cache["missed"], cache["first_miss"]) == (0, 0, "")
    assert cache["requests"] == 6
    assert cache["must_hit_tokens"] > 5 * 250
    assert cache["reported_hit_tokens"] >= cache["must_hit_tokens"]
    assert "CACHE ALARM" not in messages


@pytest.mark.parametrize("vllm", [("--enable-prompt-tokens-details",)], indirect=True)
def test_the_first_request_that_missed_is_named(vllm: Server, tmp_path: Path) -> None:
    with running_proxy(vllm.url, tmp_path / "r", "--cache-canary") as proxy:
        for number in range(3):
            chat(proxy.url, f"Question {number}")
        emptied(vllm)
        for number in range(3, 5):
            chat(proxy.url, f"Question {number}")
        code, cache, messages = ended(proxy)
    assert (code, cache["missed"]) == (3, 1)  # the one after it finds what it has computed anew
    assert cache["first_miss"].startswith("request 3 found 0 of ")
    assert "prompt tokens that request 0 had left in the prefix cache" in cache["first_miss"]
    assert f"CACHE ALARM: {cache['first_miss']}" in messages


def test_counters_show_a_cache_that_is_lost_again_and_again(vllm: Server, tmp_path: Path) -> None:
    """Replies say nothing of the cache, so readings of the metrics five seconds apart must."""
    with running_proxy(vllm.url, tmp_path / "r", "--cache-canary") as proxy:
        begun = time.monotonic()
        number = 0
        while time.monotonic() < begun + 13:
            chat(proxy.url, f"Question {number}")
            emptied(vllm)
            number += 1
            time.sleep(0.2)
        code, cache, _ = ended(proxy)
    assert code == 3
    assert " prompt tokens that earlier ones had left in the prefix cache of " in cache["first_miss"]


def test_an_operator_who_empties_the_cache_through_the_proxy_causes_no_alarm(vllm: Server, tmp_path: Path) -> None:
    with running_proxy(vllm.url, tmp_path / "r", "--cache-canary") as proxy:
        for number in range(3):
            chat(proxy.url, f"Question {number}")
            asked = urllib.request.Request(f"{proxy.url}/reset_prefix_cache", b"", method="POST")
            urllib.request.urlopen(asked, timeout=PATIENCE_S).close()
        code, cache, _ = ended(proxy)
    assert (code, cache["must_hit_tokens"]) == (0, 0)


@pytest.mark.parametrize(
    ("vllm", "complaint"),
    [
        (("--num-instances", "2"), "--cache-canary needs one engine behind each URL, "),
        (("--no-enable-prefix-caching",), "--cache-canary needs a prefix cache, "),
    ],
    indirect=["vllm"],
)
def test_a_server_whose_cache_cannot_be_checked_is_refused(vllm: Server, complaint: str, tmp_path: Path) -> None:
    words = ["observe", "--url", vllm.url, "-o", str(tmp_path / "r"), "--proxy", "0", "--cache-canary"]
    found = fork_server.run(
        [sys.executable, "-m", "blis_sim.cli", *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (found.returncode, complaint in found.stderr) == (2, True), found.stderr
