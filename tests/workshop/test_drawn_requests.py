"""Requests that schemathesis makes up from an OpenAPI document, as the attack over HTTP sends them."""

import json
from typing import Any

import pytest
from hypothesis import given, seed, settings

from workshop.attack.drawn import Hostile, requests_of
from workshop.attack.mutations import ATTACK

SCHEMA = {
    "type": "object",
    "required": ["prompt"],
    "properties": {"prompt": {"type": "string"}, "max_tokens": {"type": "integer"}},
}
DOCUMENT: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "t", "version": "1"},
    "paths": {
        "/version": {"get": {"responses": {"200": {"description": "d"}}}},
        "/v1/complete": {
            "post": {
                "requestBody": {"required": True, "content": {"application/json": {"schema": SCHEMA}}},
                "responses": {"200": {"description": "d"}},
            }
        },
    },
}


def fits(body: bytes) -> bool:
    """Whether a body is one of the schema."""
    try:
        value = json.loads(body)
    except ValueError:
        return False
    return isinstance(value, dict) and isinstance(value.get("prompt"), str) and type(value.get("max_tokens", 0)) is int


def drawn(count: int, first_seed: int) -> list[Hostile]:
    found: list[Hostile] = []
    pytest.importorskip("schemathesis")

    def keep(request: Hostile) -> None:
        found.append(request)

    seed(first_seed)(settings(ATTACK, max_examples=count)(given(requests_of(DOCUMENT))(keep)))()
    return found


@pytest.mark.slow
def test_sends_bodies_of_a_schema_and_bodies_against_it_and_spoils_them() -> None:
    found = drawn(200, 0)
    whole = [each.pieces[0].partition(b"\r\n\r\n")[2] for each in found if each.kind == "whole" and "v1" in each.path]
    assert {fits(each) for each in whole} == {True, False}
    assert {each.path.partition("?")[0] for each in found} >= {"/version", "/v1/complete"}
    assert len({each.kind for each in found}) > 8
    assert drawn(30, 3) == drawn(30, 3) != drawn(30, 4)
