"""A journal of the latest requests to a server, and how each was answered."""

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.json_text import JsonBlocks

MOST_REQUESTS = 10_000
MOST_BYTES = 64 << 20
MOST_BODY_BYTES = 1 << 20
MOST_CHARACTERS = 10_000
"""Characters that are kept of the last user message and of the model's name."""
_ENTRY_BYTES = 1000
"""Memory of a request besides its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A request and how it was answered. `body` is its JSON text; None for a long body, and for one that is no JSON."""

    number: int
    at_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    model: str
    body_bytes: int
    body: bytes | None
    last_user: str
    answered_by: str
    matched_by: str

    def shown(self) -> dict[str, Any]:
        """Return the request as a JSON value."""
        text = self.body
        body = None if text is None else JsonBlocks(lambda: iter((text,)))
        return {name: body if name == "body" else getattr(self, name) for name in self.__slots__}

    @property
    def num_bytes(self) -> int:
        """Memory that the request takes."""
        texts = (self.path, self.model, self.last_user, *self.headers, *self.headers.values())
        return _ENTRY_BYTES + len(self.body or b"") + sum(map(sys.getsizeof, texts))


class Journal:
    """The latest requests, at most 64 MB and 10,000 requests."""

    def __init__(self) -> None:
        self.num_seen = 0
        self._requests: deque[JournalEntry] = deque()
        self._num_bytes = 0

    @property
    def entries(self) -> Sequence[JournalEntry]:
        """The requests that are kept at present, the oldest first."""
        return tuple(self._requests)

    def note(self, request: JournalEntry) -> None:
        """Add a request; the oldest requests are dropped at the limits."""
        self.num_seen += 1
        self._requests.append(request)
        self._num_bytes += request.num_bytes
        while len(self._requests) > MOST_REQUESTS or self._num_bytes > MOST_BYTES:
            self._num_bytes -= self._requests.popleft().num_bytes

    def reset(self) -> None:
        """Remove all requests."""
        self._requests.clear()
        self._num_bytes = 0
        self.num_seen = 0


def matching(entries: Iterable[JournalEntry], requested: Mapping[str, str]) -> list[JournalEntry]:
    """Return the requests with the given `path`, `model`, `answered_by` and `matched_by`.

    `contains` is a part of the last user message.
    """
    exact = {name: value for name, value in requested.items() if name != "contains"}
    part = requested.get("contains", "")
    return [
        each
        for each in entries
        if part in each.last_user and all(getattr(each, name) == value for name, value in exact.items())
    ]
