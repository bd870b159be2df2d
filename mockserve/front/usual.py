"""Which bytes are a usual request. Pure: bytes in, a request out, or word that somebody else must look at them."""

import re
from dataclasses import dataclass
from enum import Enum

from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

LARGEST_HEAD_BYTES = 8192
LARGEST_BODY_BYTES = 256 * 1024
"""Larger ones come in many parts, and reading them costs more than the rest."""

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
    """What a head may have."""

    most_head_bytes: int = LARGEST_HEAD_BYTES
    most_fields: int = 128
    most_body_bytes: int = LARGEST_BODY_BYTES


class Unready(Enum):
    """Why bytes are no usual request."""

    PART = "the beginning of what may become one"
    OTHER = "something else"


@dataclass(slots=True)
class UsualRequest:
    """One request, all of whose bytes have come."""

    method: str
    path: str
    headers: "CIMultiDictProxy[str]"
    body: bytes
    num_bytes: int
    """Of all of it."""


def first_request(data: bytes, limits: Limits) -> UsualRequest | Unready:
    """The request that `data` begins with."""
    end = data.find(END_OF_HEAD)
    if end < 0:
        return Unready.PART if len(data) <= limits.most_head_bytes else Unready.OTHER
    line = _LINE.match(data, 0, end + 2)
    if line is None or end > limits.most_head_bytes:
        return Unready.OTHER
    fields = data[line.end() : end + 2].decode("latin-1")
    pairs: list[tuple[str, str]] = _FIELD.findall(fields)
    names = {name.lower() for name, _ in pairs}
    # A line that is no field, or that says again what another has said, is for others to judge.
    if not len(names) == len(pairs) == fields.count("\n") <= limits.most_fields or not _are_usual(names):
        return Unready.OTHER
    headers = CIMultiDictProxy(CIMultiDict(pairs))
    size = _body_bytes(headers)
    if size is None or size > limits.most_body_bytes or _closes(headers):
        return Unready.OTHER
    begin = end + len(END_OF_HEAD)
    if len(data) < begin + size:
        return Unready.PART
    method, path = line.groups()
    return UsualRequest(method.decode(), path.decode(), headers, data[begin : begin + size], begin + size)


def _are_usual(names: set[str]) -> bool:
    return "host" in names and _BESIDE_THE_USUAL.isdisjoint(names)


def _closes(headers: "CIMultiDictProxy[str]") -> bool:
    return headers.get(hdrs.CONNECTION, "keep-alive").lower() != "keep-alive"


def _body_bytes(headers: "CIMultiDictProxy[str]") -> int | None:
    """What the head says; None if that is no plain number."""
    said = headers.get(hdrs.CONTENT_LENGTH, "0")
    return int(said) if _SMALL_NUMBER.fullmatch(said) else None
