"""Records of one kind kept by columns: they take the room of their values that differ, and are made when asked for."""

import dataclasses
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Row = TypeVar("Row")

ROWS_AT_ONCE = 256
"""How many records are packed together."""
_MOST_CODES = 256
_MOST_KNOWN_TEXTS = 100_000
_TYPECODES = (("b", 7), ("h", 15), ("i", 31), ("q", 63))


class _Kind(NamedTuple):
    names: tuple[str, ...]
    places: Mapping[str, int]
    values: Callable[[Any], Iterable[Any]]
    """The values of a record in the order of names."""
    make: Callable[[Iterable[Any]], Any]


@cache
def _kind_of(kind: Any) -> _Kind:
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
        return _Kind(names, _numbered(names), attrgetter(*names), _maker(kind, names))
    names = kind._fields
    return _Kind(names, _numbered(names), iter, kind._make)


def _maker(kind: Any, names: Iterable[str]) -> Callable[[Iterable[Any]], Any]:
    """Return a function that makes a dataclass with slots of its values, in half the time of its constructor."""
    new = object.__new__
    setters = [getattr(kind, name).__set__ for name in names]

    def made(values: Iterable[Any]) -> Any:
        row: Any = new(kind)
        for set_value, value in zip(setters, values, strict=True):
            set_value(row, value)
        return row

    return made


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


