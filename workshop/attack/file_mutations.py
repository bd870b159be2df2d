"""Files that are almost right: a valid one with one to three changes to its values, cells, structure or bytes."""

import copy
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

import yaml

NUMBERS = (
    "0", "-1", "1", "2", "0.5", "-0.0", "007", "010", "1:30", "1_000", "0x1F", "0o17", "1e3", "1e6", "1e-300", "1e308",
    "1e400", "-1e308", "2147483648", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "18446744073709551616", "100000000", "100000001", "100000000000", "1000000000000000000", "9" * 40, "9" * 400,
    "nan", ".nan", "inf", "-.inf", "NaN", "Infinity", "12.50", "+5", "5.", ".5", "1e", "1.2.3",
)  # fmt: skip
TEXTS = (
    "", " ", "x", "null", "true", "yes", "none", "2026-01-31", "a,b", 'a"b', "a\nb", "../x", "/etc/passwd", "\u0663",
    "é", "\U0001f600", "x" * 300, "*", "&a", "- a", "{", "[", "#", "%s", "{{x}}", "weird", "OK", "ms", "version",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 0.5, -0.0, 1e-300, 1e308, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**8 + 1, 10**11,
    [], {}, [[]], [1, 2], {"a": 1}, [None], [{}], {"": None}, {"type": "x"},
)  # fmt: skip
PIECES = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n", b"\n\n", b",", b",,", b'"', b"'", b":", b": ",
    b"{", b"}", b"[", b"]", b"-", b"\t", b" ", b"#", b"&a ", b"*a", b"<<: ", b"!!python/name:os.system ", b"!!int ",
    b"%", b"|", b">", b"?", b"1e999", b"0x", b"\\ud800", b"\\", b"\x1f\x8b", b"---\n", b"...\n", b"{" * 300,
    b"[" * 3000, b"- " * 200,
)  # fmt: skip


def mutations(kind: str, content: str, random: Random) -> bytes:
    """The content with one to three changes."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        change = random.choice(_CHANGES[kind])
        changed = change(content, random)
        if isinstance(changed, bytes):
            return changed
        content = changed
    return content.encode("utf-8", "surrogatepass")


def _bytes(content: str, random: Random) -> bytes:
    data = bytearray(content.encode("utf-8", "surrogatepass"))
    for _ in range(random.choice((1, 1, 2, 5))):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.choice((1, 1, 3, 10, 100)))
        choice = random.randrange(6)
        if choice == 0:
            data[start:start] = random.choice(PIECES)
        elif choice == 1:
            data[start:end] = b""
        elif choice == 2:
            data[start:start] = data[start:end]
        elif choice == 3:
            data[start:end] = random.choice(PIECES)
        elif choice == 4 and start < len(data):
            data[start] ^= 1 << random.randrange(8)
        elif choice == 5 and random.random() < 0.3:
            del data[start:]
    return bytes(data)


def _cells(content: str, random: Random) -> str:
    rows = list(csv.reader(io.StringIO(content, newline="")))
    if not rows or not any(rows):
        return content
    number = random.randrange(len(rows))
    row = rows[number]
    place = random.randrange(len(row) + 1)
    inside = min(place, max(0, len(row) - 1))
    choice = random.randrange(9)
    if choice == 0:
        row.insert(place, random.choice(("", "0", "5", "x")))
    elif choice == 1 and row:
        del row[inside]
    elif choice == 2:
        rows.insert(number, list(row))
    elif choice == 3:
        rows[number:] = rows[number + 1 :]
    elif choice == 4 and len(row) > 1:
        row[inside], row[inside - 1] = row[inside - 1], row[inside]
    elif choice == 5:
        rows.insert(number, random.choice(([], [""], ["", ""], [" "])))
    elif row:
        row[inside] = random.choice(NUMBERS if random.random() < 0.7 else TEXTS)
    text = io.StringIO()
    csv.writer(text, lineterminator=random.choice(("\n", "\n", "\n", "\r\n"))).writerows(rows)
    return text.getvalue()


def _scalars(content: str, random: Random) -> str:
    """Replace a word or number in the text itself, where its type is up to the reader of the file."""
    words = list(_words(content))
    if not words:
        return content
    start, end = random.choice(words)
    return content[:start] + random.choice(NUMBERS if random.random() < 0.7 else TEXTS) + content[end:]


def _words(content: str) -> Iterator[tuple[int, int]]:
    start = None
    for place, letter in enumerate(f"{content} "):
        is_inside = letter.isalnum() or letter in "._-+"
        if is_inside and start is None:
            start = place
        elif not is_inside and start is not None:
            yield start, place
            start = None


def _json_tree(content: str, random: Random) -> str:
    try:
        tree = json.loads(content)
    except ValueError:
        return content
    return json.dumps(_changed(tree, random), indent=1)


def _yaml_tree(content: str, random: Random) -> str:
    try:
        tree = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError):
        return content
    return str(yaml.safe_dump(_changed(tree, random), sort_keys=False))


def _lines(content: str, random: Random) -> str:
    lines = content.splitlines()
    if not lines:
        return content
    number = random.randrange(len(lines))
    lines[number] = _json_tree(lines[number], random).replace("\n", " ")
    return "\n".join(lines) + "\n"


def _changed(tree: Any, random: Random) -> Any:
    tree = copy.deepcopy(tree)
    places = list(_places(tree))
    if not places:
        return random.choice(VALUES)
    holder, key = random.choice(places)
    choice = random.randrange(8)
    if choice == 0:
        del holder[key]
    elif choice == 1:
        holder[key] = [holder[key]]
    elif choice == 2:
        holder[key] = {"type": holder[key]}
    elif choice == 3:
        holder[key] = str(holder[key])
    elif choice == 4 and isinstance(holder, dict):
        holder[random.choice((f"{key}x", "", "type", "unknown"))] = holder.pop(key)
    elif choice == 5 and _is_moderate(holder[key]):
        holder[key] = random.choice((-holder[key], holder[key] * 1000, holder[key] + 0.5, holder[key] * 1e-9))
    else:
        holder[key] = copy.deepcopy(random.choice(VALUES)) if random.random() < 0.7 else random.choice(TEXTS)
    return tree


def _is_moderate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else []
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


_CHANGES: Mapping[str, tuple[Callable[[str, Random], str | bytes], ...]] = {
    "csv": (_cells, _cells, _cells, _bytes),
    "json": (_json_tree, _json_tree, _scalars, _bytes),
    "lines": (_lines, _lines, _scalars, _bytes),
    "yaml": (_yaml_tree, _yaml_tree, _scalars, _scalars, _bytes),
}
