"""Strategies of what is almost right: trees, texts, tables and bytes with a few changes."""

import copy
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Generic, TypeAlias, TypeVar

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import Unsatisfiable

T = TypeVar("T")
Change: TypeAlias = Callable[[st.DrawFn, Any, Any], None]
"""Changes a container at a key or an index."""

MOST_CHANGES = 4
BUFFER_BYTES = 1 << 14
MOST_TRIES = 100
QUIET = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


class Draws(Generic[T]):
    """Examples of a strategy by name: equal names give equal examples, whatever was drawn before."""

    def __init__(self, strategy: st.SearchStrategy[T]) -> None:
        self._strategy = strategy
        self._found: list[T] = []

        def keep(example: T) -> None:
            self._found.append(example)

        run: Any = QUIET(given(strategy)(keep))
        self._draw_from: Callable[[bytes], bytes | None] = run.hypothesis.fuzz_one_input

    def one(self, name: str) -> T:
        """The example of a name. Raises Unsatisfiable."""
        for number in range(MOST_TRIES):
            if self._draw_from(_buffer(name, number)) is not None:
                return self._found.pop()
        raise Unsatisfiable(f"no example of {name}")

    def smallest(self, name: str, is_found: Callable[[T], bool]) -> T | None:
        """Shrink the example of a name as long as `is_found` holds; None where it does not hold at first."""
        found: list[T] = []

        def check(example: T) -> None:
            if is_found(example):
                found.append(example)
                raise AssertionError

        shrinking = settings(QUIET, database=InMemoryExampleDatabase(), phases=[Phase.reuse, Phase.shrink])
        run: Any = shrinking(given(self._strategy)(check))
        with suppress(AssertionError):
            for number in range(MOST_TRIES):
                if run.hypothesis.fuzz_one_input(_buffer(name, number)) is not None:
                    return None
        with suppress(AssertionError):
            run()
        return found[-1] if found else None


def _buffer(name: str, number: int) -> bytes:
    return Random(f"{name}/{number}").randbytes(BUFFER_BYTES)


def nested(depth: int, inner: Any = 1, key: str | None = None) -> Any:
    """Lists within lists, or objects within objects when there is a key."""
    for _ in range(depth):
        inner = [inner] if key is None else {key: inner}
    return inner


NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 0.5, 1.5, -0.0, 1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 2**31, 2**53 + 1,
    2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**8 + 1, 10**11, 10**30, 10**400, -(10**400),
)  # fmt: skip
TEXTS = (
    "", " ", "3", "-1", "1.5", "1e999", "nan", "true", "null", "x", "x" * 300, "x" * 10_000, "9" * 5000, "\0", "a\0b",
    "\ud800", "\udfff\ud800", "\U0001f600", "\u202e", "e\u0301" * 50, "{}", "[]", "{{ 7*7 }}", "{% for x in y %}",
    "%s%n", "$ref", "../../etc/passwd", "file:///etc/passwd", "<think>", "<tool_call>", "m", "auto", "required", "text",
    "\u0663", "data:text/plain,a", "2026-01-31", "a,b", 'a"b', "a\nb", "*", "&a", "- a", "#", "weird", "OK", "ms",
)  # fmt: skip
TREES: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], [{}], {"": None}, {"a": {}}, [1, "a", None], ["a"] * 200, [0] * 2000,
    list(range(50)), {str(each): each for each in range(300)}, {"type": None}, {"type": "text"}, {"type": "function"},
    {"type": "image_url", "image_url": {"url": "data:,"}}, {"role": "user"}, {"\ud800": 1}, {"a\0": 1},
    {"__proto__": 1}, {"$ref": "#"}, {"not": {"$ref": "#"}}, {"type": "object", "properties": {"a": {"$ref": "#"}}},
    ["\ud800"], {"5": None}, {"-1": 1}, {"99999999999999999999": 1}, nested(30), nested(30, key="a"), nested(200,
    key="a"),
)  # fmt: skip
LITERALS = (
    "0", "-1", "1", "2", "0.5", "007", "010", "1:30", "1_000", "0x1F", "0o17", "1e3", "1e6", "1e-300", "1e308", "1e400",
    "-1e400", "2147483648", "9007199254740993", "9223372036854775808", "18446744073709551616", "100000001",
    "100000000000", "9" * 40, "9" * 400, "1" * 4301, "9" * 100_000, "-" + "7" * 5000, "0." + "3" * 5000, "nan", ".nan",
    "inf", "-.inf", "NaN", "Infinity", "-Infinity", "01", "+5", "5.", ".5", "1e", "--1", "1e99999999999", "-", "1.2.3",
    r'"\ud800"', r'"\ud800\ud800"', r'"\u0000"', '"\0"', '"\x01"', '"a\nb"', r'"\x41"', r'"\u12"', "'single'",
    '"unended', '"' + "\\u0000" * 2000 + '"', '"\\\\\\"', '""""', "undefined", "[" * 100_000, "[" * 2000 + "]" * 2000,
    "[" * 500 + "]" * 500, '{"a":' * 100_000, '{"a":' * 500 + "1" + "}" * 500, "[1,]", '{"a":1,}', "{1:2}", "[,]",
    '{"a" 1}', "nul", "/* c */ 1", "[1 2]", '{"a":1,"a":2}', "True", "None", "yes", "none", "null", "{", "[", "#",
)  # fmt: skip
"""Values as they are written down in a text, many of them no values."""
PIECES = (
    b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\xaf", b"\r", b"\n\n", b",", b",,", b'"', b"'", b":",
    b": ", b"{", b"}", b"[", b"]", b"-", b"\t", b" ", b"#", b"&a ", b"*a", b"<<: ", b"!!python/name:os.system ",
    b"!!int ", b"%", b"|", b">", b"?", b"1e999", b"0x", b"\\ud800", b"\\", b"\x1f\x8b", b"---\n", b"...\n", b"{" * 300,
    b"[" * 3000, b"- " * 200, b'"model": null, ' * 50, b" " * 100_000,
)  # fmt: skip
NAMES = ("", "a", "type", "text", "content", "value", "\0", "\ud800", "a" * 300, "unknown")

