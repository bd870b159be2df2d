"""Strategies of what is almost right: trees, texts, tables and bytes with a few changes."""

import copy
import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import tests.examples  # noqa: F401 (what is drawn does not depend on the modules that are loaded)

ATTACK = settings(
    database=None, deadline=None, suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
    print_blob=False,
)  # fmt: skip
"""Settings of attacks, in which hypothesis draws and shrinks what is sent or written."""


def nested(depth: int, inner: Any = 1, key: str | None = None) -> Any:
    """Lists within lists, or objects within objects when there is a key."""
    for _ in range(depth):
        inner = [inner] if key is None else {key: inner}
    return inner


NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 0.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"), 2**31, 2**53 + 1, 2**63, 2**64,
    -(2**63) - 1, 10**8 + 1, 10**11, 10**30, 10**400, -(10**400),
)  # fmt: skip
TEXTS = (
    "", " ", "3", "1e999", "nan", "true", "null", "x" * 300, "x" * 10_000, "9" * 5000, "\0", "\ud800", "\U0001f600",
    "e\u0301" * 50, "{}", "{{ 7*7 }}", "{% for x in y %}", "%s%n", "$ref", "../../etc/passwd", "file:///etc/passwd",
    "<think>", "<tool_call>", "m", "auto", "required", "\u0663", "data:text/plain,a", "2026-01-31", "a,b", 'a"b',
    "a\nb", "*", "&a", "- a", "#", "OK", "ms",
)  # fmt: skip
TREES: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], {"": None}, {"a": {}}, [1, "a", None], ["a"] * 200, [0] * 2000,
    {str(each): each for each in range(300)}, {"type": None}, {"type": "text"}, {"role": "user"}, {"\ud800": 1},
    {"type": "image_url", "image_url": {"url": "data:,"}}, {"$ref": "#"}, {"not": {"$ref": "#"}}, {"5": None},
    {"99999999999999999999": 1}, nested(30), nested(200, key="a"),
)  # fmt: skip
LITERALS = (
    "0", "-1", "2", "0.5", "007", "1:30", "1_000", "0x1F", "0o17", "1e3", "1e-300", "1e308", "1e400", "-1e400",
    "9007199254740993", "9223372036854775808", "18446744073709551616", "100000000000", "9" * 40, "1" * 4301,
    "9" * 100_000, "0." + "3" * 5000, "nan", ".nan", "-.inf", "NaN", "-Infinity", "+5", "5.", ".5", "1e", "--1",
    "1e99999999999", "1.2.3", r'"\ud800"', r'"\u0000"', '"\0"', '"a\nb"', r'"\x41"', r'"\u12"', "'single'", '"unended',
    '"' + "\\u0000" * 2000 + '"', "undefined", "[" * 100_000, "[" * 2000 + "]" * 2000, '{"a":' * 100_000,
    '{"a":' * 500 + "1" + "}" * 500, "[1,]", '{"a":1,}', "{1:2}", '{"a" 1}', "/* c */ 1", '{"a":1,"a":2}', "True",
    "None", "yes", "none", "null", "{", "[", "#",
)  # fmt: skip
"""Values as they are written down in a text, many of them no values."""
PIECES = (
    b"", b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\xaf", b"\r", b"\n\n", b",,", b'"', b"'", b": ", b"{",
    b"}", b"]", b"-", b"\t", b"#", b"&a ", b"*a", b"<<: ", b"!!python/name:os.system ", b"!!int ", b"%", b"|", b"?",
    b"1e999", b"\\ud800", b"\\", b"\x1f\x8b", b"---\n", b"{" * 300, b"[" * 3000, b"- " * 200, b" " * 100_000,
)  # fmt: skip
NAMES = ("", "a", "type", "text", "content", "\0", "\ud800", "a" * 300, "unknown")

any_text = st.text(st.characters(exclude_categories=()), max_size=30)
scalars = st.sampled_from(NUMBERS + TEXTS) | st.integers() | st.floats() | any_text
odd_values = st.sampled_from(NUMBERS + TEXTS + TREES) | st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4), max_leaves=6
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every node of a tree but the root, as its container and its key there."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from places(tree[key])


@st.composite
def mutated(draw: st.DrawFn, tree: Any) -> Any:
    """A copy of a tree with one to four changes."""
    found = copy.deepcopy(tree)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 4)))):
        known = list(places(found))
        if not known or draw(st.integers(0, 49)) == 0:
            found = copy.deepcopy(draw(odd_values))
            continue
        near = [each for each in known if each[0] is found]  # fields that are read, of which there are few
        container, key = draw(st.sampled_from(near if draw(st.booleans()) else known))
        _change(draw, container, key)
    return found


def _change(draw: st.DrawFn, container: Any, key: Any) -> None:
    value = container[key]
    change = draw(st.sampled_from(("replace", "replace", "remove", "add", "rename", "wrap", "repeat", "text", "scale")))
    if change == "remove":
        del container[key]
    elif change == "add" and isinstance(container, list):
        container.insert(key, copy.deepcopy(draw(odd_values)))
    elif change == "rename" and isinstance(container, dict):
        container[draw(st.sampled_from((*NAMES, str(key).upper(), f"{key} ")))] = container.pop(key)
    elif change == "wrap":
        name = draw(st.none() | st.sampled_from(NAMES[:5]))
        container[key] = [value] if name is None else {name: value}
    elif change == "repeat":
        container[key] = [copy.deepcopy(value) for _ in range(draw(st.sampled_from([2, 20])))]
    elif change == "text":
        container[key] = str(value)
    elif change == "scale" and type(value) in (int, float) and abs(value) < 1e300:
        container[key] = draw(st.sampled_from((-value, value * 1000, value + 0.5, value * 1e-9)))
    else:
        container[key] = copy.deepcopy(draw(odd_values))


_TOKEN = re.compile(r'"[^"\\\n]*"(?=[,\]}:\s])|[\w.+-]+')


def respelled(text: str, literals: Sequence[str] = LITERALS + TEXTS) -> st.SearchStrategy[str]:
    """A text with one word, number or quoted string written in another way."""
    spans = [found.span() for found in _TOKEN.finditer(text)] or [(0, len(text))]
    return st.builds(
        lambda span, literal: text[: span[0]] + literal + text[span[1] :],
        st.sampled_from(spans),
        st.sampled_from(literals),
    )


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
        row[inside] = draw(st.sampled_from(LITERALS[:42] + TEXTS))
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
