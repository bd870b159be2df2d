"""Parts of all replies: usage, choices, log-probabilities, the interface for writers, and typed events."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import EncodedItems, JsonBlocks, json_array, json_array_of_blocks

LONG_TOKENS = 512
"""Maximum number of tokens whose log-probabilities are made at once; those of a long prompt would take gigabytes."""

TOKENS_PER_BLOCK = 64
LOWEST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible token of a step."""

    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """The chosen token of a step, and the candidates to return: the chosen token first, then the likeliest."""

    chosen: Candidate
    shown: Sequence[Candidate]


class ScoredTokens(Protocol):
    """Tokens with their scores, in order. Many tokens are scored anew in each iteration."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ScoredToken]: ...


class ScoredPrompt(Protocol):
    """The tokens of a prompt with their scores; the first token has none."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[ScoredToken | None]: ...


def chat_logprobs(tokens: ScoredTokens, num_top: int | None, as_ids: bool, has_bytes: bool = True) -> dict[str, Any]:
    """The `logprobs` of a chat choice, with the first `num_top` candidates of each step, or all of them.

    Tokens of a beam have no `bytes`.
    """
    if len(tokens) > LONG_TOKENS:
        return {"content": json_array(lambda: (_chat_token(each, num_top, as_ids, has_bytes) for each in tokens))}
    return {"content": [_chat_token(each, num_top, as_ids, has_bytes) for each in tokens]}


