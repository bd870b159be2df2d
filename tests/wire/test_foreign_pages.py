"""A page of another site cannot change a server through the browser of someone who can reach it."""

from collections.abc import Iterator, Mapping

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

FRIEND = "https://tools.example"
SIMPLE = {"content-type": "text/plain"}
"""The kind of body for which a browser asks no permission first."""


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    with running_server(enable_playback_control=True, enable_fault_control=True, allowed_origins=(FRIEND,)) as found:
        yield found


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/blis/playback"), ("DELETE", "/blis/requests"), ("POST", "/blis/faults")]
)
@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://"}],
)
def test_changes_for_pages_of_other_sites_are_refused(
    method: str, path: str, headers: Mapping[str, str], server: TestServer
) -> None:
    reply = call(server, method, path, {"fixtures": []} if method == "POST" else None, {**SIMPLE, **headers})
    assert reply.status == 403
    assert "error" in reply.json


def test_programs_pages_of_the_server_and_named_origins_may_change_it(server: TestServer) -> None:
    own = f"http://{server.host}:{server.port}"
    for headers in ({}, {"Origin": own}, {"Origin": FRIEND}, {"Sec-Fetch-Site": "same-origin"}):
        assert call(server, "DELETE", "/blis/requests", None, headers).status == 200, headers


def test_requests_to_the_model_are_as_open_as_in_vllm(server: TestServer) -> None:
    headers = {"Origin": "https://evil.example"}
    assert call(server, "GET", "/blis/requests", None, headers).status == 200
    assert call(server, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, headers).status == 200
