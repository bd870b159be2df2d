"""The server's description of itself."""

import jsonschema

from mockserve.protocol.completions.fields import CHAT_FIELDS
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server


def test_the_document_names_every_route(server: TestServer) -> None:
    document = call(server, "GET", "/openapi.json").json
    assert document["openapi"] == "3.1.0"
    assert "post" in document["paths"]["/v1/completions"]
    assert "get" in document["paths"]["/v1/models"]
    names = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(set(names)) == len(names)


def test_the_body_of_a_chat_has_the_fields_that_are_checked(server: TestServer) -> None:
    operation = call(server, "GET", "/openapi.json").json["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert list(schema["properties"]) == list(CHAT_FIELDS)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["required"] == ["messages"]


def test_the_page_of_routes_shows_them(server: TestServer) -> None:
    page = call(server, "GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert b"/v1/chat/completions" in page.body


def test_nothing_is_told_where_that_is_switched_off() -> None:
    with running_server(disable_fastapi_docs=True) as server:
        assert [call(server, "GET", path).status for path in ("/openapi.json", "/docs", "/redoc")] == [404] * 3
