"""What both reply formats share: usage, choices, and the interface the replies are written through."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

StopReason: TypeAlias = str | int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply. The key order, total before completion, is vLLM's."""

    prompt_tokens: int
    completion_tokens: int

    def counts(self) -> dict[str, Any]:
        """The three counts alone, as in a stream."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }

    def full(self) -> dict[str, Any]:
        """With the details that are not collected, as in a whole reply."""
        return {**self.counts(), "prompt_tokens_details": None, "completion_tokens_details": None}


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a choice ended: a finish reason and, for a stop string, which."""

    finish_reason: str
    stop_reason: StopReason = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished choice of a whole reply."""

    text: str
    ending: Ending


class Bodies(Protocol):
    """Builds every JSON object of one reply. Usage is given only where the client asked for it in each chunk."""

    def opening_chunk(self, index: int, usage: Usage | None) -> dict[str, Any] | None:
        """What precedes the first text of choice `index`, if anything does."""
        ...

    def text_chunk(self, index: int, text: str, usage: Usage | None) -> dict[str, Any]:
        """One token's text."""
        ...

    def ending_chunk(self, index: int, text: str, ending: Ending, usage: Usage | None) -> dict[str, Any]:
        """The last token's text and why the choice ended."""
        ...

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """The counts of all choices, after the last of them."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> dict[str, Any]:
        """The reply to a request without a stream."""
        ...


def with_tail(head: dict[str, Any], usage: dict[str, Any] | None, fingerprint: str | None) -> dict[str, Any]:
    """A chunk's optional keys in vLLM's order: usage, system_fingerprint."""
    if usage is not None:
        head["usage"] = usage
    if fingerprint is not None:
        head["system_fingerprint"] = fingerprint
    return head