any_text = st.text(st.characters(exclude_categories=()), max_size=30)
scalars = st.sampled_from(NUMBERS + TEXTS) | st.integers() | st.floats() | any_text
odd_values = st.sampled_from(NUMBERS + TEXTS + TREES + NUMBERS) | st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4), max_leaves=6
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every node of a tree but the root, as its container and its key there."""
    for key in _keys(tree):
        yield tree, key
    for key in _keys(tree):
        yield from places(tree[key])


def _keys(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []


@st.composite
def mutated(draw: st.DrawFn, tree: Any, others: Mapping[str, Any] | None = None) -> Any:
    """A copy of a tree with one to four changes; `others` are fields that may be added to its root."""
    found = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3, MOST_CHANGES)))):
        known = list(places(found))
        chance = draw(st.integers(0, 49))
        if not known or chance == 0:
            found = copy.deepcopy(draw(odd_values))
        elif others and chance < 8 and isinstance(found, dict):
            name = draw(st.sampled_from(sorted(others)))
            found[name] = copy.deepcopy(draw(odd_values) if chance < 6 else others[name])
        else:
            # Nodes near the root are few, and every one of them is a field that is read.
            near = [each for each in known if each[0] is found] if others else []
            container, key = draw(st.sampled_from(near if near and chance % 2 else known))
            draw(st.sampled_from(CHANGES))(draw, container, key)
    return found


def _replace(draw: st.DrawFn, container: Any, key: Any) -> None:
    container[key] = copy.deepcopy(draw(odd_values))


def _remove(_draw: st.DrawFn, container: Any, key: Any) -> None:
    del container[key]


def _wrap(draw: st.DrawFn, container: Any, key: Any) -> None:
    name = draw(st.none() | st.sampled_from(NAMES[:6]))
    container[key] = [container[key]] if name is None else {name: container[key]}


def _nullify(_draw: st.DrawFn, container: Any, key: Any) -> None:
    container[key] = None


def _unwrap(_draw: st.DrawFn, container: Any, key: Any) -> None:
    keys = _keys(container[key])
    container[key] = container[key][keys[0]] if keys else None


def _repeat(draw: st.DrawFn, container: Any, key: Any) -> None:
    container[key] = [copy.deepcopy(container[key]) for _ in range(draw(st.sampled_from([2, 3, 20])))]


def _stringify(_draw: st.DrawFn, container: Any, key: Any) -> None:
    container[key] = str(container[key])


def _scale(draw: st.DrawFn, container: Any, key: Any) -> None:
    value = container[key]
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        container[key] = draw(st.sampled_from((-value, value * 1000, value + 0.5, value * 1e-9)))


def _add(draw: st.DrawFn, container: Any, key: Any) -> None:
    value = copy.deepcopy(draw(odd_values))
    if isinstance(container, dict):
        container[f"{key}_"] = value
    else:
        container.insert(key, value)


def _rename(draw: st.DrawFn, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[draw(st.sampled_from((*NAMES, str(key).upper(), f"{key} ", f"{key}x")))] = container.pop(key)
    else:
        container.reverse()


def _swap(draw: st.DrawFn, container: Any, key: Any) -> None:
    other = draw(st.sampled_from(_keys(container)))
    container[key], container[other] = container[other], container[key]


CHANGES: tuple[Change, ...] = (
    _replace, _replace, _replace, _replace, _remove, _nullify, _wrap, _wrap, _unwrap, _repeat, _stringify, _scale, _add,
    _rename, _swap,
)  # fmt: skip
_TOKEN = re.compile(r'"[^"\\\n]*"(?=[,\]}:\s])|[\w.+-]+')


@st.composite
def respelled(draw: st.DrawFn, text: str) -> str:
    """A text with one word, number or quoted string written in another way."""
    tokens = list(_TOKEN.finditer(text))
    literal: str = draw(st.sampled_from(LITERALS + TEXTS))
    if not tokens:
        return literal
    token = draw(st.sampled_from(tokens))
    return text[: token.start()] + literal + text[token.end() :]


@st.composite
def spoiled(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with pieces inserted, removed, doubled or replaced, bits flipped, or the end cut off."""
    found = bytearray(data)
    for _ in range(draw(st.sampled_from((1, 1, 2, 5)))):
        start = draw(st.integers(0, len(found)))
        end = min(len(found), start + draw(st.sampled_from((1, 1, 3, 10, 100))))
        change = draw(st.sampled_from(("insert", "replace", "remove", "double", "flip", "flip", "cut")))
        if change in ("insert", "replace"):
            found[start : end if change == "replace" else start] = draw(st.sampled_from(PIECES))
        elif change == "remove":
            del found[start:end]
        elif change == "double":
            found[start:start] = found[start:end]
        elif change == "flip" and start < len(found):
            found[start] ^= 1 << draw(st.integers(0, 7))
        elif change == "cut" and draw(st.booleans()):
            del found[start:]
    return bytes(found)


