"""Reads `operations.csv` and `schemas.txt`, which `benchmarks/vllm_oracle/openapi_tables.py` writes."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from mockserve.protocol.server.openapi.notation import read_type

FOLDER = Path(__file__).parent
VALIDATION_ERROR = "422"
BASE = "base"
"""The section of schemas that all set-ups share."""

Schemas: TypeAlias = Mapping[str, dict[str, Any]]

_ADDITIONAL = {"": {"additionalProperties": True}, "closed": {"additionalProperties": False}, "silent": {}}


@dataclass(frozen=True, slots=True)
class VllmOperation:
    """One route as vLLM describes it. `body` is a type; `response` the content of status 200 by media type."""

    method: str
    path: str
    name: str
    summary: str
    parameters: Sequence[Mapping[str, Any]]
    body: str
    demands_body: bool
    response: Mapping[str, Any]
    errors: Mapping[str, str]
    """Status to the name of the schema of its body."""
    tags: Sequence[str]
    is_alone: bool
    """Whether this is the only description of the path."""

    def fits(self, handler_name: str) -> bool:
        """Whether it describes what a handler of this name does."""
        return self.is_alone or self.name == handler_name


@cache
def read_operations() -> Sequence[VllmOperation]:
    """Return all routes in vLLM's order."""
    with (FOLDER / "operations.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [(row["method"], row["path"]) for row in rows]
    return tuple(
        VllmOperation(
            method=row["method"],
            path=row["path"],
            name=row["name"],
            summary=row["summary"] or row["name"].replace("_", " ").title(),
            parameters=json.loads(row["parameters"] or "[]"),
            body=row["body"].removesuffix(" ?"),
            demands_body=not row["body"].endswith(" ?"),
            response=json.loads(row["response"]),
            errors=dict(_error(each) for each in row["errors"].split()),
            tags=tuple(row["tags"].split()),
            is_alone=keys.count(key) == 1,
        )
        for row, key in zip(rows, keys, strict=True)
    )


def _error(text: str) -> tuple[str, str]:
    status, _, name = text.partition(":")
    return status, name or ("HTTPValidationError" if status == VALIDATION_ERROR else "ErrorResponse")


@cache
def read_schemas(section: str) -> Schemas:
    """Return the schemas by name: those of `section`, and of the base those that it does not replace."""
    found: dict[str, dict[str, Any]] = {}
    for part in (FOLDER / "schemas.txt").read_text(encoding="utf-8").split("\n## "):
        name, _, text = part.removeprefix("## ").partition("\n")
        if name in (BASE, section):
            found |= dict(map(_schema, text.strip().split("\n\n")))
    return found


def _schema(block: str) -> tuple[str, dict[str, Any]]:
    """Return one schema with its name. A first line such as `# Name closed` or `# Name = TYPE`, then its members."""
    head, *lines = block.split("\n")
    name, is_alias, alias = head.removeprefix("# ").partition(" = ")
    name, _, extra = name.partition(" ")
    title = name.split("__")[-1].partition("-")[0]
    if is_alias:
        return name, {**read_type(alias), "title": title}
    properties, required = {}, []
    for line in lines:
        field, _, rest = line.partition(": ")
        if field.endswith("*"):
            field = field.removesuffix("*")
            required.append(field)
        properties[field] = _member(field, rest)
    schema = {"properties": properties, **_ADDITIONAL[extra], "type": "object"}
    return name, {**schema, **({"required": required} if required else {}), "title": title}


def _member(field: str, text: str) -> dict[str, Any]:
    kind, has_default, default = text.partition(" = ")
    found = read_type(kind)
    if "$ref" not in found and not _is_optional_reference(found):
        found["title"] = field.strip("_").replace("_", " ").title()
    return {**found, "default": json.loads(default)} if has_default else found


def _is_optional_reference(schema: Mapping[str, Any]) -> bool:
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return len(kinds) == 1 and "$ref" in kinds[0]