def completion_logprobs(
    tokens: Iterable[ScoredToken | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
) -> dict[str, Any]:
    """Return the `logprobs` of a text completion, with `num_top` candidates of each step, or all of them.

    A token given as its id and text, such as the first of a prompt, has no log-probability. `text_offset` is the offset
    of the first token.
    """
    offsets: list[int] = []
    names: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token in tokens:
        offsets.append(text_offset)
        if isinstance(token, ScoredToken):
            name = _name(token.chosen, as_ids)
            logprobs.append(_finite(token.chosen.logprob))
            tops.append({_name(each, as_ids): _finite(each.logprob) for each in token.shown[:num_top]})
        else:
            name = _id_name(token[0]) if as_ids else token[1]
            logprobs.append(None)
            tops.append(None)
        names.append(name)
        text_offset += len(name)
    return {"text_offset": offsets, "token_logprobs": logprobs, "tokens": names, "top_logprobs": tops}


class LongCompletionLogprobs:
    """The `logprobs` of a text completion of many tokens, kept as the JSON text of the four columns.

    The reply contains one column after the other, so each token is scored once and its four values are stored apart.
    """

    def __init__(
        self, tokens: Iterable[ScoredToken | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
    ) -> None:
        columns: dict[str, EncodedItems] = {}
        self.text_offset = text_offset
        """Offset of the next token."""
        waiting = iter(tokens)
        while batch := list(islice(waiting, TOKENS_PER_BLOCK)):
            found = completion_logprobs(batch, num_top, as_ids, self.text_offset)
            self.text_offset = next_offset(found)
            for name, values in found.items():
                columns.setdefault(name, EncodedItems()).add(values)
        self.body = {name: items.array() for name, items in columns.items()}


def next_offset(logprobs: dict[str, Any]) -> int:
    """Return the offset of the text after some tokens."""
    offset: int = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
    return offset


def prompt_logprobs(tokens: ScoredPrompt) -> list[Any] | JsonBlocks:
    """The `prompt_logprobs` of a prompt; its first token has none."""
    if len(tokens) > LONG_TOKENS:
        return json_array(lambda: map(_prompt_token, tokens))
    return [_prompt_token(token) for token in tokens]


def _prompt_token(token: ScoredToken | None) -> dict[str, Any] | None:
    if token is None:
        return None
    return {
        str(each.token_id): {"logprob": _finite(each.logprob), "rank": each.rank, "decoded_token": each.text}
        for each in token.shown
    }


def _chat_token(token: ScoredToken, num_top: int | None, as_ids: bool, has_bytes: bool) -> dict[str, Any]:
    # A token named by its id has the bytes of its text; a candidate has the bytes of its name.
    return {
        "token": _name(token.chosen, as_ids),
        "logprob": _finite(token.chosen.logprob),
        "bytes": _bytes(token.chosen.text) if has_bytes else None,
        "top_logprobs": [
            {"token": (name := _name(each, as_ids)), "logprob": _finite(each.logprob), "bytes": _bytes(name)}
            for each in token.shown[:num_top]
        ],
    }


def _name(candidate: Candidate, as_ids: bool) -> str:
    return _id_name(candidate.token_id) if as_ids else candidate.text


def _id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def _bytes(text: str) -> list[int]:
    return list(text.encode("utf-8", "replace"))


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


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
        """Return usage as in each chunk of a chat stream, which includes a null `completion_tokens_details`."""
        return {**self.counts(), "completion_tokens_details": self.completion_details}

    def last(self) -> dict[str, Any]:
        """Return usage as in the last chunk of a stream, without nulls."""
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
    """Why a choice ended: a finish reason and, for a stop string or stop token, the string or token."""

    finish_reason: str
    stop_reason: StopReason = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOutput:
    """Prompt data that a reply may repeat. `logprobs` have the shape of `prompt_logprobs`."""

    token_ids: Sequence[int] = ()
    text: str | None = None
    logprobs: Sequence[Any] | JsonBlocks | None = None


class Piece(NamedTuple):
    """The content of one event of a stream. `delta` is the new text, or the keys of a chat message.

    `logprobs` have the shape of the format. `ending`, `num_tokens` (of the whole choice) and `kv_transfer_params` are
    set in the last event of a choice only.
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
    prompt_output: PromptOutput = PromptOutput()
    kv_transfer_params: Mapping[str, Any] | None = None


class Choices(Protocol):
    """The choices of a whole reply, in memory or made one by one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Choice: ...

    def __iter__(self) -> Iterator[Choice]: ...


class Bodies(Protocol):
    """Builds every JSON object of one reply. `usage` is None unless the client requested usage in each chunk."""

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        """Return the chunks before the first text of all choices, if there are any."""
        ...

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        """Return the chunk of one or more tokens of choice `index`."""
        ...

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the chunk with the counts of all choices, which follows the last choice."""
        ...

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the reply to a request without `stream`."""
        ...


def weight_versions(version: str | None, num_tokens: int) -> list[dict[str, Any]] | None:
    """Return the weight version of each range of tokens: one version for a whole reply, None to omit it."""
    return None if version is None else [{"version": version, "start": 0, "end": num_tokens}]


def listed(choices: Choices, shown: Callable[[int, Choice], dict[str, Any]]) -> list[dict[str, Any]] | JsonBlocks:
    """Return the choices of a whole reply as JSON objects; choices that are made one by one are converted one by
    one."""
    if isinstance(choices, list):
        return [shown(index, each) for index, each in enumerate(choices)]
    return json_array_of_blocks(lambda: (shown(index, each) for index, each in enumerate(choices)))


def id_list(token_ids: Sequence[int] | None) -> list[int] | None:
    """Return token ids as a list, for JSON."""
    return None if token_ids is None else list(token_ids)


Event: TypeAlias = dict[str, Any]
"""An event as a JSON object; `type` is also the name of the event."""


class EventEncoder(Protocol):
    """Encodes one reply of one choice as events. The encoder has state: call the methods in the order of the reply."""

    @property
    def starts_before_first_token(self) -> bool:
        """Whether the opening is sent before the first token."""
        ...

    @property
    def aborts_stream_when_refused(self) -> bool:
        """Whether the stream is cut without an error event when a paused server refuses the request."""
        ...

    def opening(self, usage: Usage) -> list[Event]:
        """Return the events before the first token."""
        ...

    def generated(self, piece: Piece) -> list[Event]:
        """Return the events of one or more tokens. The delta of `piece` has the keys of a chat message."""
        ...

    def ended(self, ending: Ending, usage: Usage, metrics: Mapping[str, Any] | None) -> list[Event]:
        """Return the events after the last token. `metrics` are the latencies of the reply, if they are reported."""
        ...

    def failed(self, error: ApiError) -> list[Event]:
        """Return the events that end a failed reply."""
        ...
