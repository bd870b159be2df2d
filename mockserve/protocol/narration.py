"""Replies told as a sequence of typed events, which say what begins, what is added to it, and that it ends."""

from typing import Any, Protocol, TypeAlias

from mockserve.protocol.bodies import Ending, Piece, Usage
from mockserve.protocol.errors import ApiError

Event: TypeAlias = dict[str, Any]
"""An event; its `type` is its name, too."""


class Narrator(Protocol):
    """Tells one reply of one choice. It remembers what it has begun, so the methods are called in the reply's order."""

    @property
    def opens_at_once(self) -> bool:
        """Whether the opening is told before the engine has brought anything."""
        ...

    def opening(self, usage: Usage) -> list[Event]:
        """What precedes the first token."""
        ...

    def said(self, piece: Piece) -> list[Event]:
        """What one or more tokens bring. The delta of `piece` has the keys of a chat message."""
        ...

    def ended(self, ending: Ending, usage: Usage) -> list[Event]:
        """What follows the last token."""
        ...

    def failed(self, error: ApiError) -> list[Event]:
        """What ends a reply that cannot go on."""
        ...
