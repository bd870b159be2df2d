"""A workload spec as the YAML that reads back as the same spec."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any

from blis_sim.options.yaml_text import dump_yaml
from traces.workload.spec import WorkloadSpec

INDENT = 4
WIDTH = 1 << 20
MOST_SIMPLE_CHARS = 100
"""Longer scalars may be keys of another form, or fill several lines."""


def spec_text(spec: WorkloadSpec) -> str:
    """The YAML of a spec, keys in the order of the format, what has its default left out."""
    return block_text(plain_spec(spec))


def block_text(value: Any) -> str:
    """The text that `dump_yaml` gives of keys and values, in a tenth of its time: a spec may have 10,000 clients."""
    if not isinstance(value, dict) or not value:
        return dump_yaml(value, indent=INDENT, width=WIDTH)
    try:
        return "".join(_Writer().mapping(value, ""))
    except _NotSimpleError:
        return dump_yaml(value, indent=INDENT, width=WIDTH)


class _NotSimpleError(Exception):
    """A scalar has no form that is the same wherever it stands."""


class _Writer:
    """Writes mappings, lists and scalars in blocks. Each scalar is looked at once, however often it stands there."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, Any], str] = {}

    def mapping(self, value: Mapping[str, Any], pad: str) -> Iterator[str]:
        if "" in value:
            raise _NotSimpleError
        for name, each in value.items():
            yield f"{pad}{self._scalar(name)}:"
            yield from self._value(each, pad)

    def _value(self, value: Any, pad: str) -> Iterator[str]:
        if isinstance(value, dict) and value:
            yield "\n"
            yield from self.mapping(value, pad + " " * INDENT)
        elif isinstance(value, list) and value:
            yield "\n"
            for each in value:
                yield from self._item(each, pad)
        else:
            yield f" {self._scalar(value)}\n"

    def _item(self, value: Any, pad: str) -> Iterator[str]:
        if isinstance(value, list) and value:
            raise _NotSimpleError
        if not isinstance(value, dict) or not value:
            yield f"{pad}- {self._scalar(value)}\n"
            return
        lines = "".join(self.mapping(value, pad + " " * INDENT))
        yield f"{pad}-{lines[len(pad) + 1 :]}"

    def _scalar(self, value: Any) -> str:
        if isinstance(value, dict | list):
            return "{}" if isinstance(value, dict) else "[]"
        key = (type(value), value)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _simple(value)
        return found


def _simple(value: Any) -> str:
    if isinstance(value, str) and (len(value) > MOST_SIMPLE_CHARS or not value.isprintable()):
        raise _NotSimpleError
    first, _, rest = dump_yaml(value, indent=INDENT, width=WIDTH).partition("\n")
    if rest not in ("", "...\n"):
        raise _NotSimpleError
    return first


def plain_spec(value: Any) -> Any:
    """The values of a part of a spec as a file has them, what has its default left out."""
    if dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.metadata.get("from_file", True)]
        there = {field.name: getattr(value, field.name) for field in fields if not _is_default(value, field)}
        return {name: plain_spec(each) for name, each in there.items()}
    if isinstance(value, Mapping):
        return {str(name): plain_spec(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain_spec(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return int(value)
    return value


def _is_default(part: Any, field: dataclasses.Field[Any]) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(getattr(part, field.name) == default)