class PackedRows(Sequence[Row], Generic[Row]):
    """Records of one kind, in this order."""

    def __init__(self, kind: type[Row]) -> None:
        self._type = kind
        key: Any = kind
        self._kind: _Kind = _kind_of(key)
        self._chunks: list[list[Sequence[Any]]] = []
        self._ends: list[int] = []
        """The number of records up to and with each chunk."""
        self._texts: dict[str, str] = {}
        """Texts that were seen lately, so that equal ones are kept once."""

    @classmethod
    def of(cls, kind: type[Row], rows: Iterable[Row]) -> "PackedRows[Row]":
        """Return these records packed; those that are stay as they are."""
        if isinstance(rows, PackedRows):
            return rows
        packed = cls(kind)
        chunk: list[Row] = []
        for row in rows:
            chunk.append(row)
            if len(chunk) == ROWS_AT_ONCE:
                packed.add(chunk)
                chunk = []
        packed.add(chunk)
        return packed

    def add(self, rows: Sequence[Row]) -> None:
        """Add records behind the others."""
        if rows:
            self.add_columns(list(zip(*map(self._kind.values, rows), strict=True)))

    def add_columns(self, columns: Sequence[Sequence[Any]]) -> None:
        """Add at least one record, by the columns of all fields in their order."""
        self._chunks.append([self._packed(values) for values in columns])
        self._ends.append(len(self) + len(columns[0]))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> "PackedRows[Row]": ...

    def __getitem__(self, place: "int | slice") -> "Row | PackedRows[Row]":
        if isinstance(place, slice):
            places = range(len(self))[place]
            return self if len(places) == len(self) and place.step in (None, 1) else self.those(places)
        number, within = self._where(place)
        made: Row = self._kind.make([_at(column, within) for column in self._chunks[number]])
        return made

    def __iter__(self) -> Iterator[Row]:
        for columns, size in self._sized():
            yield from map(self._kind.make, zip(*(_spread(column, size) for column in columns), strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def values(self, name: str) -> Iterator[Any]:
        """Yield the values of a field."""
        at = self._kind.places[name]
        return chain.from_iterable(_spread(columns[at], size) for columns, size in self._sized())

    def value(self, name: str, place: int) -> Any:
        """Return one value of a field."""
        number, within = self._where(place)
        return _at(self._chunks[number][self._kind.places[name]], within)

    def distinct(self, name: str) -> set[Any]:
        """Return the values of a field, each once."""
        at = self._kind.places[name]
        found: set[Any] = set()
        for columns in self._chunks:
            column = columns[at]
            found.update(column.distinct if isinstance(column, _Coded) else column)
        return found

    def ints(self, name: str) -> "npt.NDArray[np.int64]":
        """Return a field of whole numbers."""
        import numpy as np  # most readers and writers of a trace do not need numpy

        return np.fromiter(self.values(name), np.int64, len(self))

    def are_distinct(self, name: str) -> bool:
        """Whether no two records have the same whole number in a field."""
        ordered = self.ints(name)
        ordered.sort()  # np.unique loads all of np.ma: 20 ms
        return not bool((ordered[1:] == ordered[:-1]).any())

    def labels_of(self, name: str) -> "tuple[list[str], npt.NDArray[np.int64]]":
        """The values of a field, and for each record the index of its value."""
        import numpy as np

        codes: dict[str, int] = {}
        indices = np.fromiter((codes.setdefault(each, len(codes)) for each in self.values(name)), np.int64, len(self))
        return list(codes), indices

    def has_any(self, name: str) -> bool:
        """Return whether a record has a field of this name with a value in it."""
        return name in self._kind.places and any(self.distinct(name))

    def those(self, places: Sequence[int]) -> "PackedRows[Row]":
        """Return the records at these places, in their order."""
        other = PackedRows(self._type)
        portions = [places[first : first + ROWS_AT_ONCE] for first in range(0, len(places), ROWS_AT_ONCE)]
        other._ends = [min(len(places), (number + 1) * ROWS_AT_ONCE) for number in range(len(portions))]
        other._chunks = [[] for _ in portions]
        for at, name in enumerate(self._kind.names):
            only = {columns[at] for columns in self._chunks if type(columns[at]) is tuple and len(columns[at]) == 1}
            if len(only) == 1 and all(type(columns[at]) is tuple and len(columns[at]) == 1 for columns in self._chunks):
                for chunk in other._chunks:
                    chunk.append(next(iter(only)))
                continue
            whole = list(self.values(name))
            for chunk, portion in zip(other._chunks, portions, strict=True):
                chunk.append(other._packed([whole[place] for place in portion]))
        return other

    def with_columns(self, **changed: Iterable[Any]) -> "PackedRows[Row]":
        """Return the records with other values of these fields, one for each record."""
        other = PackedRows(self._type)
        sources = {self._kind.places[name]: iter(values) for name, values in changed.items()}
        for columns, size in self._sized():
            replaced = list(columns)
            for at, source in sources.items():
                replaced[at] = other._packed([next(source) for _ in range(size)])
            other._chunks.append(replaced)
            other._ends.append(len(other) + size)
        return other

    def _sized(self) -> Iterator[tuple[list[Sequence[Any]], int]]:
        before = 0
        for columns, end in zip(self._chunks, self._ends, strict=True):
            yield columns, end - before
            before = end

    def _where(self, place: int) -> tuple[int, int]:
        place = range(len(self))[place]
        number = bisect_right(self._ends, place)
        return number, place - (self._ends[number - 1] if number else 0)

    def _packed(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of a field in less room: one of equal values."""
        kinds = set(map(type, values))
        if kinds == {float}:
            floats = array("d", values)
            return floats[:1] if floats.tobytes() == floats[:1].tobytes() * len(floats) else floats
        if len(kinds) == 1 and values.count(values[0]) == len(values):
            return (values[0],)
        if kinds == {int}:
            low, high = min(values), max(values)
            for code, bits in _TYPECODES:
                if -1 << bits <= low and high < 1 << bits:
                    return array(code, values)
            return tuple(values)
        if kinds <= {str, bool, type(None)} or kinds == {int, type(None)}:
            distinct = dict.fromkeys(values)
            if len(distinct) <= min(_MOST_CODES, len(values) // 2):
                codes = _numbered(distinct)
                return _Coded(tuple(map(self._known, distinct)), bytes(map(codes.__getitem__, values)))
        return tuple(map(self._known, values))

    def _known(self, value: Any) -> Any:
        if type(value) is not str:
            return value
        if len(self._texts) > _MOST_KNOWN_TEXTS:
            self._texts.clear()
        return self._texts.setdefault(value, value)


class _Coded(Sequence[Any]):
    """Values of which there are few different ones."""

    __slots__ = ("codes", "distinct")

    def __init__(self, distinct: tuple[Any, ...], codes: bytes) -> None:
        self.distinct, self.codes = distinct, codes

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, place: Any) -> Any:
        return self.distinct[self.codes[place]]

    def __iter__(self) -> Iterator[Any]:
        return map(self.distinct.__getitem__, self.codes)


def _at(column: Sequence[Any], place: int) -> Any:
    return column[place] if len(column) > 1 else column[0]


def _spread(column: Sequence[Any], size: int) -> Iterable[Any]:
    """The values of so many records."""
    return column if len(column) > 1 else repeat(column[0], size)
