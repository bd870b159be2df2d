"""GET /openapi.json, /docs and /redoc: routes and schemas as vLLM describes them."""

import csv
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mockserve.protocol.openapi import openapi_document, read_schemas
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server
from workshop.vllm_oracle.openapi_tables import digest, without_prose

DIGESTS = Path(__file__).with_name("openapi_digests.csv")
"""Parts of documents of genuine servers, by how those were started."""

DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
SETUPS: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "plain": ({}, {}),
    "dev": ({"enable_lora": True, "enable_tokenizer_info_endpoint": True}, DEV_MODE),
    "scale-out": ({"enable_scale_out": True}, {}),
    "tokens-only": ({"tokens_only": True}, {}),
    "embed": ({"runner": "pooling", "convert": "embed"}, {}),
    "classify": ({"convert": "classify", "hf_overrides": '{"num_labels": 2}'}, {}),
    "token-embed": ({"task": ("token_embed",)}, {}),
}
OUR_OWN = {"GET /dashboard", "GET /dashboard/figures"}


@pytest.mark.parametrize("setup", SETUPS)
def test_document_has_the_paths_and_schemas_of_vllm(setup: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, environment = SETUPS[setup]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with running_server(**settings) as server:
        document = without_prose(call(server, "GET", "/openapi.json").json)
    found = {("names", "schemas"): digest(sorted(document["components"]["schemas"]))}
    for path, methods in document["paths"].items():
        found |= {("operation", f"{method.upper()} {path}"): digest(each) for method, each in methods.items()}
    found |= {("schema", name): digest(each) for name, each in document["components"]["schemas"].items()}
    expected = _genuine("plain", ("schema",)) | _genuine(setup, ("schema", "operation", "names"))
    assert {key: found[key] for key in found if key[0] == "schema"} == {
        key: expected[key] for key in found if key[0] == "schema"
    }
    assert {key for key in found if key not in expected} == {("operation", each) for each in OUR_OWN}
    others = [key for key in expected if key[0] != "schema"]
    assert {key: found.get(key) for key in others} == {key: expected[key] for key in others}


def _genuine(setup: str, kinds: tuple[str, ...]) -> dict[tuple[str, str], str]:
    with DIGESTS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["setup"] == setup and row["kind"] in kinds]
    return {(row["kind"], row["name"]): row["digest"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("section", ["base", "scale-out", "pooling"])
def test_schemas_are_valid(section: str) -> None:
    schemas = read_schemas(section)
    jsonschema.Draft202012Validator.check_schema({"$defs": schemas})
    assert len(schemas) >= 430


def test_root_path_is_a_server_and_no_part_of_paths() -> None:
    with running_server(root_path="/pre") as server:
        document = call(server, "GET", "/openapi.json").json
    assert document["servers"] == [{"url": "/pre"}]
    assert not [path for path in document["paths"] if path.startswith("/pre")]


def test_document_is_made_once_and_not_on_the_thread_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return openapi_document(*arguments)

    monkeypatch.setattr("mockserve.protocol.openapi.openapi_document", noted)
    with running_server() as server, ThreadPoolExecutor(4) as clients:
        replies = list(clients.map(lambda _: call(server, "GET", "/openapi.json").body, range(8)))
    assert (threads, len(set(replies))) == (["long work"], 1)


def test_page_of_routes_shows_them(server: TestServer) -> None:
    page = call(server, "GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"/v1/chat/completions" in page.body


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"])
def test_documentation_answers_head(server: TestServer, path: str) -> None:
    reply, head = call(server, "GET", path), call(server, "HEAD", path)
    assert (reply.status, head.status, head.body) == (200, 200, b"")
    assert head.headers["content-length"] == reply.headers["content-length"]


def test_no_document_is_served_where_that_is_switched_off() -> None:
    paths = ("/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc")
    with running_server(disable_fastapi_docs=True) as server:
        assert [call(server, "GET", path).status for path in paths] == [404] * 4
