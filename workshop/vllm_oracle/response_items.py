"""Writes down what vLLM takes as an item, a tool, a choice of tools or a format of a response: forms and their fields.

    PYTHON_WITH_VLLM workshop/vllm_oracle/response_items.py mockserve/protocol/item_forms.json

A type is a name (`str`, `int`, `float`, `bool`, `any`), the name of a form after `#`, or a list: `literal` and its
values, or `null`, `list`, `sequence`, `iterable`, `dict` or `union` and the types inside.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from workshop.ending import positional, run_command

Written: TypeAlias = Any

PLAIN = frozenset({"str", "int", "float", "bool", "any"})


class Writer:
    """Collects the forms that a core schema of pydantic has."""

    def __init__(self) -> None:
        self.forms: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def written(self, schema: Mapping[str, Any]) -> Written:
        kind = schema["type"]
        if kind in PLAIN:
            return kind
        if kind == "definition-ref":
            return f"#{self._name(schema['schema_ref'])}"
        if kind in ("typed-dict", "model"):
            return f"#{self._form(schema)}"
        if kind == "union":
            return [
                "union",
                *(self.written(each[0] if isinstance(each, tuple) else each) for each in schema["choices"]),
            ]
        if kind == "literal":
            return ["literal", *schema["expected"]]
        if kind == "json-or-python":
            return ["sequence", self.written(schema["json_schema"]["items_schema"])]
        if kind == "default":
            return self.written(schema["schema"])
        inner = {"nullable": "schema", "list": "items_schema", "generator": "items_schema", "dict": "values_schema"}
        names = {"nullable": "null", "generator": "iterable"}
        return [names.get(kind, kind), self.written(schema[inner[kind]])]

    def union(self, adapter: Any) -> list[Written]:
        """Return what a union may be, and collect its forms."""
        schema = adapter.core_schema
        found = self.written(schema["schema"] if schema["type"] == "definitions" else schema)
        for each in schema.get("definitions", ()):
            self._form(each)
        return list(found[1:])

    def _form(self, schema: Mapping[str, Any]) -> str:
        name = self._name(schema["ref"])
        if name in self.forms:
            return name
        is_model = schema["type"] == "model"
        found: dict[str, Any] = {"name": schema["cls"].__name__, "is_model": is_model, "fields": {}, "required": []}
        self.forms[name] = found
        fields = (schema["schema"] if is_model else schema)["fields"]
        for field, each in fields.items():
            alias = each.get("validation_alias", field)
            required = each["schema"]["type"] != "default" if is_model else each["required"]
            found["fields"][alias] = self.written(each["schema"])
            if required:
                found["required"].append(alias)
        return name

    def _name(self, reference: str) -> str:
        """A short name for a form; two classes may have the same."""
        if reference not in self._names:
            short = reference.partition(":")[0].rpartition(".")[2]
            taken = sum(each.partition("-")[0] == short for each in self._names.values())
            self._names[reference] = f"{short}-{taken + 1}" if taken else short
        return self._names[reference]


def without_doubles(table: Any) -> Any:
    """The table with one form for those that are equal."""
    while True:
        first: dict[str, str] = {}
        doubles = {}
        for name, form in table["forms"].items():
            original = first.setdefault(json.dumps(form), name)
            if original != name:
                doubles[f"#{name}"] = f"#{original}"
        if not doubles:
            return table
        for name in doubles:
            del table["forms"][name[1:]]
        table = _renamed(table, doubles)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    if isinstance(value, dict):
        return {name: _renamed(each, names) for name, each in value.items()}
    return value


def main() -> int:
    """Write the file."""
    (file,) = positional("FILE")
    from openai.types.responses import ResponseFormatTextConfig, ResponseInputItemParam, ResponseOutputItem, Tool
    from openai.types.responses.response import ToolChoice
    from pydantic import TypeAdapter

    writer = Writer()
    unions = {
        "items": writer.union(TypeAdapter(ResponseInputItemParam | ResponseOutputItem)),
        "tools": writer.union(TypeAdapter(Tool)),
        "choices": writer.union(TypeAdapter(ToolChoice)),
        "formats": writer.union(TypeAdapter(ResponseFormatTextConfig)),
    }
    unions["namespaced"] = writer.forms["NamespaceTool"]["fields"]["tools"][1][1:]
    table = without_doubles({**unions, "forms": writer.forms})
    Path(file).write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_command(main)
