"""YAML in which a key may stand only once: the second one would silently win.

Values end somewhere: none is inside of itself, nests very deep, or has aliases that repeat what repeats others.
"""

import re
from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_MOST_BRACKETS = 5000
_DEEP_LINE = re.compile(r"^[ \t?-]{2500}", re.MULTILINE)
"""The fast loader does not notice when it nests too deep, in brackets or by indents, and crashes."""

_DEEPEST = 100
_MOST_VALUES = 10_000_000


def load_yaml(text: str) -> Any:
    """The value of a YAML text. Raises yaml.YAMLError with the line of a mistake, ValueError or RecursionError."""
    if _Fast is not None and text.count("[") + text.count("{") < _MOST_BRACKETS and not _DEEP_LINE.search(text):
        try:
            loaded = yaml.load(text, _Fast)
        except yaml.YAMLError:
            loaded = _load_slowly(text)  # which finds the place of a mistake
    else:
        loaded = _load_slowly(text)
    _check_extent(loaded, 0, {})
    return loaded


def _load_slowly(text: str) -> Any:
    try:
        return yaml.load(text, _Plain)
    except OverflowError as error:  # the number of a character that there is none of
        raise ValueError(str(error)) from error


def _check_extent(value: Any, depth: int, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many levels a value has, and how many values, each counted wherever an alias repeats it.

    Raises yaml.YAMLError when that is too much.
    """
    if not isinstance(value, dict | list | tuple):
        return 0, 1
    if id(value) not in known:
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"values nest deeper than {_DEEPEST} levels")
        values = value.values() if isinstance(value, dict) else value
        inside = [_check_extent(each, depth + 1, known) for each in values]
        levels, count = 1 + max((each[0] for each in inside), default=0), 1 + sum(each[1] for each in inside)
        if levels > _DEEPEST or count > _MOST_VALUES:
            raise yaml.YAMLError(f"aliases repeat values more than {_DEEPEST} levels deep, or {_MOST_VALUES:,} in all")
        known[id(value)] = levels, count
    return known[id(value)]


class _Strict(yaml.constructor.SafeConstructor):
    """Values as usual, and an error with a place for those that are not what their tag says."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (AttributeError, LookupError, ValueError) as error:
            what = repr(node.value)[:60] if isinstance(node, yaml.ScalarNode) else "this"
            problem = f"{what} is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        if isinstance(node, yaml.MappingNode):
            _demand_distinct_keys(node)
        return super().construct_mapping(node, deep)


def _demand_distinct_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
        seen.add(key.value)


class _Plain(_Strict, yaml.SafeLoader):
    pass


_Fast: Any = None
"""Ten times as fast, where it is built in."""

if hasattr(yaml, "CSafeLoader"):

    class _FastLoader(_Strict, yaml.CSafeLoader):
        pass

    _Fast = _FastLoader