@st.composite
def _cells(draw: st.DrawFn, text: str) -> str:
    rows = list(csv.reader(io.StringIO(text, newline="")))
    number = draw(st.integers(0, len(rows) - 1))
    row = rows[number]
    place = draw(st.integers(0, len(row)))
    inside = min(place, len(row) - 1)
    change = draw(st.sampled_from(("add", "remove", "double", "drop", "swap", "blank", *("set",) * 4)))
    if change == "add":
        row.insert(place, draw(st.sampled_from(("", "0", "5", "x"))))
    elif change == "remove":
        del row[inside]
    elif change == "double":
        rows.insert(number, list(row))
    elif change == "drop":
        del rows[number]
    elif change == "swap":
        row[inside], row[inside - 1] = row[inside - 1], row[inside]
    elif change == "blank":
        rows.insert(number, draw(st.sampled_from(([], [""], ["", ""], [" "]))))
    else:
        row[inside] = draw(st.sampled_from(LITERALS[:45] + TEXTS))
    found = io.StringIO()
    csv.writer(found, lineterminator=draw(st.sampled_from(("\n", "\n", "\r\n")))).writerows(rows)
    return found.getvalue()


@st.composite
def _tree_of_file(draw: st.DrawFn, kind: str, text: str) -> str:
    if kind == "yaml":
        return str(yaml.safe_dump(draw(mutated(yaml.safe_load(text))), sort_keys=False))
    if kind == "json":
        return json.dumps(draw(mutated(json.loads(text))), indent=1)
    lines = text.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = json.dumps(draw(mutated(json.loads(lines[number]))))
    return "\n".join(lines) + "\n"


def mutated_file(kind: str, text: str) -> st.SearchStrategy[bytes]:
    """The content of a file of a kind (csv, json, lines of JSON, or yaml) with a few changes."""
    tree = _cells(text) if kind == "csv" else _tree_of_file(kind, text)
    changed = tree | tree | (_cells(text) if kind == "csv" else respelled(text))
    written = changed.map(lambda each: each.encode("utf-8", "surrogatepass"))
    return written | written | written | spoiled(text.encode()) | written.flatmap(spoiled)
