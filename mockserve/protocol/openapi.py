"""The OpenAPI document of the server, made of the models of bodies and of vLLM's own operations and other schemas."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
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
BASE = "base"
"""The section of schemas that all set-ups share."""

Schemas: TypeAlias = Mapping[str, dict[str, Any]]


@cache
def vllm_document() -> Mapping[str, Any]:
    """Return vLLM's `operations`, each with the name of its handler, and its `schemas` that no body has, by section."""
    found: Mapping[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text(encoding="utf-8"))
    return found


@cache
def read_schemas(section: str) -> Schemas:
    """Return the schemas of `section` by name, and the schemas of the base that it does not replace."""
    tables: Mapping[str, Any] = vllm_document()["schemas"]
    return {**modelled_schemas(section), **tables[BASE], **tables[section]}


def modelled_schemas(section: str) -> dict[str, dict[str, Any]]:
    """Return the schemas of the models of bodies, by name. The tables have those that a section names otherwise."""
    bodies = (*BODIES, *ROUTE_FAMILIES[POOLING_FAMILY].body_models()) if section == POOLING_FAMILY else BODIES
    return schemas_of(bodies, REFERENCE + "{model}", RENAMED.get(section, {}))


def openapi_document(operations: Sequence[Operation], section: str) -> dict[str, Any]:
    """Return the document; `section` names its schemas that differ from a plain server's.

    Title and version are vLLM's, which leaves them to its framework. Routes that vLLM does not have come last.
    """
    known = {(each.method, each.path): each for each in operations}
    described = vllm_document()["operations"]
    num_described = Counter((row["method"], row["path"]) for row in described)
    paths: dict[str, dict[str, Any]] = {}
    for row in described:
        key = row["method"], row["path"]
        operation = known.get(key)
        # Of several descriptions of a path the one of its handler holds.
        if operation is not None and (num_described[key] == 1 or row["name"] == operation.name):
            paths.setdefault(row["path"], {})[row["method"].lower()] = row["operation"]
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


def _own_operation(operation: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W", "_", operation.name + operation.path) + f"_{operation.method.lower()}",
        "responses": {"200": {"description": "Successful Response"}, **_ERRORS},
    }
    names = re.findall(r"\{(\w+)\}", operation.path)
    if names:
        found["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in names
        ]
    return found


_ERRORS = {
    status: {"description": phrase, "content": {"application/json": {"schema": {"$ref": REFERENCE + "ErrorResponse"}}}}
    for status, phrase in (("400", "Bad Request"), ("404", "Not Found"))
}


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
