"""The forms that an item of a response's input may have, read from `item_forms.json` when the first one is checked.

`benchmarks/vllm_oracle/response_items.py` writes the file.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mockserve.protocol.errors import Problem
from mockserve.protocol.reading.containers import AnyOf, Iterable, ListOf, MapOf, Named, Nullable, Record
from mockserve.protocol.reading.types import Anything, FieldType, Flag, Integer, Number, OneOf, Text

FILE = Path(__file__).with_name("item_forms.json")
_PLAIN: Mapping[str, FieldType] = {
    "str": Text(),
    "int": Integer(),
    "float": Number(),
    "bool": Flag(),
    "any": Anything(),
}


class ItemForms:
    """All forms by name, and those of an item in the order in which vLLM tries them."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table["forms"]
        self._records: dict[str, FieldType] = {}
        self._items = [self._type(each) for each in _flat(table["items"])]
        self._by_type: dict[str, list[FieldType]] = {}
        self._untyped: list[FieldType] = []
        for name, form in zip(_flat(table["items"]), self._items, strict=True):
            given = self._table[name[1:]]
            for kind in _literals(given["fields"].get("type")):
                self._by_type.setdefault(kind, []).append(form)
            if "type" not in given["required"]:
                self._untyped.append(form)

    def problems(self, value: Any, location: str) -> list[Problem]:
        """What is wrong with an item: nothing if it has one of the forms, else what keeps it from each of them."""
        if any(not form.problems(value, location) for form in self._candidates(value)):
            return []
        return AnyOf(tuple(self._items)).problems(value, location)

    def fits(self, name: str, value: Any) -> bool:
        """Whether a value has the form of this name."""
        return not self._type(f"#{name}").problems(value, "")

    def part_problems(self, value: Any, location: str) -> list[Problem]:
        """What is wrong with a part of an answer."""
        parts = AnyOf((self._type("#ResponseOutputTextParam"), self._type("#ResponseOutputRefusalParam")))
        return parts.problems(value, location)

    def _candidates(self, value: Any) -> list[FieldType]:
        """The forms that the item may have by its type: most items need a look at no other one."""
        if not isinstance(value, dict):
            return []
        kind = value.get("type")
        return self._by_type.get(kind, []) if isinstance(kind, str) else self._untyped

    def _type(self, written: Any) -> FieldType:
        if isinstance(written, str):
            return self._record(written[1:]) if written.startswith("#") else _PLAIN[written]
        kind, *inner = written
        if kind == "literal":
            return OneOf(tuple(inner))
        if kind == "union":
            return AnyOf(tuple(self._type(each) for each in inner))
        (of,) = (self._type(each) for each in inner)
        containers: Mapping[str, FieldType] = {
            "null": Nullable(of),
            "list": ListOf(of),
            "sequence": ListOf(of, is_sequence=True),
            "iterable": Iterable(of),
            "dict": MapOf(of),
        }
        return containers[kind]

    def _record(self, name: str) -> FieldType:
        if name not in self._records:
            form = self._table[name]
            fields = {field: self._type(each) for field, each in form["fields"].items()}
            kind = "model_attributes_type" if form["is_model"] else "dict_type"
            record = Record(fields, tuple(form["required"]), kind=kind, ignores_unknown=not form["is_model"])
            self._records[name] = Named(form["name"], record)
        return self._records[name]


@lru_cache(maxsize=1)
def item_forms() -> ItemForms:
    """The forms of vLLM."""
    return ItemForms(json.loads(FILE.read_text(encoding="utf-8")))


def _flat(items: list[Any]) -> list[str]:
    """The names of forms, also of those in a union within the union."""
    return [name for each in items for name in ([each] if isinstance(each, str) else _flat(each[1:]))]


def _literals(written: Any) -> list[str]:
    """The values of a type that is a literal or null."""
    if isinstance(written, list) and written[0] == "null":
        return _literals(written[1])
    return list(written[1:]) if isinstance(written, list) and written[0] == "literal" else []
