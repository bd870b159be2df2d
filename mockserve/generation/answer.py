"""One answer, token by token: its text, kinds of text, log-probabilities and early end."""

import math
import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from itertools import accumulate
from random import Random
from typing import NamedTuple

from mockserve.generation.tokenizer import Split
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import Repetition, SamplingParams


class Kind(Enum):
    """The kind of a part of an answer."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_NAME = "tool_name"
    TOOL_ARGUMENTS = "tool_arguments"
    MARKUP = "markup"
    """Marks around reasoning and tool calls. They cost tokens and are never sent to the client."""
    NOTHING = "nothing"
    """An event of a stream with a null content."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A stretch of text of one kind. `call` is the number of the tool call that the text belongs to."""

    kind: Kind
    text: str
    call: int = 0


class CutCalls(NamedTuple):
    """Function calls that were cut short. `text` is all of the text after the reasoning.

    `is_within_call`: the text ends within an incomplete call.
    """

    text: str
    num_complete: int = 0
    is_within_call: bool = True


class Answer(NamedTuple):
    """One answer. `texts[k-1]` is the text that a client may read when token k arrives; it may be empty.

    `texts` joined are the whole text, as the model wrote it. `token_texts` are the texts of the single tokens, before
    anything is held back or cut. `deltas[k-1]` is the text of token k sorted by kind, without markup. `deltas` is None
    where all text is content.
    """

    texts: Sequence[str]
    ending: Ending
    token_texts: Sequence[str]
    token_ids: Sequence[int]
    deltas: Sequence[Sequence[Delta]] | None = None
    num_reasoning_tokens: int = 0
    cut: CutCalls | None = None
    """Place where function calls were cut short. A whole message shows the calls that vLLM's parser finds in the
    complete text. A stream shows every part of a call that was generated."""
    streamed_ending: Ending | None = None
    """Ending of a stream, where it differs from the ending of a whole message."""

    @property
    def num_tokens(self) -> int:
        return len(self.texts)


def as_beam(answer: Answer, eos_token_id: int, keeps_end: bool) -> Answer:
    """Return the answer with its end marker as the stop reason. `keeps_end` keeps the marker among the tokens.

    A beam that is only the marker always keeps it, since the engine needs a request of at least one token.
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


MIN_TOP_PROBABILITY = 0.2
MAX_TOP_PROBABILITY = 0.98
MAX_RANK = 20
"""Lowest rank of a drawn token, as with the usual top-k sampling."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of one step: the chosen token, and the most likely ones in order.

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
    max_rank: int = MAX_RANK,
) -> TokenLogprobs:
    """The likeliest `num_top` tokens of the step that chose `token_id`; the other ids come from `candidates`.

    Probabilities fall geometrically, so that all of a step add up to less than 1, and a token is ranked as if drawn
    by them: first when greedy, `max_rank` at most. Equal arguments give equal values, and a longer list begins with
    the shorter one. Values have single precision, as a GPU's. Cost: about 5 us, and 1 us more per id of the list.
    """
    draw = Random(seed * 1_000_003 + token_id)
    top = draw.uniform(MIN_TOP_PROBABILITY, MAX_TOP_PROBABILITY)
    falloff = 1 - top
    drawn = 1 + int(math.log(1 - draw.random()) / math.log(falloff))
    rank = 1 if is_greedy else min(drawn, max_rank)
    ids = _draw_other_ids(draw, token_id, max(0, num_top - (rank <= num_top)), candidates)
    if rank <= num_top:
        ids.insert(min(rank - 1, len(ids)), token_id)
    listed = [(each, _logprob(top, falloff, place)) for place, each in enumerate(ids, start=1)]
    return TokenLogprobs(token_id, _logprob(top, falloff, rank), rank, listed)


def _logprob(top: float, falloff: float, rank: int) -> float:
    """Return the log-probability by the geometric law, lowered by 1e-6 to keep the rounded sum below 1."""
    value: float = struct.unpack("f", struct.pack("f", math.log(top) + (rank - 1) * math.log(falloff) - 1e-6))[0]
    return value


def _draw_other_ids(draw: Random, token_id: int, count: int, candidates: Sequence[int]) -> list[int]:
    """Return `count` different ids other than `token_id`, or fewer if there are not as many."""
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


LOGIT_SPREAD = 6.0
"""Logits of labels lie between -SPREAD and 0."""
LOGIT_NORMALIZER = 130.0
"""Keeps the sum of 128 labels, the most that a request may name, below 1."""


def label_score(prompt_digest: object, label_ids: Sequence[int], seed: int, applies_softmax: bool) -> float:
    """Return the probability of the first label: among the labels with `applies_softmax`, else in the whole
    vocabulary."""
    weights = {label: math.exp(_logit(prompt_digest, label, seed)) for label in label_ids}
    total = sum(weights.values()) if applies_softmax else LOGIT_NORMALIZER
    return weights[label_ids[0]] / total


