"""vLLM's log lines about requests: the line before an answer, with adapters, and of requests that get none."""

import logging
from collections.abc import Iterator

import pytest

from mockserve.options.server import PlainLines
from tests.patience import wait_until
from tests.wire.plain_http import call, complete
from tests.wire.serving import TestServer, running_server


@pytest.fixture(scope="module")
def logging_server() -> Iterator[TestServer]:
    modules = ("ad1=/x/one", '{"name": "ad2", "path": "/x/two", "base_model_name": "m"}')
    with running_server(enable_log_requests=True, enable_lora=True, lora_modules=modules, access_log=True) as running:
        yield running


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [PlainLines().format(each) for each in caplog.records]


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="mockserve"):
        yield


def only(caplog: pytest.LogCaptureFixture, part: str) -> str:
    (found,) = [line for line in lines(caplog) if part in line]
    return found


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("m", "None"),
        (
            "ad1",
            "LoRARequest(lora_name='ad1', lora_int_id=1, lora_path='/x/one', base_model_name=None, load_inplace=False, "
            "is_3d_lora_weight=False)",
        ),
        (
            "ad2",
            "LoRARequest(lora_name='ad2', lora_int_id=2, lora_path='/x/two', base_model_name='m', load_inplace=False, "
            "is_3d_lora_weight=False)",
        ),
    ],
)
def test_a_line_names_the_adapter(
    logging_server: TestServer, caplog: pytest.LogCaptureFixture, name: str, shown: str
) -> None:
    complete(logging_server, model=name, max_tokens=1)
    line = only(caplog, "Received request cmpl-")
    assert line.startswith("(APIServer pid=")
    assert "[request_logger.py:66] Received request cmpl-" in line
    assert line.endswith(f"extra_args=None), lora_request: {shown}.")


def test_an_answered_request_has_a_line_of_the_web_server(
    logging_server: TestServer, caplog: pytest.LogCaptureFixture
) -> None:
    complete(logging_server, max_tokens=1)
    wait_until(lambda: any("POST" in line for line in lines(caplog)))  # written when the reply has been sent
    line = only(caplog, "POST")
    assert line.startswith("INFO:     127.0.0.1:")
    assert line.endswith(' - "POST /v1/completions HTTP/1.1" 200 OK')


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "hi"}),
        ("/tokenize", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/detokenize", {"tokens": [5, 6]}),
    ],
)
def test_tokenization_is_logged_without_parameters(
    logging_server: TestServer, caplog: pytest.LogCaptureFixture, path: str, body: object
) -> None:
    call(logging_server, "POST", path, body, {"X-Request-Id": "q"})
    assert only(caplog, "Received").endswith("Received request tokenize-q: params: None, lora_request: None.")


@pytest.mark.parametrize(
    ("path", "body", "shown"),
    [
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1}, "{}"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 1, "vllm_xargs": {"a": 1}}, "{'a': 1}"),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 1, "vllm_xargs": {"a": [1]}}, "{'a': [1]}"),
    ],
)
def test_arguments_for_the_engine_are_shown(
    logging_server: TestServer, caplog: pytest.LogCaptureFixture, path: str, body: object, shown: str
) -> None:
    call(logging_server, "POST", path, body)
    assert f"structured_outputs=None, extra_args={shown}), lora_request: None." in only(caplog, "Received")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
def test_a_request_for_a_rank_that_does_not_exist_is_logged_before_it_is_refused(
    logging_server: TestServer, caplog: pytest.LogCaptureFixture, path: str, body: object
) -> None:
    reply = call(logging_server, "POST", path, body, {"X-data-parallel-rank": "7"})
    assert b"data_parallel_rank 7 is out of range" in reply.body
    assert "Received request " in only(caplog, "Received")
