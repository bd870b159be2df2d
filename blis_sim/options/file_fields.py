"""The keys of a file, declared once: the fields of a dataclass or of a TypedDict, read strictly and in one way.

The type of a field says what its key holds: text, a number, true or false, with `Bounds` in an `Annotated`. It can hold
a part with keys of its own, a list or tuple of parts, or a mapping of free names. What cannot be used is a FieldError,
which the readers of a kind of file turn into their own message.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias

_INT64_MAX = 2**63 - 1
_NOUNS: Mapping[Any, str] = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class Bounds(NamedTuple):
    """Bounds of a value. `at_least` and `at_most` include their limit, `above` does not."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    choices: Collection[str] = ()

    def allow(self, value: float | str) -> bool:
        """Whether a number or text is within the bounds."""
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return not self.broken_by(value)

    def broken_by(self, number: float) -> str:
        """The bound that a number does not keep, in words; empty where it keeps all."""
        if self.above is not None and number <= self.above:
            return f"above {self.above:.10g}"
        if self.at_least is not None and number < self.at_least:
            return f"at least {self.at_least:.10g}"
        return f"at most {self.at_most:.10g}" if self.at_most is not None and number > self.at_most else ""


UNBOUNDED = Bounds()

Count: TypeAlias = Annotated[int, Bounds(at_least=0)]
AtLeastOne: TypeAlias = Annotated[int, Bounds(at_least=1)]
Amount: TypeAlias = Annotated[float, Bounds(at_least=0)]
Positive: TypeAlias = Annotated[float, Bounds(above=0)]
Share: TypeAlias = Annotated[float, Bounds(above=0, at_most=1)]


class FieldError(ValueError):
    """A key that cannot be used: where it stands, what is allowed there, what was found.

    `within` are the keys that lead to the mapping of `key`. `known` are the keys there if this one is not among them,
    and `is_missing` says that it must be there. `problem` says what is wrong where it is not the value alone.
    """

    def __init__(
        self,
        within: str,
        key: str,
        expected: str = "",
        loaded: Any = None,
        *,
        known: Collection[str] = (),
        is_missing: bool = False,
        problem: str = "",
    ) -> None:
        super().__init__(f"{joined(within, key)}: {expected}")
        self.within, self.key, self.expected, self.loaded = within, key, expected, loaded
        self.known, self.is_missing, self.problem = known, is_missing, problem

    @property
    def place(self) -> str:
        """The keys that lead to the value."""
        return joined(self.within, self.key)

    def about(self, source: object) -> str:
        """The line about the key of a file: where it stands, what was found, what is allowed."""
        if self.known:
            inside = f" of {self.within}" if self.within else ""
            return f"{source}: unknown key {self.key!r}{inside}, known are {', '.join(self.known)}"
        if self.is_missing:
            return f"{source}: the key {self.place} is missing"
        place = f"{source} key {self.place}" if self.place else str(source)
        return f"{place}: {self.problem or f'expected {self.expected}, got {shortened(repr(self.loaded))}'}"


