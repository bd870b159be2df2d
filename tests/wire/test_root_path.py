"""A root path is stripped where it is and ends at a slash, so that it opens no route that requires a key."""

from collections.abc import Iterator

import pytest

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

KEY = {"Authorization": "Bearer k1"}

BELOW_V1 = {
    "/health": (200, 200),
    "/v1/health": (200, 200),
    "/v1/models": (404, 404),
    "/v1/v1/models": (401, 200),
    "/v1": (404, 404),
    "/v1/": (404, 404),
    "/v1/v1": (401, 404),
    "/models": (404, 404),
    "/version": (200, 200),
    "/v1/version": (200, 200),
    "/v1x/models": (401, 404),
    "/v1/load": (200, 200),
    "/tokenize": (405, 405),
    "/v1/tokenize": (405, 405),
    "/v/v1/models": (404, 404),
    "/1/models": (404, 404),
    "/v1/v1/v1/models": (401, 404),
}
"""Statuses that vLLM 0.33 gives below `--root-path /v1` without a key and with one; it gives `/v1x/models` two 404s."""

BELOW_V = {
    "/health": (200, 200),
    "/v/health": (200, 200),
    "/v1/models": (401, 200),
    "/v/v1/models": (401, 200),
    "/models": (404, 404),
    "/v1/v1/models": (401, 404),
    "/v/": (404, 404),
    "/v": (404, 404),
}
"""Paths below `--root-path /v` need a key, except those that begin with `/v1`: there vLLM asks for none."""


@pytest.fixture(scope="module", params=["/v1", "/v", "/v/"])
def proxied(request: pytest.FixtureRequest) -> Iterator[tuple[TestServer, dict[str, tuple[int, int]]]]:
    with running_server(root_path=request.param, api_key=("k1",)) as server:
        yield server, BELOW_V1 if request.param == "/v1" else BELOW_V


def test_a_root_path_opens_no_route(proxied: tuple[TestServer, dict[str, tuple[int, int]]]) -> None:
    server, expected = proxied
    found = {
        path: (call(server, "GET", path).status, call(server, "GET", path, headers=KEY).status) for path in expected
    }
    assert found == expected


@pytest.mark.parametrize("path", ["/%76%31/models", "//v1/models", "/v1/../v1/models", "/./v1/models", "/V1/models"])
def test_another_spelling_of_a_path_opens_no_route(path: str) -> None:
    with running_server(root_path="/v", api_key=("k1",)) as server:
        assert call(server, "GET", path).status in (401, 404)


def test_control_routes_require_the_key() -> None:
    with running_server(enable_fault_control=True, num_instances=2, api_key=("k1",)) as server:
        for method, path in (
            ("GET", "/blis/faults"),
            ("POST", "/blis/faults"),
            ("DELETE", "/blis/faults"),
            ("GET", "/blis/instances"),
            ("POST", "/blis/instances"),
            ("DELETE", "/blis/instances/0"),
        ):
            assert call(server, method, path, b"{}").status == 401, (method, path)
        assert call(server, "GET", "/blis/faults", headers=KEY).status == 200
    with running_server(enable_fault_control=True) as server:
        assert call(server, "GET", "/blis/faults").status == 200
