"""A workload spec as YAML: read strictly, and written so that it reads back as the same spec.

The first thing that cannot be used is named, with the file, the key, what is allowed and what was found.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from blis_sim.options.yaml_text import dump_yaml
from traces.text_file import TraceError, parse_yaml, read_text
from traces.workload.checks import checked
from traces.workload.sections import Bounds
from traces.workload.spec import Client, WorkloadSpec

NEW_CLASS_NAMES = {"realtime": "critical", "interactive": "standard"}


def upgraded(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec as version 2, with a note for each service class of its clients that has another name now.

    Specs without a version are of version 1; all but 1 stay as they are.
    """
    if spec.version not in ("", "1"):
        return spec
    clients = tuple(map(_renamed, spec.clients))
    old = dict.fromkeys(client.slo_class for client in spec.clients if client.slo_class in NEW_CLASS_NAMES)
    notes = tuple(f"the service class {name} of version 1 is taken as {NEW_CLASS_NAMES[name]}" for name in old)
    return replace(spec, version="2", clients=clients, notes=spec.notes + notes)


def _renamed(client: Client) -> Client:
    return replace(client, slo_class=NEW_CLASS_NAMES.get(client.slo_class, client.slo_class))


T = TypeVar("T")

_INT64_MAX = 2**63 - 1


def read_spec(path: Path | str) -> WorkloadSpec:
    """Read a workload spec. Raises TraceError."""
    path = Path(path)
    return parse_spec(read_text(path), str(path))


def parse_spec(text: str, source: str) -> WorkloadSpec:
    """Read a workload spec from its text; `source` names it in errors. Raises TraceError."""
    loaded = parse_yaml(source, text)
    if loaded is None:
        raise TraceError(f"{source}: the file is empty, expected a workload spec")
    return spec_of(loaded, source)


def spec_of(loaded: Any, source: str) -> WorkloadSpec:
    """The workload spec of keys and values; `source` names it in errors. Raises TraceError."""
    return checked(upgraded(_Reader(source).part(WorkloadSpec, "", loaded)), source)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns what YAML gave into parts of the model. `where` is the path of keys that leads to a value."""

    source: str

    def part(self, kind: type[T], where: str, loaded: Any) -> T:
        """An instance of one of the model's classes."""
        if not isinstance(loaded, Mapping):
            raise self.error(where, "keys and values", loaded)
        keys = _keys(typing.cast(type, kind))
        for name in loaded:
            if name not in keys:
                inside = f" of {where}" if where else ""
                raise TraceError(f"{self.source}: unknown key {str(name)!r}{inside}, known are {', '.join(keys)}")
        values = {}
        for name, (declared, required) in keys.items():
            place = f"{where}.{name}" if where else name
            if loaded.get(name) is not None:
                values[name] = self.value(declared, place, loaded[name])
            elif required:
                raise TraceError(f"{self.source}: the key {place} is missing")
        return kind(**values)

    def value(self, declared: Any, where: str, loaded: Any) -> Any:
        """A value of a declared type, within its bounds."""
        kind, bounds = _kind_and_bounds(declared)
        if dataclasses.is_dataclass(kind):
            return self.part(typing.cast(type, kind), where, loaded)
        if typing.get_origin(kind) is tuple:
            return self.items(typing.get_args(kind)[0], where, loaded)
        if typing.get_origin(kind) is Mapping:
            return self.entries(typing.get_args(kind)[1], where, loaded)
        return self.scalar(kind, bounds, where, loaded)

    def items(self, kind: type[T], where: str, loaded: Any) -> tuple[T, ...]:
        """The parts of a list."""
        if not isinstance(loaded, list):
            raise self.error(where, "a list", loaded)
        return tuple(self.part(kind, f"{where}[{place}]", each) for place, each in enumerate(loaded))

    def entries(self, declared: Any, where: str, loaded: Any) -> dict[str, Any]:
        """The values of a mapping whose keys are free."""
        if not isinstance(loaded, Mapping):
            raise self.error(where, "keys and values", loaded)
        values: dict[str, Any] = {}
        for name, each in loaded.items():
            if str(name) in values:
                raise TraceError(f"{self.source} key {where}: the key {name} stands twice")
            values[str(name)] = self.value(declared, f"{where}.{name}", each)
        return values

    def scalar(self, kind: Any, bounds: Bounds, where: str, loaded: Any) -> Any:
        """Text, a number, or true or false."""
        value = _converted(kind, loaded)
        if type(value) is not kind or not (kind is bool or bounds.allow(value)):
            raise self.error(where, _expected(kind, bounds) + _limit(bounds, loaded), loaded)
        return value

    def error(self, where: str, expected: str, loaded: Any) -> TraceError:
        """The error for a value that is not what is expected."""
        shown = repr(loaded)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        place = f"{self.source} key {where}" if where else self.source
        return TraceError(f"{place}: expected {expected}, got {shown}")


def _converted(kind: type, loaded: Any) -> Any:
    """Convert a scalar to the expected type where nothing is lost by it; otherwise return None, which is never of the
    expected type."""
    if kind is str and type(loaded) is int:  # of a float the digits that were written are lost, as in 3.10
        return str(loaded)
    if kind not in (int, float) or isinstance(loaded, bool):
        return loaded
    if not isinstance(loaded, int | float) or not math.isfinite(loaded) or abs(loaded) > _INT64_MAX:
        return None
    if kind is int and loaded != int(loaded):
        return None
    return kind(loaded + 0)  # which makes of -0.0 the 0 that it is


def _expected(kind: type, bounds: Bounds) -> str:
    if bounds.choices:
        return " or ".join(filter(None, bounds.choices))
    noun = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}[kind]
    return noun + bounds.words


def _limit(bounds: Bounds, loaded: Any) -> str:
    """The limit of all numbers, for an error about one that is refused for nothing else."""
    is_number = isinstance(loaded, int | float) and not isinstance(loaded, bool)
    return ", below 2**63 in magnitude" if is_number and abs(loaded) > _INT64_MAX and bounds.allow(loaded) else ""


@cache
def _keys(kind: type) -> dict[str, tuple[Any, bool]]:
    """The keys of a part of the model: declared type, and whether it must be there."""
    declared = typing.get_type_hints(kind, include_extras=True)
    return {
        field.name: (declared[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in dataclasses.fields(kind)
        if field.metadata.get("from_file", True)
    }


def _kind_and_bounds(declared: Any) -> tuple[Any, Bounds]:
    """A type without its `| None`, apart from its bounds."""
    if typing.get_origin(declared) in (types.UnionType, typing.Union):
        (declared,) = (each for each in typing.get_args(declared) if each is not types.NoneType)
    if typing.get_origin(declared) is typing.Annotated:
        kind, bounds = typing.get_args(declared)
        return kind, bounds
    return declared, Bounds()


INDENT = 4
WIDTH = 1 << 20
MAX_SIMPLE_CHARS = 100
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
        self._cached_scalars: dict[tuple[type, Any], str] = {}

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
        found = self._cached_scalars.get(key)
        if found is None:
            found = self._cached_scalars[key] = _simple(value)
        return found


def _simple(value: Any) -> str:
    if isinstance(value, str) and (len(value) > MAX_SIMPLE_CHARS or not value.isprintable()):
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