def shortened(text: str) -> str:
    """Return the text of a value as an error shows it, up to 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."


def joined(within: str, key: str) -> str:
    """Return the path of a key inside of others."""
    return f"{within}.{key}" if within and key else within or key


def read(kind: Any, loaded: Any, within: str = "", *, numbers_are_text: bool = False) -> Any:
    """The part of a file that a dataclass or a TypedDict declares, from the values of YAML or JSON. Raises FieldError.

    Keys without a value count as absent. With `numbers_are_text` a whole number where text stands becomes its digits.
    """
    place, _, key = within.rpartition(".")
    return _Reader(numbers_are_text).part(kind, place, key, loaded)


@cache
def keys_of(kind: Any) -> Mapping[str, tuple[Any, Bounds, bool]]:
    """The keys of a part: for each the type of its values, their bounds, and whether it must be there."""
    declared = typing.get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        return {name: (*_kind_and_bounds(each), name in kind.__required_keys__) for name, each in declared.items()}
    return {
        field.name: (
            *_kind_and_bounds(declared[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
        if field.metadata.get("from_file", True)
    }


def _kind_and_bounds(declared: Any) -> tuple[Any, Bounds]:
    """A type without its `| None`, apart from its bounds."""
    if typing.get_origin(declared) in (types.UnionType, typing.Union):
        (declared,) = (each for each in typing.get_args(declared) if each is not types.NoneType)
    if typing.get_origin(declared) is Annotated:
        kind, bounds = typing.get_args(declared)
        return kind, bounds
    return declared, UNBOUNDED


class _Reader(NamedTuple):
    """Turns the values of a text into those that were declared."""

    numbers_are_text: bool

    def part(self, kind: Any, within: str, key: str, loaded: Any) -> Any:
        """A dict with the keys of a TypedDict, or an instance of a dataclass."""
        if not isinstance(loaded, Mapping):
            raise FieldError(within, key, "keys and values", loaded)
        keys, place = keys_of(kind), joined(within, key)
        for name in loaded:
            if name not in keys:
                raise FieldError(place, str(name), known=tuple(keys))
        values = {}
        for name, (declared, bounds, is_required) in keys.items():
            value = loaded.get(name)
            if value == "" and bounds.choices and "" not in tuple(bounds.choices) and not is_required:
                continue  # as a key without a value
            if value is not None:
                values[name] = self.value(declared, bounds, place, name, value)
            elif is_required:
                raise FieldError(place, name, is_missing=True)
        return kind(**values)

    def value(self, kind: Any, bounds: Bounds, within: str, key: str, loaded: Any) -> Any:
        """A value of a declared type, within its bounds."""
        if kind in _NOUNS:
            return self.scalar(kind, bounds, within, key, loaded)
        origin = typing.get_origin(kind)
        if origin in (tuple, list):
            if not isinstance(loaded, list):
                raise FieldError(within, key, "a list", loaded)
            inner = _kind_and_bounds(typing.get_args(kind)[0])
            return origin(self.value(*inner, within, f"{key}[{at}]", each) for at, each in enumerate(loaded))
        if origin is Mapping:
            return self.entries(_kind_and_bounds(typing.get_args(kind)[1]), within, key, loaded)
        return loaded if kind is Any else self.part(kind, within, key, loaded)

    def entries(self, declared: tuple[Any, Bounds], within: str, key: str, loaded: Any) -> dict[str, Any]:
        """The values of a mapping whose keys are free."""
        if not isinstance(loaded, Mapping):
            names = "keys and values" if declared[0] in _NOUNS else "names with keys and values"
            raise FieldError(within, key, names, loaded)
        place, values = joined(within, key), {}
        for name, each in loaded.items():
            if str(name) in values:
                raise FieldError(within, key, problem=f"the key {name} stands twice")
            values[str(name)] = self.value(*declared, place, str(name), each)
        return values

    def scalar(self, kind: Any, bounds: Bounds, within: str, key: str, loaded: Any) -> Any:
        """Text, a number, or true or false."""
        is_digits = self.numbers_are_text and kind is str and type(loaded) is int  # a float's are not as written
        value = str(loaded) if is_digits else _as_number(kind, loaded)
        if type(value) is kind and (kind is bool or bounds.allow(value)):
            return value
        raise FieldError(within, key, allowed_values(kind, bounds) + _magnitude_limit(bounds, loaded), loaded)


def _as_number(kind: type, loaded: Any) -> Any:
    """Convert a number to the expected type where nothing is lost by it; otherwise return None, which is never of the
    expected type."""
    if kind not in (int, float) or isinstance(loaded, bool):
        return loaded
    if not isinstance(loaded, int | float) or not abs(loaded) <= _INT64_MAX:
        return None
    if kind is int and loaded != int(loaded):
        return None
    return kind(loaded + 0)  # which makes of -0.0 the 0 that it is


def allowed_values(kind: type, bounds: Bounds) -> str:
    """The values of a type within bounds, in words."""
    if bounds.choices:
        return " or ".join(filter(None, bounds.choices))
    least, most, above = (None if each is None else number_text(each) for each in bounds[:3])
    noun = _NOUNS[kind]
    if least is not None and most is not None:
        return f"{noun} between {least} and {most}"
    if above is not None:
        return f"{noun} above {above}" + ("" if most is None else f" and at most {most}")
    return noun if least is None else f"{noun} of at least {least}"


def _magnitude_limit(bounds: Bounds, loaded: Any) -> str:
    """The limit of all numbers, for an error about one that is refused for nothing else."""
    is_number = isinstance(loaded, int | float) and not isinstance(loaded, bool)
    return ", below 2**63 in magnitude" if is_number and abs(loaded) > _INT64_MAX and bounds.allow(loaded) else ""


def number_text(value: float) -> str:
    """The shortest decimal that reads back as the same number, without exponent from 1e-6 up to 1e21."""
    if not math.isfinite(value):
        raise ValueError(f"there is no decimal for {value}")
    text = repr(float(value))
    if "e" not in text:
        return text.removesuffix(".0")
    if 1e-6 <= abs(value) < 1e21:
        from decimal import Decimal  # takes 1 ms to load; few figures have an exponent

        return format(Decimal(text), "f")
    return text.replace("e-0", "e-")
