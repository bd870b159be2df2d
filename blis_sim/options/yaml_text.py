"""The YAML reader of all input files: each value is that of its text, or is refused with its line.

Scalars follow YAML 1.2 where version 1.1 reads a number or a date into other text. `010` and `1:30` and `2026-01-31`
stay text, and `1e6` is a number. A key stands once in its mapping. Depth and number of values are bounded while the
text is parsed, so a vast or hostile file costs little time and memory.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

import yaml

MOST_CHARACTERS = 1 << 26
"""Characters of one text."""
_DEEPEST = 100
_MOST_VALUES = 10_000_000
"""Values of one text, each counted wherever an alias repeats it."""
_MOST_EVENTS = 2_000_000
"""Scalars, mappings, lists and aliases that are spelled out; each takes some four microseconds and 100 bytes."""

_MOST_EXPLAINED = 100_000
"""Characters of a text in which a mistake is looked for a second time."""
_LARGEST = 1e300
"""Below what a float can hold."""

_TAG = "tag:yaml.org,2002:"
_MERGE_KEY = "<<"
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_BOOLS = {
    spelling: value
    for word, value in (("yes", True), ("no", False), ("true", True), ("false", False), ("on", True), ("off", False))
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS = ("", "~", "null", "Null", "NULL")
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)", re.ASCII)
_BASED_INT = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*\.[0-9_]*|(0|[1-9][0-9_]*)(?=[eE]))([eE][-+]?[0-9]+)?", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
"""Only the escapes of a text in double quotes can write one."""
_SPECIAL_FLOATS = {
    sign + spelling: float(sign + word)
    for word in ("inf", "nan")
    for spelling in (
        f".{word}",
        f".{word.capitalize()}",
        ".NaN" if word == "nan" else f".{word.upper()}",
        f".{word.upper()}",
    )
    for sign in ("", "+", "-")
}

_Events: TypeAlias = Iterator[Any]
_Event: TypeAlias = Any
"""Any of PyYAML's classes of events, whose attributes differ."""


