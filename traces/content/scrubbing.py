"""Removal of keys and authorisation from recorded contents: header values, query parameters, members of JSON bodies."""

import re
from collections.abc import Iterable
from typing import Any

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
