"""Parts of all replies: usage, choices, the interface for writers, and typed events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import JsonBlocks, json_array_of_blocks

StopReason: TypeAlias = str | int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one reply. The key order, total before completion, is vLLM's.

    `prompt_details` and `num_reasoning_tokens` are None where the server does not report them.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_details: Mapping[str, Any] | None = None
    num_reasoning_tokens: int | None = None

    def counts(self) -> dict[str, Any]:
        """The three counts alone."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "completion_tokens": self.completion_tokens,
        }

    @property
    def completion_details(self) -> dict[str, Any] | None:
        if self.num_reasoning_tokens is None:
            return None
        return {"reasoning_tokens": self.num_reasoning_tokens}

    def running(self) -> dict[str, Any]:
        """Return usage as in each chunk of a chat stream, which has one null more than other streams."""
        return {**self.counts(), "completion_tokens_details": self.completion_details}

    def last(self) -> dict[str, Any]:
        """Return usage as in the last chunk of a stream, which leaves out nulls."""
        found = self.counts()
        if self.prompt_details is not None:
            given = {name: value for name, value in self.prompt_details.items() if value is not None}
            found["prompt_tokens_details"] = given
        if self.completion_details is not None:
            found["completion_tokens_details"] = self.completion_details
        return found

    def full(self) -> dict[str, Any]:
        """Return usage as in a whole reply, with all nulls."""
        details = None if self.prompt_details is None else dict(self.prompt_details)
        return {
            **self.counts(),
            "prompt_tokens_details": details,
            "completion_tokens_details": self.completion_details,
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a choice ended: a finish reason and, for a stop string or stop token, which."""

    finish_reason: str
    stop_reason: StopReason = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """The parts of a prompt that a reply may repeat. `logprobs` are in the shape of `prompt_logprobs`."""

    token_ids: Sequence[int] = ()
    text: str | None = None
    logprobs: Sequence[Any] | JsonBlocks | None = None


class Piece(NamedTuple):
    """The content of one event of a stream. `delta` is what is new: text, or a chat message's keys.

    `logprobs` have the shape of the format; `ending` is there in the last event of a choice, and so are
    `num_tokens`, those of the whole choice, and `kv_transfer_params`.
    """

    delta: Any
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    logprobs: Mapping[str, Any] | None = None
    ending: Ending | None = None
    num_tokens: int = 0
    kv_transfer_params: Mapping[str, Any] | None = None


class Choice(NamedTuple):
    """One finished choice of a whole reply. `content` is its text, or a chat message's keys."""

    content: Any
    ending: Ending
    num_tokens: int
    token_ids: Sequence[int] | None = None
    logprobs: Mapping[str, Any] | None = None
    prompted: Prompted = Prompted()
    kv_transfer_params: Mapping[str, Any] | None = None


class Choices(Protocol):
    """The choices of a whole reply, all there or made one by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Choice: ...

    def __iter__(self) -> Iterator[Choice]: ...


class Bodies(Protocol):
    """Builds every JSON object of one reply. Usage is given only where the client asked for it in each chunk."""

    def opening_chunks(self, num_choices: int, prompted: Prompted, usage: Usage | None) -> list[dict[str, Any]]:
        """Return the chunks before the first text of all choices, if there are any."""
        ...

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        """Return the chunk of one or more tokens of choice `index`."""
        ...

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """The counts of all choices, after the last of them."""
        ...

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """The reply to a request without a stream."""
        ...


def weight_versions(version: str | None, num_tokens: int) -> list[dict[str, Any]] | None:
    """Return which weights made which tokens: one version makes a whole reply. None: not to be shown."""
    return None if version is None else [{"version": version, "start": 0, "end": num_tokens}]


def listed(choices: Choices, shown: Callable[[int, Choice], dict[str, Any]]) -> list[dict[str, Any]] | JsonBlocks:
    """The choices of a whole reply as it shows them; those that are made one by one are shown one by one."""
    if isinstance(choices, list):
        return [shown(index, each) for index, each in enumerate(choices)]
    return json_array_of_blocks(lambda: (shown(index, each) for index, each in enumerate(choices)))


def id_list(token_ids: Sequence[int] | None) -> list[int] | None:
    """Token ids as JSON has them."""
    return None if token_ids is None else list(token_ids)


Event: TypeAlias = dict[str, Any]
"""An event; its `type` is its name, too."""


class EventEncoder(Protocol):
    """Encodes one reply of one choice as events. The narrator keeps what it has begun, so the methods are called in the
    reply's order."""

    @property
    def opens_at_once(self) -> bool:
        """Whether the opening is sent before the engine has brought anything."""
        ...

    @property
    def breaks_off_refused(self) -> bool:
        """Whether a reply that a paused server refuses ends without a word and without the end of its stream."""
        ...

    def opening(self, usage: Usage) -> list[Event]:
        """Return the events before the first token."""
        ...

    def said(self, piece: Piece) -> list[Event]:
        """Return the events of one or more tokens. The delta of `piece` has the keys of a chat message."""
        ...

    def ended(self, ending: Ending, usage: Usage) -> list[Event]:
        """Return the events after the last token."""
        ...

    def failed(self, error: ApiError) -> list[Event]:
        """Return the events that end a reply which cannot go on."""
        ...