class YamlError(ValueError):
    """A text that cannot be parsed: the problem, and its line, counted from 1, None where no line is at fault."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem if line is None else f"line {line}: {problem}")
        self.problem = problem
        self.line = line


def load_yaml(text: str) -> Any:
    """The value of a YAML text, None of an empty one. Raises YamlError."""
    if len(text) > MOST_CHARACTERS:
        raise YamlError(f"the text has {len(text):,} characters, allowed are {MOST_CHARACTERS:,}")
    try:
        try:
            return _Reader(yaml.parse(text, Loader=_PARSER)).document()
        except (yaml.scanner.ScannerError, yaml.parser.ParserError) as mistake:
            if len(text) > _MOST_EXPLAINED:
                raise
            try:
                return _Reader(yaml.parse(text, Loader=yaml.SafeLoader)).document()
            except OverflowError:  # the number of a character that there is none of
                raise mistake from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = error.problem or error.context or "it cannot be parsed"
        raise YamlError(problem, None if mark is None else mark.line + 1) from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, YamlError):
            raise
        raise YamlError(" ".join(str(error).split())) from error


def dump_yaml(value: Any, dumper: type[yaml.SafeDumper] | None = None, **style: Any) -> str:
    """The YAML text that `load_yaml` reads back as this value; text that looks like a number is quoted."""
    return str(yaml.dump(value, Dumper=dumper or Dumper, sort_keys=False, allow_unicode=True, **style))


class Dumper(yaml.SafeDumper):
    """Writes plain values for `load_yaml`."""


# Only PyYAML's resolver quotes text, and to that one 1e6 is text anyway.
Dumper.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))
Dumper.add_implicit_resolver(_TAG + "int", _BASED_INT, list("-+0"))


class _Node(NamedTuple):
    """A value with the number of levels and of values in it; `is_merge` for the plain key `<<`."""

    value: Any
    levels: int = 0
    num_values: int = 1
    is_merge: bool = False


class _Reader:
    """Builds the value of a document out of parsing events."""

    def __init__(self, events: _Events) -> None:
        self._events = events
        self._num_events = 0
        self._anchors: dict[str, _Node | None] = {}

    def document(self) -> Any:
        """The value of the only document."""
        value = None
        num_documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    _refuse(event, "expected a single document, got another one")
                value = self._node(self._next(), 0).value
        return value

    def _next(self) -> _Event:
        self._num_events += 1
        event = next(self._events)
        if self._num_events > _MOST_EVENTS:
            _refuse(event, f"more than {_MOST_EVENTS:,} values")
        return event

    def _node(self, event: _Event, depth: int) -> _Node:
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            return self._alias(event, depth)
        else:
            if depth >= _DEEPEST:
                _refuse(event, f"values nest deeper than {_DEEPEST} levels")
            if event.anchor:
                self._anchors[event.anchor] = None
            read = self._list if isinstance(event, yaml.SequenceStartEvent) else self._mapping
            node = read(event, depth)
            if node.num_values > _MOST_VALUES or depth + node.levels > _DEEPEST:
                _refuse(event, _TOO_MUCH)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: yaml.AliasEvent, depth: int) -> _Node:
        if event.anchor not in self._anchors:
            _refuse(event, f"found undefined alias {event.anchor!r}")
        node = self._anchors[event.anchor]
        if node is None:
            _refuse(event, f"the alias {event.anchor!r} stands inside of its own value, which nests too deep")
        if depth + node.levels > _DEEPEST:
            _refuse(event, _TOO_MUCH)
        return node

    def _list(self, start: _Event, depth: int) -> _Node:
        _check_tag(start, "seq")
        items: list[Any] = []
        levels, count = 0, 1
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            node = self._node(event, depth + 1)
            items.append(node.value)
            levels, count = max(levels, node.levels), count + node.num_values
        return _Node(items, levels + 1, count)

    def _mapping(self, start: _Event, depth: int) -> _Node:
        _check_tag(start, "map")
        own: dict[Hashable, Any] = {}
        merged: dict[Hashable, Any] = {}
        levels, count = 0, 1
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            node = self._node(self._next(), depth + 1)
            levels, count = max(levels, node.levels), count + node.num_values
            if key.is_merge:
                _merge(event, merged, node.value)
                continue
            if not isinstance(key.value, Hashable):
                _refuse(event, "expected a scalar as key, got a list or mapping")
            if key.value in own:
                _refuse(event, f"the key {_shown(key.value)} stands twice")
            own[key.value] = node.value
        return _Node({**merged, **own} if merged else own, levels + 1, count)


_TOO_MUCH = f"aliases repeat values more than {_DEEPEST} levels deep, or {_MOST_VALUES:,} in all"


def _merge(event: _Event, merged: dict[Hashable, Any], value: Any) -> None:
    """Add the entries of one mapping, or of several of which the first ones win."""
    for each in value if isinstance(value, list) else [value]:
        if not isinstance(each, dict):
            _refuse(event, f"expected a mapping to merge, got {_shown(each)}")
        for name, inside in each.items():
            merged.setdefault(name, inside)


def _scalar(event: yaml.ScalarEvent) -> _Node:
    text = event.value
    if event.style == '"' and _SURROGATE.search(text):
        _refuse(event, f"{_shown(text)} has half of a surrogate pair, which is no character")
    if event.tag is None:
        if not event.implicit[0]:  # it is quoted, or a block
            return _Node(text)
        return _Node(_plain(event, text), is_merge=text == _MERGE_KEY)
    if event.tag == "!":
        return _Node(text)
    kind = event.tag.removeprefix(_TAG)
    read = _TAGGED.get(kind) if event.tag.startswith(_TAG) else None
    try:
        if read is not None:
            return _Node(read(text))
    except (LookupError, ValueError):
        pass
    return _refuse(event, f"{_shown(text)} is no {kind}")


def _plain(event: _Event, text: str) -> Any:
    """The value of a scalar without quotes and tag."""
    if text[:1] not in _NUMBERS_BEGIN_WITH:
        if text in _NULLS:
            return None
        return _BOOLS.get(text, text)
    try:
        if _INT.fullmatch(text) or _BASED_INT.fullmatch(text):
            return _int(text)
        if _FLOAT.fullmatch(text):
            return _float(text)
    except ValueError:
        _refuse(event, f"{_shown(text)} is no number between -1e300 and 1e300")
    return _SPECIAL_FLOATS.get(text, text)


_NUMBERS_BEGIN_WITH = frozenset("-+.0123456789")


def _int(text: str) -> int:
    if _BASED_INT.fullmatch(text):
        value = int(text.replace("_", ""), 0)
    elif _INT.fullmatch(text):
        value = int(text.replace("_", ""))
    else:
        raise ValueError(text)
    if abs(value) > _LARGEST:
        raise ValueError(text)
    return value


def _float(text: str) -> float:
    if text in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[text]
    if not (_FLOAT.fullmatch(text) or _INT.fullmatch(text)):
        raise ValueError(text)
    value = float(text.replace("_", ""))
    if abs(value) > _LARGEST:
        raise ValueError(text)
    return value


def _null(text: str) -> None:
    if text not in _NULLS:
        raise ValueError(text)


_TAGGED: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": _int,
    "float": _float,
    "bool": _BOOLS.__getitem__,
    "null": _null,
}


def _check_tag(event: _Event, kind: str) -> None:
    if event.tag not in (None, "!", _TAG + kind):
        _refuse(event, f"this is no {event.tag.removeprefix(_TAG)}")


def _refuse(event: _Event, problem: str) -> NoReturn:
    raise YamlError(problem, event.start_mark.line + 1)


def _shown(value: Any) -> str:
    return repr(value)[:60]
