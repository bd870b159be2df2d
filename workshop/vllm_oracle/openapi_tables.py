"""Writes the tables of our OpenAPI document from documents of genuine servers, and their digests for the tests.

python -m workshop.vllm_oracle.openapi_tables PLAIN DEV SCALE_OUT TOKENS_ONLY EMBED CLASSIFY TOKEN_EMBED

Each argument is a file with what GET /openapi.json answers in that set-up. Descriptions are left out.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mockserve.protocol.openapi import (
    REFERENCE,
    canonical,
    digest,
    modelled_schemas,
    reachable,
    read_type,
    without_prose,
)
from workshop.ending import positional, run_command

FOLDER = Path("mockserve/protocol/server/openapi")
DIGESTS = Path("tests/wire/openapi_digests.csv")
SETUPS = ("plain", "dev", "scale-out", "tokens-only", "embed", "classify", "token-embed")
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "base": ("plain", "dev"),
    "scale-out": ("scale-out", "tokens-only"),
    "pooling": ("embed", "classify", "token-embed"),
}
"""Set-ups that share their schemas; a section without a schema of some name uses the base's."""
_PLAIN = {"integer": "int", "number": "num", "string": "str", "boolean": "bool", "null": "null"}


def main() -> int:
    """Read the documents, write the tables."""
    texts = [Path(each).read_text(encoding="utf-8") for each in positional(*(name.upper() for name in SETUPS))]
    documents = {name: without_prose(json.loads(text)) for name, text in zip(SETUPS, texts, strict=True)}
    (FOLDER / "schemas.txt").write_text("\n".join(_schema_lines(documents)) + "\n", encoding="utf-8")
    with (FOLDER / "operations.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "path", "name", "summary", "parameters", "body", "response", "errors", "tags"))
        writer.writerows(_operations(documents))
    with DIGESTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("setup", "kind", "name", "digest"))
        writer.writerows(_digests(documents))
    return 0


def _schema_lines(documents: Mapping[str, Any]) -> Iterator[str]:
    base: dict[str, Any] = {}
    for section, setups in SECTIONS.items():
        modelled = without_prose(modelled_schemas(section))
        found: dict[str, Any] = {}
        for setup in setups:
            for name, schema in documents[setup]["components"]["schemas"].items():
                if schema not in (base.get(name), modelled.get(name)):
                    assert found.get(name, schema) == schema, f"{name} differs within {section}"
                    found[name] = schema
        base = base or found
        yield f"## {section}"
        for name in sorted(found):
            yield ""
            yield from _described(name, found[name])


def _described(name: str, schema: dict[str, Any]) -> Iterator[str]:
    rest = {key: value for key, value in schema.items() if key not in ("properties", "required", "type")}
    if "properties" not in schema:
        yield f"# {name} = {_written(schema)}"
        return
    extra = rest.pop("additionalProperties", None)
    assert not rest, (name, rest)
    yield f"# {name}" + {True: "", False: " closed", None: " silent"}[extra]
    for field, given in schema["properties"].items():
        kind = dict(given)
        default = f" = {json.dumps(kind.pop('default'), ensure_ascii=False)}" if "default" in kind else ""
        mark = "*" if field in schema.get("required", ()) else ""
        yield f"{field}{mark}: {_written(kind)}{default}"


def _written(schema: Any) -> str:
    text = _attempt(schema)
    return str(text) if text and read_type(text) == schema else f"`{json.dumps(schema, ensure_ascii=False)}`"


def _attempt(schema: Any) -> str:
    rest = dict(schema) if isinstance(schema, dict) else {}
    if "$ref" in rest:
        text = rest.pop("$ref").removeprefix(REFERENCE)
    elif "anyOf" in rest:
        text = " | ".join(_written(each) for each in rest.pop("anyOf"))
        return "" if rest else text
    elif "const" in rest:
        text = json.dumps(rest.pop("const"), ensure_ascii=False)
        rest.pop("type", None)
    elif "enum" in rest:
        text = "<" + ", ".join(json.dumps(each) for each in rest.pop("enum")) + ">"
        rest.pop("type", None)
    elif rest.get("type") == "array" and "items" in rest:
        text = f"[{_written(rest.pop('items'))}]"
        del rest["type"]
    elif rest.get("type") == "object" and "additionalProperties" in rest:
        inner = rest.pop("additionalProperties")
        text = "obj" if inner is True else "{" + _written(inner) + "}" if isinstance(inner, dict) else ""
        del rest["type"]
    elif rest.get("type") in _PLAIN:
        text = _PLAIN[rest.pop("type")]
    else:
        text = "any"
    if not rest:
        return str(text)
    if not all(isinstance(each, int | float | bool) for each in rest.values()):
        return ""
    return f"{text}({', '.join(f'{key}={json.dumps(value)}' for key, value in rest.items())})"


def _operations(documents: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    seen: dict[tuple[str, str, str], Any] = {}
    for document in documents.values():
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                key = method, path, operation["operationId"]
                assert seen.get(key, operation) == operation, key
                if key not in seen:
                    seen[key] = operation
                    yield _operation(method, path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> tuple[str, ...]:
    body = operation.get("requestBody")
    errors = [_error(status, reply) for status, reply in operation["responses"].items() if status not in ("200", "422")]
    name = operation["operationId"].removesuffix(re.sub(r"\W", "_", path) + f"_{method}")
    usual = name.replace("_", " ").title()
    return (
        method.upper(),
        path,
        name,
        "" if operation["summary"] == usual else operation["summary"],
        json.dumps(operation["parameters"]) if "parameters" in operation else "",
        "" if body is None else _written(body["content"]["application/json"]["schema"]) + _optional(body),
        json.dumps(operation["responses"]["200"].get("content", {})),
        " ".join(errors + (["422"] if "422" in operation["responses"] else [])),
        " ".join(operation.get("tags", ())),
    )


def _error(status: str, reply: Mapping[str, Any]) -> str:
    name = str(reply["content"]["application/json"]["schema"]["$ref"]).removeprefix(REFERENCE)
    return status if name == "ErrorResponse" else f"{status}:{name}"


def _optional(body: Mapping[str, Any]) -> str:
    return "" if body.get("required") else " ?"


def _digests(documents: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for setup, document in documents.items():
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                yield setup, "operation", f"{method.upper()} {path}", digest(operation)
        yield setup, "names", "schemas", digest(sorted(reachable(document["paths"], document["components"]["schemas"])))
        known = documents["plain"]["components"]["schemas"]
        for name, schema in document["components"]["schemas"].items():
            if setup == "plain" or canonical(known.get(name)) != canonical(schema):
                yield setup, "schema", name, digest(schema)


if __name__ == "__main__":
    run_command(main)
