"""Token ids that came from elsewhere as text: without the token that stopped them, and cut at a stop string."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.content.stops import stopped
from mockserve.content.tokens.split import Split
from mockserve.content.tokens.tokenizer import Tokenizer
from mockserve.protocol.asked.sampling import Sampling
from mockserve.protocol.bodies import Ending, StopReason
from mockserve.protocol.errors import ApiError
from mockserve.protocol.logprob_shapes import Candidate, Scored

SEEN_TOKENS = 6
"""As many of those before a token are looked at: its space, or the beginning of its character, may depend on them."""
UNREADABLE = "\ufffd"
CHARACTER_TOKENS = 4
"""More than that never make one character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenChoice:
    """One choice as a generating server gave it. `scored` is None without log-probabilities."""

    index: int
    token_ids: Sequence[int]
    ending: Ending | None
    scored: Sequence[Scored] | None

    @property
    def has_ended_by_itself(self) -> bool:
        return self.ending is not None and self.ending.finish_reason == "stop"


def given_choice(given: Mapping[str, Any], tokenizer: Tokenizer, is_whole: bool) -> GivenChoice:
    """A checked choice; a whole one without a reason has stopped."""
    reason = given.get("finish_reason", "stop" if is_whole else None)
    content = (given.get("logprobs") or {}).get("content")
    return GivenChoice(
        index=int(given["index"]),
        token_ids=given.get("token_ids") or (),
        ending=None if reason is None else Ending(reason, given.get("stop_reason")),
        scored=None if content is None else _scored(content, tokenizer),
    )


def readable_ids(choice: GivenChoice, sampling: Sampling, eos_token_id: int) -> tuple[Sequence[int], StopReason]:
    """The ids without the token that stopped them, and the stop reason, which names it if the request did."""
    ending, ids = choice.ending, choice.token_ids
    if ending is None or not ids or not choice.has_ended_by_itself or isinstance(ending.stop_reason, str):
        return ids, None if ending is None else ending.stop_reason
    reason, last = ending.stop_reason, ids[-1]
    if reason is None and not sampling.ignore_eos and last == eos_token_id:
        is_stopped = True
    elif reason is None:
        is_stopped = last in sampling.stop_token_ids
        reason = last if is_stopped else None
    else:
        is_stopped = last == reason
    return (ids[:-1] if is_stopped and not sampling.include_stop_str_in_output else ids), reason


def continued_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], hides_special: bool) -> str:
    """What ids add to the text of a prompt."""
    seen = prompt[-SEEN_TOKENS:]
    before = tokenizer.decode(seen, hides_special)
    text = tokenizer.decode([*seen, *ids], hides_special)
    return text[len(before) :] if text.startswith(before) else tokenizer.decode(ids, hides_special)


def readable_text(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], hides_special: bool) -> str:
    """The same without what ends within a character: its tokens bring nothing before the last of them has come."""
    for num_left in range(CHARACTER_TOKENS):
        text = continued_text(tokenizer, prompt, ids[: len(ids) - num_left], hides_special)
        if not text.endswith(UNREADABLE):
            return text
    return continued_text(tokenizer, prompt, ids, hides_special)


def cut_text(text: str, choice: GivenChoice, sampling: Sampling, reason: StopReason) -> tuple[str, StopReason]:
    """The text up to the stop string that ended it, and the reason of its end."""
    given = None if choice.ending is None else choice.ending.stop_reason
    stops = (given,) if isinstance(given, str) else sampling.stop
    if not stops or isinstance(given, int) or not choice.has_ended_by_itself:
        return text, reason
    limits = Sampling(stop=stops, include_stop_str_in_output=sampling.include_stop_str_in_output)
    found = stopped(Split([0], [text]), Ending("stop", reason), limits)
    return "".join(found.texts), found.ending.stop_reason


def check_lengths(max_model_len: int, choices: Sequence[GivenChoice], prompts: Sequence[Sequence[int] | None]) -> None:
    """Raise ApiError for more tokens than a context has."""
    for choice in choices:
        if len(choice.token_ids) > max_model_len:
            number = len(choice.token_ids)
            message = f"token_ids length ({number}) in choice {choice.index} exceeds max_model_len ({max_model_len})."
            raise ApiError(message)
    for prompt in prompts:
        if prompt is not None and len(prompt) > max_model_len:
            raise ApiError(f"prompt_token_ids length ({len(prompt)}) exceeds max_model_len ({max_model_len}).")


def _scored(content: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> list[Scored]:
    found: list[Scored] = []
    before: list[int] = []
    for each in content:
        tops = [_candidate(top, tokenizer, before) for top in each.get("top_logprobs") or ()]
        found.append(Scored(_candidate(each, tokenizer, before), tops))
        before = [*before, int(each["token_id"])][-SEEN_TOKENS:]
    return found


def _candidate(given: Mapping[str, Any], tokenizer: Tokenizer, before: Sequence[int]) -> Candidate:
    token_id = int(given["token_id"])
    text = tokenizer.decode([token_id])
    if text.endswith(UNREADABLE):  # part of a character, which the last of its tokens brings
        whole = tokenizer.decode([*before, token_id])
        text = "" if whole.endswith(UNREADABLE) else whole[len(tokenizer.decode(before).rstrip(UNREADABLE)) :]
    return Candidate(token_id, text, float(given["logprob"]), int(given.get("rank") or 0))
