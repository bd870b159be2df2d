"""The server's own OpenAPI document: its routes, and the fields that their bodies may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.anthropic.fields import COUNT_FIELDS, COUNT_REQUIRED, MESSAGES_FIELDS, MESSAGES_REQUIRED
from mockserve.protocol.completions.fields import CHAT_FIELDS, CHAT_REQUIRED, COMPLETION_FIELDS
from mockserve.protocol.reading.containers import Record
from mockserve.protocol.responses.fields import RESPONSE_FIELDS, RESPONSE_REQUIRED

BODIES: Mapping[str, Record] = {
    "/v1/chat/completions": Record(CHAT_FIELDS, CHAT_REQUIRED),
    "/v1/completions": Record(COMPLETION_FIELDS, ("prompt",)),
    "/v1/messages": Record(MESSAGES_FIELDS, MESSAGES_REQUIRED),
    "/v1/messages/count_tokens": Record(COUNT_FIELDS, COUNT_REQUIRED),
    "/v1/responses": Record(RESPONSE_FIELDS, RESPONSE_REQUIRED),
}
"""Path to what is posted there."""

ERROR: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "code": {"type": "integer"},
            },
            "required": ["message", "type", "param", "code"],
        },
        "detail": {"type": "string"},
    },
}
"""An error in its envelope, or a bare detail."""

STATUSES = {
    "400": "Bad Request",
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "Not Found",
    "503": "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it does in a sentence; `path` has its parameters in braces."""

    method: str
    path: str
    summary: str


def openapi_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document. Title and version are those of vLLM, which leaves them to its framework."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {"openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"}, "paths": paths}


def _described(operation: Operation) -> dict[str, Any]:
    name = "_".join(part.strip("{}") for part in operation.path[1:].split("/"))
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{name}_{operation.method.lower()}",
        "responses": {
            "200": {"description": "Successful Response"},
            **{status: _error_response(phrase) for status, phrase in STATUSES.items()},
        },
    }
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        found["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in names
        ]
    body = BODIES.get(operation.path) if operation.method == "POST" else None
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body.schema()}}}
    return found


def _error_response(phrase: str) -> dict[str, Any]:
    return {"description": phrase, "content": {"application/json": {"schema": dict(ERROR)}}}
