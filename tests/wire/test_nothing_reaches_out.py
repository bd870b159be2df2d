"""No request makes the server open a file or a connection, whatever address it has in it.

Functions of Python are watched here; `tests/wire/test_traced_requests.py` traces system calls.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mockserve.executor.executor import MODULES, WorkerPool
from tests.wire.hostile_constraints import answer_of, call_of, demand
from tests.wire.noting_worker import NOTED_IN
from tests.wire.plain_http import call
from tests.wire.reaching_out import noted_openings
from tests.wire.serving import TestServer, running_server

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
ADDRESS = "ADDRESS"
"""Stands in a body for an address that must not be used."""

REFERENCE = {"$ref": ADDRESS}
SCHEMAS: tuple[dict[str, Any], ...] = (
    REFERENCE,
    {"$dynamicRef": ADDRESS},
    {"$id": ADDRESS, "$ref": "other.json"},
    {"$id": ADDRESS, "type": "object", "unevaluatedProperties": False},
    {"$schema": ADDRESS, "not": {"type": "string"}},
    {"not": REFERENCE},
    {"if": REFERENCE, "then": {"type": "string"}},
    {"oneOf": [REFERENCE, {"type": "string"}]},
    {"anyOf": [REFERENCE, {"type": "string"}], "minLength": 1},
    {"allOf": [{"type": "object"}, REFERENCE]},
    {"type": "object", "dependentSchemas": {"a": REFERENCE}, "required": ["a"]},
    {"type": "object", "unevaluatedProperties": REFERENCE, "required": ["a"]},
    {"type": "array", "minItems": 1, "uniqueItems": True, "items": REFERENCE},
    {"type": "array", "minItems": 1, "contains": REFERENCE},
    {"type": "object", "patternProperties": {"a": REFERENCE}, "required": ["a"]},
    {"type": "object", "propertyNames": REFERENCE, "required": ["a"]},
    {"type": "object", "properties": {"a": REFERENCE}, "required": ["a"]},
    {"$defs": {"a": {"$id": ADDRESS, "not": {"$ref": "b.json"}}}, "$ref": "#/$defs/a"},
)
MEDIA = [
    {"role": "user", "content": [{"type": kind, kind: {"url": ADDRESS}}]}
    for kind in ("image_url", "audio_url", "video_url")
]


def bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    for schema in SCHEMAS:
        yield CHAT, answer_of(schema)
        yield "/invocations", answer_of(schema)
        yield CHAT, call_of(schema)
        yield CHAT, call_of(schema, strict=True)
        yield COMPLETIONS, demand(json=schema)
        yield COMPLETIONS, demand(structural_tag=json.dumps({"format": {"type": "json_schema", "json_schema": schema}}))
        yield RESPONSES, {"input": "hi", "text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}}
        yield MESSAGES, {
            "model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"},
        }  # fmt: skip
    yield COMPLETIONS, demand(grammar=f'%import "{ADDRESS}"\nstart: "a"')
    yield COMPLETIONS, demand(grammar="%import " + ADDRESS + '.a\nstart: "a"')
    for message in MEDIA:
        for path in (CHAT, "/invocations", "/tokenize", "/v1/chat/completions/render", "/v1/embeddings", "/pooling"):
            yield path, {"messages": [message]}
    yield CHAT, {"messages": MEDIA, "mm_processor_kwargs": {"url": ADDRESS}, "media_io_kwargs": {"image": ADDRESS}}
    yield CHAT, {"messages": [{"role": "user", "content": "hi"}], "chat_template": f"{{% include '{ADDRESS}' %}}"}
    yield CHAT, {"messages": [{"role": "user", "content": "hi"}], "chat_template": ADDRESS}
    yield COMPLETIONS, {"prompt": "hi", "model": ADDRESS}
    yield COMPLETIONS, {"prompt": "hi", "kv_transfer_params": {"do_remote_prefill": True, "remote_host": ADDRESS}}
    yield RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": ADDRESS}]}]}
    yield MESSAGES, {
        "model": "m", "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": ADDRESS}}]}],
    }  # fmt: skip


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file in which worker processes note what they open."""
    file = tmp_path_factory.mktemp("noted") / "openings"
    file.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NOTED_IN, str(file))
        yield file


@pytest.fixture(scope="module")
def server(noted: Path) -> Iterator[TestServer]:
    """One whose worker processes note what they open."""
    settings: dict[str, Any] = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "tokens_per_medium": 8}
    with running_server(trust_request_chat_template=True, **settings) as running:
        running.service.delivery.executor.pool = WorkerPool(preloaded=(*MODULES, "tests.wire.noting_worker"))
        yield running


@pytest.fixture(scope="module")
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(0)
        yield made


@pytest.fixture(params=["http", "file", "path"])
def address(request: pytest.FixtureRequest, listener: socket.socket, tmp_path: Path) -> str:
    (tmp_path / "schema.json").write_text('{"type": "string"}', encoding="utf-8")
    return {
        "http": f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json",
        "file": (tmp_path / "schema.json").as_uri(),
        "path": str(tmp_path / "schema.json"),
    }[request.param]


@pytest.mark.slow
def test_no_address_in_a_request_is_used(
    server: TestServer, noted: Path, listener: socket.socket, address: str
) -> None:
    with noted_openings() as opened:
        for path, body in bodies():
            call(server, "POST", path, json.dumps(body).replace(ADDRESS, address).encode())
    assert opened == []
    assert noted.read_text(encoding="utf-8") == ""
    assert server.service.model.planner.executor.pool.pids, "no worker has had anything to do"
    with suppress(BlockingIOError):
        listener.accept()
        pytest.fail("a request made the server connect")


async def test_notices_a_file_that_a_worker_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "openings"
    file.touch()
    monkeypatch.setenv(NOTED_IN, str(file))
    pool = WorkerPool(preloaded=("tests.wire.noting_worker",))
    try:
        await pool.run(Path.read_bytes, file)
    finally:
        pool.close()
    assert str(file) in file.read_text(encoding="utf-8")


def test_notices_a_file_that_a_thread_of_the_server_opens(tmp_path: Path) -> None:
    file = tmp_path / "any"
    file.touch()
    with noted_openings() as opened:
        thread = threading.Thread(target=file.read_bytes)
        thread.start()
        thread.join()
    assert len(opened) == 1
    assert str(file) in opened[0]
