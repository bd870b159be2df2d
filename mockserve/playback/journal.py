"""The latest requests of clients, for tests that look at what was sent."""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

MOST_REQUESTS = 10_000
MOST_BYTES = 64 << 20
MOST_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRequest:
    """A request and how it was answered. A long body is not kept: it is None, and `body_bytes` its size."""

    number: int
    at_s: float
    method: str
    path: str
    headers: Mapping[str, str]
    model: str
    body_bytes: int
    body: Any
    last_user: str
    answered_by: str
    matched_by: str


class Journal:
    """The latest requests, as many as fit in 64 MB and at most 10,000."""

    def __init__(self) -> None:
        self.num_seen = 0
        self._requests: deque[NotedRequest] = deque()
        self._num_bytes = 0

    def note(self, request: NotedRequest) -> None:
        """Add a request; the oldest make room."""
        self.num_seen += 1
        self._requests.append(request)
        self._num_bytes += _size(request)
        while len(self._requests) > MOST_REQUESTS or self._num_bytes > MOST_BYTES:
            self._num_bytes -= _size(self._requests.popleft())

    def reset(self) -> None:
        """Forget all."""
        self._requests.clear()
        self._num_bytes = 0
        self.num_seen = 0

    def found(self, requested: Mapping[str, str]) -> list[dict[str, Any]]:
        """The requests with these values, of `path`, `model`, `answered_by`, `matched_by`; `contains` is a part of the
        last message of the user."""
        exact = {name: value for name, value in requested.items() if name != "contains"}
        part = requested.get("contains", "")
        return [
            asdict(each)
            for each in self._requests
            if part in each.last_user and all(getattr(each, name) == value for name, value in exact.items())
        ]


def _size(request: NotedRequest) -> int:
    # A parsed body takes a few times the room of its text.
    return 1000 + (0 if request.body is None else 8 * request.body_bytes) + len(request.last_user)
