"""vLLM's schemas as compact tables, and the notation they are written in."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

REFERENCE = "#/components/schemas/"
_PLAIN: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "num": {"type": "number"},
    "str": {"type": "string"},
    "bool": {"type": "boolean"},
    "null": {"type": "null"},
    "any": {},
    "obj": {"additionalProperties": True, "type": "object"},
}
_TOKEN = re.compile(r'\s*(`[^`]*`|"(?:[^"\\]|\\.)*"|-?\d[\d.e+]*|[\w\-]+|[\[\]{}<>(),|=])')


def read_type(text: str) -> dict[str, Any]:
    """Return the JSON schema that `text` stands for. Raises ValueError for text that is no type."""
    reader = _Reader(text)
    found = reader.union()
    if not reader.is_at_end:
        raise ValueError(f"unexpected {reader.next!r} in {text!r}")
    return found


class _Reader:
    """Reads one type, token by token."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._tokens)

    @property
    def next(self) -> str:
        return "" if self.is_at_end else self._tokens[self._place]

    def union(self) -> dict[str, Any]:
        kinds = [self._single()]
        while self.next == "|":
            self._take("|")
            kinds.append(self._single())
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}

    def _single(self) -> dict[str, Any]:
        found = self._bare()
        if self.next == "(":
            self._take("(")
            found = {**found, **dict(self._keywords())}
            self._take(")")
        return found

    def _bare(self) -> dict[str, Any]:
        token = self._any()
        if token in ("[", "{"):
            inner = self.union()
            self._take("]" if token == "[" else "}")
            return {"items": inner, "type": "array"} if token == "[" else _map(inner)
        if token == "<":
            return {"type": "string", "enum": list(self._words())}
        if token.startswith("`"):
            raw: dict[str, Any] = json.loads(token[1:-1])
            return raw
        if token.startswith('"'):
            return {"type": "string", "const": json.loads(token)}
        return dict(_PLAIN[token]) if token in _PLAIN else {"$ref": REFERENCE + token}

    def _words(self) -> Iterator[str]:
        while self.next != ">":
            yield json.loads(self._any())
            if self.next == ",":
                self._take(",")
        self._take(">")

    def _keywords(self) -> Iterator[tuple[str, Any]]:
        while self.next != ")":
            name = self._any()
            self._take("=")
            yield name, json.loads(self._any())
            if self.next == ",":
                self._take(",")

    def _any(self) -> str:
        if self.is_at_end:
            raise ValueError(f"a type ends too early: {' '.join(self._tokens)!r}")
        self._place += 1
        return self._tokens[self._place - 1]

    def _take(self, wanted: str) -> None:
        found = self._any()
        if found != wanted:
            raise ValueError(f"expected {wanted!r}, found {found!r}")


def _map(inner: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": inner, "type": "object"}


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot read {text[place:]!r}")
        yield match[1]
        place = match.end()


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
