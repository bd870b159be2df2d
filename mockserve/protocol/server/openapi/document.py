"""The OpenAPI document of the server, and the digests of its schemas."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from mockserve.protocol.server.openapi.tables import (
    REFERENCE,
    VALIDATION_ERROR,
    Schemas,
    VllmOperation,
    read_operations,
    read_schemas,
    read_type,
)

PROSE = ("description", "title")


def without_prose(value: Any, is_members: bool = False) -> Any:
    """Return `value` without descriptions and titles; members of an object that are named so stay."""
    if isinstance(value, dict):
        return {
            name: without_prose(each, is_members=name == "properties" and not is_members)
            for name, each in value.items()
            if is_members or name not in PROSE or not isinstance(each, str)
        }
    return [without_prose(each) for each in value] if isinstance(value, list) else value


def canonical(value: Any) -> str:
    """Return the same text for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def digest(value: Any) -> str:
    """Return ten characters that differ where values do."""
    return sha256(canonical(value).encode()).hexdigest()[:10]


@dataclass(frozen=True, slots=True)
class Operation:
    """One route: what it does in a sentence; `path` has its parameters in braces."""

    method: str
    path: str
    summary: str
    name: str
    """That of its handler, which decides between two descriptions of one path."""


def openapi_document(operations: Sequence[Operation], section: str) -> dict[str, Any]:
    """Return the document; `section` names the schemas that differ from those of a plain server.

    Title and version are those of vLLM, which leaves them to its framework. Routes that vLLM does not have come last.
    """
    known = {(each.method, each.path): each for each in operations}
    paths: dict[str, dict[str, Any]] = {}
    for row in read_operations():
        operation = known.get((row.method, row.path))
        if operation is not None and row.fits(operation.name):
            paths.setdefault(row.path, {})[row.method.lower()] = _described(row)
    for operation in operations:
        methods = paths.setdefault(operation.path, {})
        methods.setdefault(operation.method.lower(), _own(operation))
    schemas = reachable(paths, read_schemas(section))
    return {
        "openapi": "3.1.0",
        "info": {"title": "FastAPI", "version": "0.1.0"},
        "paths": paths,
        "components": {"schemas": {name: schemas[name] for name in sorted(schemas)}},
    }


def _described(row: VllmOperation) -> dict[str, Any]:
    found: dict[str, Any] = {"tags": list(row.tags)} if row.tags else {}
    found["summary"] = row.summary
    found["operationId"] = _operation_id(row.name, row.path, row.method)
    if row.parameters:
        found["parameters"] = list(row.parameters)
    if row.body:
        content = {"application/json": {"schema": read_type(row.body)}}
        found["requestBody"] = {"content": content, **({"required": True} if row.demands_body else {})}
    success = {"content": dict(row.response)} if row.response else {}
    found["responses"] = {"200": {"description": "Successful Response", **success}}
    for status, schema in row.errors.items():
        found["responses"][status] = _error(status, schema)
    return found


def _own(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(operation.name, operation.path, operation.method),
        "responses": {"200": {"description": "Successful Response"}, **{each: _error(each) for each in ("400", "404")}},
    }
    names = re.findall(r"\{(\w+)\}", operation.path)
    if names:
        found["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in names
        ]
    return found


def _operation_id(name: str, path: str, method: str) -> str:
    return re.sub(r"\W", "_", name + path) + f"_{method.lower()}"


def _error(status: str, name: str = "ErrorResponse") -> dict[str, Any]:
    phrase = "Validation Error" if status == VALIDATION_ERROR else HTTPStatus(int(status)).phrase
    return {"description": phrase, "content": {"application/json": {"schema": {"$ref": REFERENCE + name}}}}


def reachable(paths: Mapping[str, Any], schemas: Schemas) -> Schemas:
    """Return the schemas that `paths` refer to, directly or through others."""
    found: dict[str, dict[str, Any]] = {}
    waiting = set(_references(paths))
    while waiting:
        name = waiting.pop()
        found[name] = schemas[name]
        waiting |= set(_references(schemas[name])) - found.keys()
    return found


def _references(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        target = value.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(REFERENCE)
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)
