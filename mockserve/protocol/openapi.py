"""The OpenAPI document of the server, made of the models of bodies and of vLLM's other schemas as compact tables."""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from mockserve.options.server import POOLING_FAMILY, ROUTE_FAMILIES
from mockserve.protocol.anthropic import AnthropicCountTokensRequest, AnthropicMessagesRequest
from mockserve.protocol.bodies import OpenObject, schemas_of
from mockserve.protocol.chat_messages import ChatMessage
from mockserve.protocol.completions import BatchChatCompletionRequest, ChatCompletionRequest, CompletionRequest
from mockserve.protocol.generate import DerenderedChat, DerenderedCompletion, GenerateRequest
from mockserve.protocol.scoring import DecisionRequest, GenerativeScoringRequest, StructuredDecisionRequest
from mockserve.protocol.server_info import DetokenizeRequest, Operation, TokenizeBody
from mockserve.protocol.weights import LoadLoRAAdapterRequest, UnloadLoRAAdapterRequest


class _MessageForms(OpenObject):
    """Messages. A sequence defines the schemas of all forms of a message, which a list of a body only names."""

    messages: Sequence[ChatMessage]


BODIES: Sequence[type[BaseModel]] = (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
    BatchChatCompletionRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DecisionRequest,
    DerenderedChat,
    DerenderedCompletion,
    DetokenizeRequest,
    GenerateRequest,
    GenerativeScoringRequest,
    LoadLoRAAdapterRequest,
    StructuredDecisionRequest,
    TokenizeBody,
    UnloadLoRAAdapterRequest,
    _MessageForms,
)
"""Bodies of requests whose models define their schemas; pooling models have further ones."""

RENAMED = {POOLING_FAMILY: {"openai_harmony__Message": "Message"}}
"""Schemas whose names have no prefix in a section, since there is no other of that name."""

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
            self._expect("|")
            kinds.append(self._single())
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}

    def _single(self) -> dict[str, Any]:
        found = self._bare()
        if self.next == "(":
            self._expect("(")
            found = {**found, **dict(self._keywords())}
            self._expect(")")
        return found

    def _bare(self) -> dict[str, Any]:
        token = self._next_token()
        if token in ("[", "{"):
            inner = self.union()
            self._expect("]" if token == "[" else "}")
            return (
                {"items": inner, "type": "array"} if token == "[" else {"additionalProperties": inner, "type": "object"}
            )
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
            yield json.loads(self._next_token())
            if self.next == ",":
                self._expect(",")
        self._expect(">")

    def _keywords(self) -> Iterator[tuple[str, Any]]:
        while self.next != ")":
            name = self._next_token()
            self._expect("=")
            yield name, json.loads(self._next_token())
            if self.next == ",":
                self._expect(",")

    def _next_token(self) -> str:
        if self.is_at_end:
            raise ValueError(f"a type ends too early: {' '.join(self._tokens)!r}")
        self._place += 1
        return self._tokens[self._place - 1]

    def _expect(self, expected: str) -> None:
        found = self._next_token()
        if found != expected:
            raise ValueError(f"expected {expected!r}, found {found!r}")


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
            errors=dict(_error_row(each) for each in row["errors"].split()),
            tags=tuple(row["tags"].split()),
            is_alone=keys.count(key) == 1,
        )
        for row, key in zip(rows, keys, strict=True)
    )


def _error_row(text: str) -> tuple[str, str]:
    status, _, name = text.partition(":")
    return status, name or ("HTTPValidationError" if status == VALIDATION_ERROR else "ErrorResponse")


@cache
def read_schemas(section: str) -> Schemas:
    """Return the schemas of `section` by name, and the schemas of the base that it does not replace."""
    found: dict[str, dict[str, Any]] = {}
    for part in (FOLDER / "schemas.txt").read_text(encoding="utf-8").split("\n## "):
        name, _, text = part.removeprefix("## ").partition("\n")
        if name in (BASE, section):
            found |= dict(map(_schema, text.strip().split("\n\n")))
    return modelled_schemas(section) | found


def modelled_schemas(section: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of the models of bodies, by name. The tables have those that a section names otherwise."""
    bodies = (*BODIES, *ROUTE_FAMILIES[POOLING_FAMILY].body_models()) if section == POOLING_FAMILY else BODIES
    return schemas_of(bodies, REFERENCE + "{model}", RENAMED.get(section, {}))


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
        kind, has_default, default = rest.partition(" = ")
        found = read_type(kind)
        if "$ref" not in found and not _is_optional_reference(found):
            found["title"] = field.strip("_").replace("_", " ").title()
        properties[field] = {**found, "default": json.loads(default)} if has_default else found
    schema = {"properties": properties, **_ADDITIONAL[extra], "type": "object"}
    return name, {**schema, **({"required": required} if required else {}), "title": title}


def _is_optional_reference(schema: Mapping[str, Any]) -> bool:
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    return len(kinds) == 1 and "$ref" in kinds[0]


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
    """Return a text that is equal for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def digest(value: Any) -> str:
    """Return ten characters that differ where values do."""
    return sha256(canonical(value).encode()).hexdigest()[:10]


def openapi_document(operations: Sequence[Operation], section: str) -> dict[str, Any]:
    """Return the document; `section` names its schemas that differ from a plain server's.

    Title and version are vLLM's, which leaves them to its framework. Routes that vLLM does not have come last.
    """
    known = {(each.method, each.path): each for each in operations}
    paths: dict[str, dict[str, Any]] = {}
    for row in read_operations():
        operation = known.get((row.method, row.path))
        if operation is not None and row.fits(operation.name):
            paths.setdefault(row.path, {})[row.method.lower()] = _described(row)
    for operation in operations:
        methods = paths.setdefault(operation.path, {})
        methods.setdefault(operation.method.lower(), _own_operation(operation))
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


def _own_operation(operation: Operation) -> dict[str, Any]:
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
