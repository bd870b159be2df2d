"""Types of JSON values on one line, read as JSON schema.

int num str bool null any obj    the plain types; `any` says nothing, `obj` is an object with any members
"word"    <"a", "b">             a constant, one of several
[T]  {T}  T | U  Name            list, object with members of one type, union, another schema
T(minimum=1, maxLength=64)       with further keywords
`{...}`                          JSON schema as it is
"""

import json
import re
from collections.abc import Iterator
from typing import Any

REFERENCE = "#/components/schemas/"
_PLAIN: dict[str, dict[str, Any]] = {
    "int": {"type": "integer"},
    "num": {"type": "number"},
    "str": {"type": "string"},
    "bool": {"type": "boolean"},
    "null": {"type": "null"},
    "any": {},
    "obj": {"additionalProperties": True, "type": "object"},
}
_TOKEN = re.compile(r'\s*(`[^`]*`|"(?:[^"\\]|\\.)*"|-?\d[\d.e+]*|[\w\-]+|[\[\]{}<>(),|=])')


def read_type(text: str) -> dict[str, Any]:
    """Return the JSON schema that `text` stands for. Raises ValueError for text that is no type."""
    reader = _Reader(text)
    found = reader.union()
    if not reader.is_at_end:
        raise ValueError(f"unexpected {reader.next!r} in {text!r}")
    return found


class _Reader:
    """Reads one type, token by token."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0

    @property
    def is_at_end(self) -> bool:
        return self._place == len(self._tokens)

    @property
    def next(self) -> str:
        return "" if self.is_at_end else self._tokens[self._place]

    def union(self) -> dict[str, Any]:
        kinds = [self._single()]
        while self.next == "|":
            self._take("|")
            kinds.append(self._single())
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}

    def _single(self) -> dict[str, Any]:
        found = self._bare()
        if self.next == "(":
            self._take("(")
            found = {**found, **dict(self._keywords())}
            self._take(")")
        return found

    def _bare(self) -> dict[str, Any]:
        token = self._any()
        if token in ("[", "{"):
            inner = self.union()
            self._take("]" if token == "[" else "}")
            return {"items": inner, "type": "array"} if token == "[" else _map(inner)
        if token == "<":
            return {"type": "string", "enum": list(self._words())}
        if token.startswith("`"):
            raw: dict[str, Any] = json.loads(token[1:-1])
            return raw
        if token.startswith('"'):
            return {"type": "string", "const": json.loads(token)}
        return dict(_PLAIN[token]) if token in _PLAIN else {"$ref": REFERENCE + token}

    def _words(self) -> Iterator[str]:
        while self.next != ">":
            yield json.loads(self._any())
            if self.next == ",":
                self._take(",")
        self._take(">")

    def _keywords(self) -> Iterator[tuple[str, Any]]:
        while self.next != ")":
            name = self._any()
            self._take("=")
            yield name, json.loads(self._any())
            if self.next == ",":
                self._take(",")

    def _any(self) -> str:
        if self.is_at_end:
            raise ValueError(f"a type ends too early: {' '.join(self._tokens)!r}")
        self._place += 1
        return self._tokens[self._place - 1]

    def _take(self, wanted: str) -> None:
        found = self._any()
        if found != wanted:
            raise ValueError(f"expected {wanted!r}, found {found!r}")


def _map(inner: dict[str, Any]) -> dict[str, Any]:
    return {"additionalProperties": inner, "type": "object"}


def _tokens(text: str) -> Iterator[str]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot read {text[place:]!r}")
        yield match[1]
        place = match.end()
