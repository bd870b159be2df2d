"""Removal of keys and authorisation from recorded contents, and redaction by regular expressions in linear time."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import orjson

from blis_sim.options import OptionError

REMOVED = "[removed]"
"""Text in the place of a secret."""

_SECRET_HEADER = re.compile(
    r"auth|key|token|secret|cookie|passw|credential|signature|session-?id|x-amz-security", re.IGNORECASE
)
_SECRET_NAMES = frozenset(
    {
        "accesskey",
        "accesstoken",
        "apikey",
        "auth",
        "authorization",
        "authtoken",
        "bearertoken",
        "clientsecret",
        "cookie",
        "credentials",
        "password",
        "privatekey",
        "proxyauthorization",
        "refreshtoken",
        "secret",
        "secretkey",
        "setcookie",
        "xapikey",
    }
)
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))


_NOT_LETTERS = re.compile(r"[^a-z0-9]")


def is_secret_header(name: str) -> bool:
    """Whether the value of this header may be a key: by its name, in any case of letters."""
    return _SECRET_HEADER.search(name) is not None


def without_secret_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers, with a mark in the place of each value that may be a key."""
    return [(name, REMOVED if is_secret_header(name) else value) for name, value in headers]


def without_secret_parameters(target: str) -> str:
    """The target of a request, with a mark in the place of each value of its query that may be a key."""
    path, is_there, query = target.partition("?")
    if not is_there:
        return target
    parameters = []
    for each in query.split("&"):
        name, equals, _ = each.partition("=")
        is_secret = bool(equals) and is_secret_header(_ESCAPED.sub(_unescaped, name))
        parameters.append(f"{name}={REMOVED}" if is_secret else each)
    return f"{path}?{'&'.join(parameters)}"


def is_secret_member(name: str) -> bool:
    """Whether a member of a JSON object is a key by its name, such as `api_key` or `Authorization`."""
    return len(name) <= 64 and _NOT_LETTERS.sub("", name.lower()) in _SECRET_NAMES


def without_secret_members(value: Any) -> tuple[Any, bool]:
    """A JSON value with a mark in the place of each text that is a key by its name; whether there was one.

    Objects and arrays are changed in place. A schema that describes a member of such a name has no text there, and
    stays.
    """
    is_changed = False
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            for name, member in each.items():
                if isinstance(member, str):
                    if member and is_secret_member(name):
                        each[name] = REMOVED
                        is_changed = True
                else:
                    left.append(member)
        elif isinstance(each, list):
            left += each
    return value, is_changed


REDACTED = "[redacted]"
_PLACES = ("index", "output_index", "content_index", "item_id", "summary_index")

Slot: TypeAlias = tuple[Any, Any]
"""A text inside a JSON value: the object or array that holds it, and its name or place there."""


class Redactor:
    """Replaces what matches one of the patterns. Raises OptionError, naming `label`, for a pattern that RE2 lacks."""

    def __init__(self, patterns: Sequence[str], label: str = "--redact") -> None:
        self.patterns = tuple(patterns)
        self._search = [_compiled(pattern, label) for pattern in patterns]

    def text(self, text: str) -> str:
        """The text without what matches."""
        for pattern in self._search:
            text = pattern.sub(REDACTED, text)
        return text

    def body(self, body: str) -> str:
        """The body of a request or of a whole reply, without keys and without what matches.

        JSON is redacted text by text, as escapes would hide what is written in them; it is unchanged, byte for byte,
        where there is nothing to remove.
        """
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return self.text(body)
        if isinstance(value, str):
            redacted = self.text(value)
            return body if redacted == value else orjson.dumps(redacted).decode()
        value, has_secrets = without_secret_members(value)
        is_redacted = self._redact([(None, value)]) if self._search else False
        return orjson.dumps(value).decode() if has_secrets or is_redacted else body

    def data(self, data: bytes) -> bytes:
        """Bytes of a body; nothing but plain text can be found in those that are no UTF-8."""
        try:
            return self.body(data.decode()).encode()
        except UnicodeDecodeError:
            return self.text(data.decode("latin-1")).encode("latin-1") if self.patterns else data

    def events(self, payloads: Sequence[str]) -> list[str]:
        """The data of the events of one stream, without keys and without what matches.

        Text of the same place in successive events is one text for the patterns: a match may have come in pieces.
        """
        values: list[Any] = []
        are_changed = []
        for payload in payloads:
            try:
                value, is_changed = without_secret_members(orjson.loads(payload))
            except orjson.JSONDecodeError:
                value, is_changed = None, False
            values.append(value)
            are_changed.append(is_changed)
        changed = self._redact(list(enumerate(values)), are_changed) if self._search else False
        if not changed and not any(are_changed):
            return [
                payload if values[place] is not None else self.text(payload) for place, payload in enumerate(payloads)
            ]
        return [
            self.text(payload)
            if values[place] is None
            else orjson.dumps(values[place]).decode()
            if are_changed[place]
            else payload
            for place, payload in enumerate(payloads)
        ]

    def _redact(self, values: Iterable[tuple[int | None, Any]], are_changed: list[bool] | None = None) -> bool:
        slots: dict[tuple[Any, ...], list[tuple[int | None, Slot]]] = defaultdict(list)
        for place, value in values:
            for path, slot in _texts(value):
                slots[path if place is not None else (*path, id(slot[0]), slot[1])].append((place, slot))
        is_changed = False
        for found in slots.values():
            pieces = [slot[0][slot[1]] for _, slot in found]
            redacted = self._pieces(pieces)
            for (place, slot), before, after in zip(found, pieces, redacted, strict=True):
                if before != after:
                    slot[0][slot[1]] = after
                    is_changed = True
                    if are_changed is not None and place is not None:
                        are_changed[place] = True
        return is_changed

    def _pieces(self, pieces: list[str]) -> list[str]:
        """Pieces of one text after redaction; what is put in the place of a match stands in the piece it begins in."""
        for pattern in self._search:
            joined = "".join(pieces)
            spans = [match.span() for match in pattern.finditer(joined) if match.end() > match.start()]
            if spans:
                pieces = _replaced(pieces, spans)
        return pieces


def _replaced(pieces: list[str], spans: list[tuple[int, int]]) -> list[str]:
    result = []
    start = 0
    for piece in pieces:
        end = start + len(piece)
        kept = []
        at = start
        for first, last in spans:
            if last <= start or first >= end:
                continue
            kept.append(piece[at - start : max(first, start) - start])
            if first >= start:
                kept.append(REDACTED)
            at = min(last, end)
        kept.append(piece[at - start :])
        result.append("".join(kept))
        start = end
    return result


def _texts(value: Any) -> Iterable[tuple[tuple[Any, ...], Slot]]:
    """The texts inside a JSON value, each with its path; an index that is a member takes part in the paths below it."""
    left: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while left:
        path, each = left.pop()
        if isinstance(each, dict):
            here = (*path, *(each[name] for name in _PLACES if isinstance(each.get(name), int | str)))
            members: Iterable[tuple[Any, Any]] = each.items()
        elif isinstance(each, list):
            here, members = path, enumerate(each)
        else:
            continue
        for name, member in members:
            if isinstance(member, str):
                yield (*here, name), (each, name)
            elif isinstance(member, dict | list):
                left.append(((*here, name), member))


def _compiled(pattern: str, label: str) -> Any:
    import re2  # a library that only redaction needs here

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode() if isinstance(reason, bytes) else reason
        raise OptionError(f"{label} must be a regular expression of RE2, got {pattern!r} ({shown})") from error
