"""YAML in which a key may stand only once: the second one would silently win."""

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"
_MOST_BRACKETS = 5000
"""The fast loader does not notice when it nests too deep, and crashes."""


def load_yaml(text: str) -> Any:
    """The value of a YAML text. Raises yaml.YAMLError with the line of a mistake, ValueError or RecursionError."""
    if _Fast is not None and text.count("[") + text.count("{") < _MOST_BRACKETS:
        try:
            return yaml.load(text, _Fast)
        except yaml.YAMLError:
            pass  # the other one finds the place of a mistake
    return yaml.load(text, _Plain)


def _demand_distinct_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        if key.value in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
        seen.add(key.value)


class _Plain(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        _demand_distinct_keys(node)
        return super().construct_mapping(node, deep)


_Fast: Any = None
"""Ten times as fast, where it is built in."""

if hasattr(yaml, "CSafeLoader"):

    class _FastLoader(yaml.CSafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            _demand_distinct_keys(node)
            return super().construct_mapping(node, deep)

    _Fast = _FastLoader
