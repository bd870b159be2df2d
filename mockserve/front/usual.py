"""Which bytes are a usual request. Pure: bytes in, a request out, or word that somebody else must look at them."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

LARGEST_HEAD_BYTES = 8192
LARGEST_BODY_BYTES = 256 * 1024
"""Larger ones come in many parts, and reading them costs more than the rest."""

MOST_KNOWN_HEADS = 512

END_OF_HEAD = b"\r\n\r\n"
_LINE = re.compile(rb"(GET|POST|HEAD|OPTIONS|PUT|PATCH|DELETE) (/[!-~]*) HTTP/1\.1\r\n")
_FIELD = re.compile(r"^([A-Za-z0-9_-]+): ?([!-~](?:[ -~]*[!-~])?)\r\n", re.MULTILINE)
_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")
_BESIDE_THE_USUAL = frozenset(
    {
        "content-encoding", "expect", "http2-settings", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may have."""

    most_head_bytes: int = LARGEST_HEAD_BYTES
    most_fields: int = 128
    most_body_bytes: int = LARGEST_BODY_BYTES


class Unready(Enum):
    """Why bytes are no usual request."""

    PART = "the beginning of what may become one"
    OTHER = "something else"


class UsualHead(NamedTuple):
    """What a usual request says before its body, and how long that is."""

    method: str
    path: str
    headers: "CIMultiDictProxy[str]"
    num_body_bytes: int


class UsualRequest(NamedTuple):
    """One request, all of whose bytes have come."""

    head: UsualHead
    body: bytes
    num_bytes: int
    """Of all of it."""


class RequestReader:
    """Finds usual requests. Equal heads are read once, since many clients send the same with every request."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._known: dict[bytes, UsualHead] = {}

    def first(self, data: bytes) -> UsualRequest | Unready:
        """The request that `data` begins with."""
        end = data.find(END_OF_HEAD) + 2
        if end < 2:
            return Unready.PART if len(data) <= self._limits.most_head_bytes else Unready.OTHER
        head = self._head(data[:end])
        if head is None:
            return Unready.OTHER
        begin = end + 2
        num_bytes = begin + head.num_body_bytes
        if len(data) < num_bytes:
            return Unready.PART
        return UsualRequest(head, data[begin:num_bytes], num_bytes)

    def _head(self, data: bytes) -> UsualHead | None:
        found = self._known.get(data)
        if found is None:
            found = usual_head(data, self._limits)
            if found is not None:
                if len(self._known) >= MOST_KNOWN_HEADS:
                    self._known.clear()
                self._known[data] = found
        return found


def usual_head(data: bytes, limits: Limits) -> UsualHead | None:
    """What the lines of a head say, the last of which ends with `data`; None if they are not usual."""
    line = _LINE.match(data)
    if line is None or len(data) > limits.most_head_bytes:
        return None
    fields = data[line.end() :].decode("latin-1")
    pairs: list[tuple[str, str]] = _FIELD.findall(fields)
    names = {name.lower() for name, _ in pairs}
    # A line that is no field, or that says again what another has said, is for others to judge.
    if not len(names) == len(pairs) == fields.count("\n") <= limits.most_fields or not _are_usual(names):
        return None
    headers = CIMultiDictProxy(CIMultiDict(pairs))
    size = _body_bytes(headers)
    if size is None or size > limits.most_body_bytes or _closes(headers):
        return None
    method, path = line.groups()
    return UsualHead(method.decode(), path.decode(), headers, size)


def _are_usual(names: set[str]) -> bool:
    return "host" in names and _BESIDE_THE_USUAL.isdisjoint(names)


def _closes(headers: "CIMultiDictProxy[str]") -> bool:
    return headers.get(hdrs.CONNECTION, "keep-alive").lower() != "keep-alive"


def _body_bytes(headers: "CIMultiDictProxy[str]") -> int | None:
    """What the head says; None if that is no plain number."""
    said = headers.get(hdrs.CONTENT_LENGTH, "0")
    return int(said) if _SMALL_NUMBER.fullmatch(said) else None