def _logit(prompt_digest: object, label: int, seed: int) -> float:
    drawn = blake2b(f"{seed} {prompt_digest!r} {label}".encode(), digest_size=8).digest()
    return -LOGIT_SPREAD * int.from_bytes(drawn, "big") / 2**64


def apply_stops(tokens: Split, ending: Ending, sampling: SamplingParams) -> Answer:
    """Return the answer cut by stop tokens, stop strings and repetition. None of them applies before `min_tokens`."""
    if sampling.repetition is not None:
        tokens, ending = _cut_at_repetition(tokens, ending, sampling, sampling.repetition)
    if sampling.stop_token_ids:
        tokens, ending = _cut_at_stop_token(tokens, ending, sampling, frozenset(sampling.stop_token_ids))
    if not sampling.stop:
        return Answer(tokens.pieces, ending, tokens.pieces, tokens.ids)
    return _cut_at_stop_string(tokens, ending, sampling)


def _cut_at_repetition(
    tokens: Split, ending: Ending, sampling: SamplingParams, repetition: Repetition
) -> tuple[Split, Ending]:
    num_tokens = first_repetition(tokens.ids, repetition)
    if num_tokens is None or not sampling.min_tokens <= num_tokens < tokens.num_tokens:
        return tokens, ending
    return tokens.first(num_tokens), Ending("repetition", STOP_REASON)


def _cut_at_stop_token(
    tokens: Split, ending: Ending, sampling: SamplingParams, stop_ids: frozenset[int]
) -> tuple[Split, Ending]:
    """A stop token is counted; its text is shown only with `include_stop_str_in_output`."""
    # The end marker of an answer that ends by itself is never a stop token, even if the client lists it.
    last = len(tokens.ids) - (ending.finish_reason == "stop")
    for index in range(sampling.min_tokens, last):
        if tokens.ids[index] in stop_ids:
            pieces = [*tokens.pieces[: index + 1]]
            if not sampling.include_stop_str_in_output:
                pieces[-1] = ""
            return Split(tokens.ids[: index + 1], pieces), Ending("stop", tokens.ids[index])
    return tokens, ending


def _cut_at_stop_string(tokens: Split, ending: Ending, sampling: SamplingParams) -> Answer:
    text = "".join(tokens.pieces)
    ends = list(accumulate(map(len, tokens.pieces)))
    match = _first_match(text, ends, sampling)
    kept = len(text)
    if match is not None:
        start, end, stop = match
        ending = Ending("stop", stop)
        num_tokens = bisect_left(ends, end) + 1
        tokens = Split(tokens.ids[:num_tokens], tokens.pieces[:num_tokens])
        kept = end if sampling.include_stop_str_in_output else start
    held_back = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop)) - 1
    shown = [max(0, min(end - held_back, kept)) for end in ends[: tokens.num_tokens]]
    shown[-1] = kept
    texts = [text[start:end] for start, end in zip([0, *shown], shown, strict=False)]
    return Answer(texts, ending, tokens.pieces, tokens.ids)


def _first_match(text: str, ends: list[int], sampling: SamplingParams) -> tuple[int, int, str] | None:
    """Return start, end and text of the stop string that is complete first; the earlier of the list wins a tie.

    A match has to end after the first `min_tokens` tokens.
    """
    not_before = ends[sampling.min_tokens - 1] if sampling.min_tokens else 0
    best: tuple[int, int, str] | None = None
    for stop in sampling.stop:
        start = text.find(stop, max(0, not_before - len(stop) + 1))
        if start >= 0 and (best is None or start + len(stop) < best[1]):
            best = (start, start + len(stop), stop)
    return best


STOP_REASON = "repetition_detected"

FEW_SIZES = 32
MOST_COMPARISONS = 32_768
"""Maximum number of pattern sizes for a separate search of each."""


def is_slow(repetition: Repetition) -> bool:
    """Whether the search for repetition may take more than a few milliseconds."""
    return repetition.max_pattern_size - repetition.min_pattern_size >= FEW_SIZES


def first_repetition(token_ids: Sequence[int], repetition: Repetition) -> int | None:
    """Return how many tokens an answer has when it first ends in a pattern repeated `min_count` times in a row.

    None if it never does. Cost: the number of tokens times its logarithm.
    """
    num_tokens = len(token_ids)
    longest = min(repetition.max_pattern_size, num_tokens // repetition.min_count)
    sizes = range(max(1, repetition.min_pattern_size), longest + 1)
    if len(sizes) * num_tokens <= MOST_COMPARISONS:
        found = (_first_of_size(token_ids, size, repetition.min_count) for size in sizes)
        return min((each for each in found if each is not None), default=None)
    from mockserve.generation.pattern_search import PatternSearch  # needs numpy, which a worker process rarely does

    return PatternSearch(token_ids, repetition.min_count).first(sizes)


def _first_of_size(token_ids: Sequence[int], size: int, min_count: int) -> int | None:
    num_equal = 0
    for index in range(size, len(token_ids)):
        num_equal = num_equal + 1 if token_ids[index] == token_ids[index - size] else 0
        if num_equal >= size * (min_count - 1):
            return index + 1
    return None
