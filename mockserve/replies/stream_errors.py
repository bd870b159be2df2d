"""How a stream tells what went wrong after its head was sent: vLLM's chat writes it unlike its other interfaces."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from mockserve.protocol.errors import ApiError, paused
from mockserve.replies.frames import event

NewEvent: TypeAlias = Callable[[dict[str, Any]], bytes]


def spaced_event(body: dict[str, Any]) -> bytes:
    """One event as Python writes JSON by default: with spaces, and in ASCII."""
    return b"data: %b\n\n" % json.dumps(body).encode()


class StreamErrors(NamedTuple):
    """The bytes of an error event, and what a paused server's error is called."""

    new_event: NewEvent
    paused_kind: str

    def event(self, error: ApiError) -> bytes:
        """The event of one error."""
        return self.new_event(error.body())

    def paused(self) -> ApiError:
        """The error of a request to a paused server."""
        return paused(self.paused_kind)


CHAT_ERRORS = StreamErrors(event, "InternalServerError")
OTHER_ERRORS = StreamErrors(spaced_event, "ServiceUnavailableError")
