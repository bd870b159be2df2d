"""Requests made up from the server's own OpenAPI document: none of them breaks it, or stays in the engine."""

import time
from http import HTTPStatus
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.examples import examples
from tests.wire.clients.optional import client_library
from tests.wire.internal_errors import is_vllms_own_error
from tests.wire.serving import TestServer

schemathesis = client_library("schemathesis")

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.timeout(600)]

MAX_CHOICES = 4
"""More take as long as as many requests."""

EXAMPLES = examples(6)
"""Per operation and mode; those of the largest schemas take a fifth of a second each to draw."""

ENVELOPES = (["error"], ["detail"], ["type", "error"])
"""The fields of an error, the last in the words of Anthropic."""


def checked(case: Any) -> None:
    """Send one request and look at the reply."""
    if isinstance(case.body, dict) and isinstance(case.body.get("n"), int):
        case.body["n"] = min(case.body["n"], MAX_CHOICES)
    response = case.call(timeout=20)
    if response.status_code >= 500 and response.status_code != HTTPStatus.NOT_IMPLEMENTED:
        assert isinstance(case.body, dict), response.text
        assert is_vllms_own_error(case.body, response.content), response.text
    if response.status_code >= 400 and case.method != "HEAD":
        assert list(response.json()) in ENVELOPES


def test_no_described_request_breaks_the_server(server: TestServer) -> None:
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [each.ok() for each in document.get_all_operations()]
    assert operations
    for operation in operations:
        examples = EXAMPLES if operation.body else 2
        quick: Any = settings(max_examples=examples, suppress_health_check=list(HealthCheck), database=None)
        modes = list(schemathesis.GenerationMode) if operation.body else [schemathesis.GenerationMode.POSITIVE]
        for mode in modes:
            made_up: Any = given(operation.as_strategy(generation_mode=mode))
            quick(made_up(checked))()
    deadline = time.monotonic() + 10
    while server.service.delivery.driver.num_unfinished_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.service.delivery.driver.num_unfinished_requests == 0
