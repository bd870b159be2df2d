"""Writes the tables of our OpenAPI document from documents of genuine servers, and their digests for the tests.

python -m workshop.vllm_oracle.openapi_tables PLAIN DEV SCALE_OUT TOKENS_ONLY EMBED CLASSIFY TOKEN_EMBED

Each argument is a file with what GET /openapi.json answers in that set-up. Descriptions are left out.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from mockserve.protocol.openapi import modelled_schemas, reachable
from workshop.ending import positional, run_command

TABLE = Path("mockserve/protocol/openapi.json")
DIGESTS = Path("tests/wire/openapi_digests.csv")
SETUPS = ("plain", "dev", "scale-out", "tokens-only", "embed", "classify", "token-embed")
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "base": ("plain", "dev"),
    "scale-out": ("scale-out", "tokens-only"),
    "pooling": ("embed", "classify", "token-embed"),
}
"""Set-ups that share their schemas; a section without a schema of some name uses the base's."""
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


def main() -> int:
    """Read the documents, write the tables."""
    texts = [Path(each).read_text(encoding="utf-8") for each in positional(*(name.upper() for name in SETUPS))]
    documents = {name: without_prose(json.loads(text)) for name, text in zip(SETUPS, texts, strict=True)}
    operations = ",\n".join(map(_line, _operations(documents)))
    sections = ",\n".join(
        f'"{section}":{{\n' + ",\n".join(f'"{name}":{_line(found[name])}' for name in sorted(found)) + "\n}"
        for section, found in _schemas(documents)
    )
    text = f'{{"operations":[\n{operations}\n],\n"schemas":{{\n{sections}\n}}}}\n'
    TABLE.write_text(text, encoding="utf-8")
    with DIGESTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("setup", "kind", "name", "digest"))
        writer.writerows(_digests(documents))
    return 0


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _schemas(documents: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each section with the schemas that neither a body nor the base has."""
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
        yield section, found


def _operations(documents: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    seen: dict[tuple[str, str, str], Any] = {}
    for document in documents.values():
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                key = method, path, operation["operationId"]
                assert seen.get(key, operation) == operation, key
                if key not in seen:
                    seen[key] = operation
                    name = operation["operationId"].removesuffix(re.sub(r"\W", "_", path) + f"_{method}")
                    yield {"method": method.upper(), "path": path, "name": name, "operation": operation}


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
