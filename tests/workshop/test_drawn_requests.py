"""Requests that schemathesis makes up from an OpenAPI document, as the attack with hostile bodies sends them."""

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from workshop.attack.generate import described_requests
from workshop.attack.mutations import Draws
from workshop.attack.setups import SETUPS

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
        "/v1/completions": {
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
    return (
        isinstance(value, dict) and isinstance(value.get("prompt"), str) and isinstance(value.get("max_tokens", 0), int)
    )


@pytest.mark.slow
def test_sends_bodies_of_a_schema_and_bodies_against_it() -> None:
    found = list(described_requests(DOCUMENT, SETUPS[0], seed=0, count=20))
    assert [each.route for each in found].count("/version") == 1
    bodies = {
        kind: [each.pieces[0].partition(b"\r\n\r\n")[2] for each in found if each.kind == kind and "v1" in each.route]
        for kind in ("described: positive", "described: negative")
    }
    assert [len(each) for each in bodies.values()] == [10, 10]
    assert all(map(fits, bodies["described: positive"]))
    assert not all(map(fits, bodies["described: negative"]))
    again = list(described_requests(DOCUMENT, SETUPS[0], seed=0, count=20))
    assert [each.pieces for each in again] == [each.pieces for each in found]


def test_the_smallest_example_is_found() -> None:
    draws = Draws(st.lists(st.integers(0, 1000)))
    name = next(f"n{number}" for number in range(100) if max(draws.one(f"n{number}"), default=0) >= 50)
    assert draws.one(name) == draws.one(name)
    assert draws.smallest(name, lambda each: max(each, default=0) >= 50) == [50]
    assert draws.smallest(name, lambda each: False) is None
