"""One answer, token by token: its cost, text, kinds of text and log-probabilities; also by beam search."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from random import Random
from typing import NamedTuple

from mockserve.protocol.bodies import Ending


class Kind(Enum):
    """What a stretch of an answer is to the client."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    MARKUP = "markup"
    """Marks around reasoning and tool calls: they cost tokens and are never shown."""
    NOTHING = "nothing"
    """An event of a stream with a null content."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A stretch of one kind. `call` numbers the tool call it belongs to."""

    kind: Kind
    text: str
    call: int = 0


class Answer(NamedTuple):
    """One answer: `texts[k-1]` is the text that a client may read when token k arrives; a token may bring none.

    Joined they are the whole text, as the model says it. `token_texts` are the tokens themselves, before anything was
    held back or cut. `deltas[k-1]` is the same text sorted by kind, without markup; None means that all is content.
    """

    texts: Sequence[str]
    ending: Ending
    token_texts: Sequence[str]
    token_ids: Sequence[int]
    deltas: Sequence[Sequence[Delta]] | None = None
    num_reasoning_tokens: int = 0
    unparsed: str | None = None
    """Where function calls were cut short: all that was said after the reasoning. A whole message has this instead of
    the calls, since vLLM parses it in one go and gives up; a stream has had what there is of them."""
    streamed_ending: Ending | None = None
    """How a stream ends, where that differs from the ending of a whole message."""

    @property
    def num_tokens(self) -> int:
        return len(self.texts)


def as_beam(answer: Answer, eos_token_id: int, keeps_end: bool) -> Answer:
    """The answer with its end marker as the reason of its end, and the marker itself only with `keeps_end`.

    A beam of nothing but the marker keeps it, as the engine has to be asked for a token.
    """
    if not answer.token_ids or answer.token_ids[-1] != eos_token_id or answer.ending.finish_reason == "length":
        return answer
    answer = answer._replace(ending=Ending(answer.ending.finish_reason, eos_token_id))
    if keeps_end or answer.num_tokens == 1:
        return answer
    return answer._replace(
        texts=answer.texts[:-1],
        token_texts=answer.token_texts[:-1],
        token_ids=answer.token_ids[:-1],
        deltas=None if answer.deltas is None else answer.deltas[:-1],
    )


LEAST_TOP_PROBABILITY = 0.2
MOST_TOP_PROBABILITY = 0.98
MOST_RANK = 20
"""A token is drawn from the likeliest of its step, as with the usual top-k sampling."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What a model would say of one step: the chosen token, and the most likely ones in order.

    `top` includes the chosen token where its rank is within it.
    """

    token_id: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]]


def token_logprobs(
    seed: int,
    token_id: int,
    num_top: int,
    candidates: Sequence[int],
    is_greedy: bool = False,
    most_rank: int = MOST_RANK,
) -> TokenLogprobs:
    """The likeliest `num_top` tokens of the step that chose `token_id`; the other ids come from `candidates`.

    Probabilities fall geometrically, so that all of a step add up to less than 1, and a token is ranked as if drawn
    by them: first when greedy, `most_rank` at most. Equal arguments give equal values, and a longer list begins with
    the shorter one. Values have single precision, as a GPU's. Cost: about 5 us, and 1 us more per id of the list.
    """
    draw = Random(seed * 1_000_003 + token_id)
    top = draw.uniform(LEAST_TOP_PROBABILITY, MOST_TOP_PROBABILITY)
    falloff = 1 - top
    drawn = 1 + int(math.log(1 - draw.random()) / math.log(falloff))
    rank = 1 if is_greedy else min(drawn, most_rank)
    ids = _others(draw, token_id, max(0, num_top - (rank <= num_top)), candidates)
    if rank <= num_top:
        ids.insert(min(rank - 1, len(ids)), token_id)
    listed = [(each, _logprob(top, falloff, place)) for place, each in enumerate(ids, start=1)]
    return TokenLogprobs(token_id, _logprob(top, falloff, rank), rank, listed)


def _logprob(top: float, falloff: float, rank: int) -> float:
    """The geometric law, a hair lower: rounding must not carry the sum above 1."""
    value: float = struct.unpack("f", struct.pack("f", math.log(top) + (rank - 1) * math.log(falloff) - 1e-6))[0]
    return value


def _others(draw: Random, token_id: int, count: int, candidates: Sequence[int]) -> list[int]:
    """`count` different ids besides `token_id`, or as many as there are."""
    if len(candidates) < 2 * (count + 1):
        few = [each for each in dict.fromkeys(candidates) if each != token_id]
        draw.shuffle(few)
        return few[:count]
    chosen = {token_id: None}
    tries = 0
    while len(chosen) <= count and tries < 100 * (count + 1):  # equal candidates could leave none to find
        chosen.setdefault(candidates[int(draw.random() * len(candidates))])
        tries += 1
    return list(chosen)[1:]


SPREAD = 6.0
"""Logits of labels lie between -SPREAD and 0."""
NORMALIZER = 130.0
"""Keeps the sum of 128 labels, the most that a request may name, below 1."""


def label_score(prompt_digest: object, label_ids: Sequence[int], seed: int, applies_softmax: bool) -> float:
    """The probability of the first label: among the labels alone, or in the whole vocabulary."""
    weights = {label: math.exp(_logit(prompt_digest, label, seed)) for label in label_ids}
    total = sum(weights.values()) if applies_softmax else NORMALIZER
    return weights[label_ids[0]] / total


def _logit(prompt_digest: object, label: int, seed: int) -> float:
    drawn = blake2b(f"{seed} {prompt_digest!r} {label}".encode(), digest_size=8).digest()
    return -SPREAD * int.from_bytes(drawn, "big") / 2**64
