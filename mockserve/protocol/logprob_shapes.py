"""Log-probabilities as replies show them: one shape for chat, one for text completions, one for prompts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from mockserve.protocol.json_text import EncodedItems, JsonBlocks, json_array

LONG_TOKENS = 512
"""The log-probabilities of more tokens are made while they are sent: those of a long prompt would take gigabytes."""

TOKENS_PER_BLOCK = 64
LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has no number for."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token that a step might have brought."""

    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Scored:
    """The token that a step brought, and the candidates that are to be shown: that token first, then the likeliest."""

    chosen: Candidate
    shown: Sequence[Candidate]


class ScoredTokens(Protocol):
    """Tokens with their scores, in order; scored anew each time they are gone through, if they are many."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Scored]: ...


class ScoredPrompt(Protocol):
    """The tokens of a prompt with their scores, of which the first has none."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Scored | None]: ...


def chat_logprobs(tokens: ScoredTokens, num_top: int | None, as_ids: bool, has_bytes: bool = True) -> dict[str, Any]:
    """The `logprobs` of a chat choice, with the first `num_top` candidates of each step, or all of them.

    Tokens of a beam have no `bytes`.
    """
    if len(tokens) > LONG_TOKENS:
        return {"content": json_array(lambda: (_chat_token(each, num_top, as_ids, has_bytes) for each in tokens))}
    return {"content": [_chat_token(each, num_top, as_ids, has_bytes) for each in tokens]}


def completion_logprobs(
    tokens: Iterable[Scored | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
) -> dict[str, Any]:
    """The `logprobs` of a text completion, with `num_top` candidates of each step, or all of them.

    A token given as its id and text has none, as the first of a prompt. `text_offset` is where the tokens begin.
    """
    offsets: list[int] = []
    names: list[str] = []
    logprobs: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token in tokens:
        offsets.append(text_offset)
        if isinstance(token, Scored):
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
    """The `logprobs` of a text completion of many tokens, which is kept as the text of its four columns.

    The columns follow one another in the reply, so that each token is scored once and its four values are put apart.
    """

    def __init__(
        self, tokens: Iterable[Scored | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
    ) -> None:
        columns: dict[str, EncodedItems] = {}
        self.text_offset = text_offset
        """Where the text of the next tokens begins."""
        waiting = iter(tokens)
        while batch := list(islice(waiting, TOKENS_PER_BLOCK)):
            found = completion_logprobs(batch, num_top, as_ids, self.text_offset)
            self.text_offset = next_offset(found)
            for name, values in found.items():
                columns.setdefault(name, EncodedItems()).add(values)
        self.body = {name: items.array() for name, items in columns.items()}


def next_offset(logprobs: dict[str, Any]) -> int:
    """Where the text begins that follows some tokens."""
    offset: int = logprobs["text_offset"][-1] + len(logprobs["tokens"][-1])
    return offset


def prompt_logprobs(tokens: ScoredPrompt) -> list[Any] | JsonBlocks:
    """The `prompt_logprobs` of a prompt; its first token has none."""
    if len(tokens) > LONG_TOKENS:
        return json_array(lambda: map(_prompt_token, tokens))
    return [_prompt_token(token) for token in tokens]


def _prompt_token(token: Scored | None) -> dict[str, Any] | None:
    if token is None:
        return None
    return {
        str(each.token_id): {"logprob": _finite(each.logprob), "rank": each.rank, "decoded_token": each.text}
        for each in token.shown
    }


def _chat_token(token: Scored, num_top: int | None, as_ids: bool, has_bytes: bool) -> dict[str, Any]:
    # What is called by its id keeps the bytes of its text; the candidates have those of their names.
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
