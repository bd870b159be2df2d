"""A test of one's own client against `blis serve`: a fixture that starts it, and three tests. Takes a few seconds.

pip install pytest openai
pytest examples/test_with_blis.py
"""

import re
import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest

SERVE = [sys.executable, "-m", "blis_sim.cli", "serve", "qwen/qwen3-14b", "--host", "127.0.0.1"]


@pytest.fixture(scope="session")
def vllm() -> Iterator[str]:
    """The address of a server on a free port, which takes no time but what the machine needs."""
    with subprocess.Popen([*SERVE, "--port", "0", "--speed", "max"], stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            ready = server.stderr.readline()  # it is written when the port is open
            address = re.search(r"http://\S+", ready)
            assert address, ready
            yield address[0]
        finally:
            server.terminate()


def client(vllm: str, fault: str = "") -> openai.OpenAI:
    headers = {"X-Blis-Fault": fault} if fault else {}
    return openai.OpenAI(base_url=f"{vllm}/v1", api_key="none", max_retries=0, default_headers=headers)


def test_the_answer_has_the_length_that_was_asked_for(vllm: str) -> None:
    reply = client(vllm).chat.completions.create(
        model="qwen/qwen3-14b", messages=[{"role": "user", "content": "Why?"}], max_tokens=20
    )
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens <= 20


def test_a_stream_has_its_usage_in_the_last_chunk(vllm: str) -> None:
    stream = client(vllm).completions.create(
        model="qwen/qwen3-14b", prompt="The sky is", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    *_, last = stream
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


def test_a_rate_limit_is_an_error_that_tells_when_to_come_back(vllm: str) -> None:
    asking = client(vllm, fault="rate_limit; retry_after_s=7")
    with pytest.raises(openai.RateLimitError) as error:
        asking.completions.create(model="qwen/qwen3-14b", prompt="Hi")
    assert error.value.response.headers["Retry-After"] == "7"
