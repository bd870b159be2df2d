"""Log-probabilities as replies show them: one shape for chat, one for text completions, one for prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def chat_logprobs(
    tokens: Sequence[Scored], num_top: int | None, as_ids: bool, has_bytes: bool = True
) -> dict[str, Any]:
    """The `logprobs` of a chat choice, with the first `num_top` candidates of each step, or all of them.

    Tokens of a beam have no `bytes`.
    """
    return {"content": [_chat_token(each, num_top, as_ids, has_bytes) for each in tokens]}


def completion_logprobs(
    tokens: Sequence[Scored | tuple[int, str]], num_top: int | None, as_ids: bool, text_offset: int
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


def prompt_logprobs(tokens: Sequence[Scored | None]) -> list[Any]:
    """The `prompt_logprobs` of a prompt; its first token has none."""
    return [
        None
        if token is None
        else {
            str(each.token_id): {"logprob": _finite(each.logprob), "rank": each.rank, "decoded_token": each.text}
            for each in token.shown
        }
        for token in tokens
    ]


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
