"""Structural mutations of a valid body: any node of it replaced, removed, wrapped, repeated or moved."""

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

Place: TypeAlias = tuple[Any, Any]
"""A container with the key or the index of one of its nodes."""

MOST_MUTATIONS = 4
LONG_REPLIES = 0.1
"""Share of the mutated bodies that may ask for a reply of any length."""
LENGTH_FIELDS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
SHORT_TOKENS = 4


def nested(depth: int, inner: Any = 1, key: str | None = None) -> Any:
    """Lists within lists, or objects within objects when there is a key."""
    for _ in range(depth):
        inner = [inner] if key is None else {key: inner}
    return inner


ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, -2, 2, 0.5, 1.5, -0.0, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    2**31, 2**31 - 1, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**30, 10**400, -(10**400),
    "", " ", "3", "-1", "1.5", "1e999", "nan", "true", "null", "x" * 10_000, "9" * 5000, "\0", "a\0b", "\ud800",
    "\udfff\ud800", "\U0001f600", "\u202e", "e\u0301" * 50, "{}", "[]", "{{ 7*7 }}", "{% for x in y %}", "%s%n", "$ref",
    "../../etc/passwd", "file:///etc/passwd", "<think>", "<tool_call>", "m", "auto", "required", "text",
    [], {}, [None], [[]], [{}], {"": None}, {"a": {}}, [1, "a", None], ["a"] * 200, [0] * 2000, list(range(50)),
    {str(each): each for each in range(300)}, {"type": None}, {"type": "text"}, {"type": "function"}, [True], [1e308],
    {"type": "image_url", "image_url": {"url": "data:,"}}, {"role": "user"}, {"\ud800": 1}, {"a\0": 1},
    {"__proto__": 1},
    {"$ref": "#"}, {"not": {"$ref": "#"}}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, [-1], [2**63],
    [10**30], ["\ud800"], {"5": None}, {"-1": 1}, {"x": 1}, {"99999999999999999999": 1}, "data:text/plain,a",
)  # fmt: skip
DEEP_VALUES: tuple[Any, ...] = (nested(30), nested(30, key="a"), nested(200), nested(200, key="a"))


def places(body: Any) -> Iterator[Place]:
    """Every node of a body but the root."""
    if isinstance(body, dict):
        for key in body:
            yield body, key
    elif isinstance(body, list):
        for index in range(len(body)):
            yield body, index
    for container, key in [(body, key) for key in _keys(body)]:
        yield from places(container[key])


def _keys(body: Any) -> list[Any]:
    if isinstance(body, dict):
        return list(body)
    return list(range(len(body))) if isinstance(body, list) else []


def odd_value(rng: random.Random) -> Any:
    """A value that few fields expect."""
    values = DEEP_VALUES if rng.random() < 0.05 else ODD_VALUES
    return copy.deepcopy(rng.choice(values))


def mutated(body: Any, rng: random.Random, others: Mapping[str, Any]) -> Any:
    """A copy of `body` with one to four mutations; `others` are fields of other routes that may be added."""
    found = copy.deepcopy(body)
    for _ in range(rng.randint(1, MOST_MUTATIONS)):
        known = list(places(found))
        if not known or rng.random() < 0.02:
            found = odd_value(rng)
        elif rng.random() < 0.15 and isinstance(found, dict):
            name = rng.choice(sorted(others))
            found[name] = odd_value(rng) if rng.random() < 0.7 else copy.deepcopy(others[name])
        else:
            # Nodes near the root are few, and every one of them is a field that the server reads.
            near = [each for each in known if each[0] is found]
            container, key = rng.choice(near if near and rng.random() < 0.5 else known)
            rng.choice(_MUTATIONS)(container, key, rng)
    return _kept_short(found, body, rng)


def _kept_short(found: Any, body: Any, rng: random.Random) -> Any:
    """Put back the bounds of a reply's length, so that most replies end soon."""
    if not isinstance(found, dict) or not isinstance(body, dict) or rng.random() < LONG_REPLIES:
        return found
    for name in LENGTH_FIELDS:
        value = found.get(name)
        is_small = isinstance(value, int) and abs(value) <= 2 * SHORT_TOKENS
        if name in body and (value is None or (isinstance(value, int | float) and not is_small)):
            found[name] = SHORT_TOKENS
    return found


def _replace(container: Any, key: Any, rng: random.Random) -> None:
    container[key] = odd_value(rng)


def _remove(container: Any, key: Any, _chance: random.Random) -> None:
    del container[key]


def _nullify(container: Any, key: Any, _chance: random.Random) -> None:
    container[key] = None


def _wrap_in_list(container: Any, key: Any, _chance: random.Random) -> None:
    container[key] = [container[key]]


def _wrap_in_object(container: Any, key: Any, rng: random.Random) -> None:
    container[key] = {rng.choice(["", "a", "type", "text", "content", "value"]): container[key]}


def _unwrap(container: Any, key: Any, _chance: random.Random) -> None:
    inner = container[key]
    keys = _keys(inner)
    container[key] = inner[keys[0]] if keys else None


def _repeat(container: Any, key: Any, rng: random.Random) -> None:
    container[key] = [copy.deepcopy(container[key]) for _ in range(rng.choice([2, 3, 20]))]


def _stringify(container: Any, key: Any, _chance: random.Random) -> None:
    container[key] = str(container[key])


def _add_unknown(container: Any, key: Any, rng: random.Random) -> None:
    if isinstance(container, dict):
        container[f"{key}_{rng.randint(0, 9)}"] = odd_value(rng)
    else:
        container.insert(key, odd_value(rng))


def _rename(container: Any, key: Any, rng: random.Random) -> None:
    if isinstance(container, dict):
        container[rng.choice(["", "\0", "\ud800", key.upper(), key + " ", "a" * 300])] = container.pop(key)
    else:
        container.reverse()


def _swap(container: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(_keys(container))
    container[key], container[other] = container[other], container[key]


_MUTATIONS: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _replace, _replace, _replace, _replace, _remove, _nullify, _wrap_in_list, _wrap_in_object, _unwrap, _repeat,
    _stringify, _add_unknown, _rename, _swap,
)  # fmt: skip
