"""Prompts cut to a length: which tokens stay, and that marks at both ends stay with them."""

from collections.abc import Sequence

from mockserve.content.tokens.tokenizer import Tokenizer
from mockserve.planning.prompts import check_unicode
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.serving.planner import Planner

WHOLE_CONTEXT = -1


def fitted(
    planner: Planner, prompt: str | Sequence[int], truncate_to: int | None, keeps_end: bool, add_special_tokens: bool
) -> list[int]:
    """The token ids of a prompt, cut to `truncate_to` of them: -1 is all that the context holds, None cuts nothing.

    Raises ApiError for a prompt that is too long, empty or has unknown ids.
    """
    limit = planner.max_model_len
    if truncate_to is not None and truncate_to > limit:
        raise ApiError(
            "truncate_prompt_tokens value is greater than max_model_len. Please request a smaller truncation size."
        )
    length = limit if truncate_to == WHOLE_CONTEXT else truncate_to
    if isinstance(prompt, str):
        if length is None:
            planner.check_characters(prompt)
        check_unicode(prompt)
        ids = cut_text(planner.tokenizer, prompt, length, keeps_end, add_special_tokens)
    else:
        ids = list(prompt) if length is None else _cut(prompt, length, keeps_end)
        _check_known(max(planner.vocabulary_size, planner.tokenizer.vocabulary_size), ids)
    if len(ids) > limit:
        raise _too_long(limit)
    if not ids:
        raise ApiError("The decoder prompt cannot be empty")
    return ids


def padded(planner: Planner, ids: list[int], pads: bool) -> list[int]:
    """Return the token ids, filled up to the whole context with the first of the vocabulary if it `pads`."""
    return ids + [0] * (planner.max_model_len - len(ids)) if pads else ids


def cut_text(
    tokenizer: Tokenizer, text: str, length: int | None, keeps_end: bool, add_special_tokens: bool
) -> list[int]:
    """The token ids of `text`, at most `length`: of the text itself the beginning or the end, of its marks all."""
    ids = tokenizer.encode(text, add_special_tokens)
    if length is None or len(ids) <= length:
        return ids
    bare = tokenizer.encode(text) if add_special_tokens else ids
    num_marks = len(ids) - len(bare)
    if num_marks > length:
        return _cut(ids, length, keeps_end)
    start = next((i for i in range(num_marks + 1) if ids[i : i + len(bare)] == bare), 0)
    return [*ids[:start], *_cut(bare, length - num_marks, keeps_end), *ids[start + len(bare) :]]


def _cut(ids: Sequence[int], length: int, keeps_end: bool) -> list[int]:
    if len(ids) <= length:
        return list(ids)
    return list(ids[len(ids) - length :] if keeps_end else ids[:length])


def _check_known(vocabulary_size: int, ids: Sequence[int]) -> None:
    unknown = next((each for each in ids if not 0 <= each < vocabulary_size), None)
    if unknown is not None:
        raise ApiError(f"Token id {unknown} is out of vocabulary")


def _too_long(limit: int) -> ApiError:
    return bad_value(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        limit + 1,
    )
