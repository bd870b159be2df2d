"""Where an answer ends before its time: stop tokens, stop strings, and the text held back while one may be forming."""

from bisect import bisect_left
from itertools import accumulate

from mockserve.content.answer import Answer
from mockserve.content.repetition import STOP_REASON, first_repetition
from mockserve.content.tokens.split import Split
from mockserve.protocol.asked.sampling import Repetition, Sampling
from mockserve.protocol.bodies import Ending


def stopped(said: Split, ending: Ending, sampling: Sampling) -> Answer:
    """What is left of `said` after stop tokens, stop strings and repetition, which count only after `min_tokens`."""
    if sampling.repetition is not None:
        said, ending = _cut_at_repetition(said, ending, sampling, sampling.repetition)
    if sampling.stop_token_ids:
        said, ending = _cut_at_stop_token(said, ending, sampling, frozenset(sampling.stop_token_ids))
    if not sampling.stop:
        return Answer(said.pieces, ending, said.pieces, said.ids)
    return _cut_at_stop_string(said, ending, sampling)


def _cut_at_repetition(said: Split, ending: Ending, sampling: Sampling, wanted: Repetition) -> tuple[Split, Ending]:
    num_tokens = first_repetition(said.ids, wanted)
    if num_tokens is None or not sampling.min_tokens <= num_tokens < said.num_tokens:
        return said, ending
    return said.first(num_tokens), Ending("repetition", STOP_REASON)


def _cut_at_stop_token(
    said: Split, ending: Ending, sampling: Sampling, stop_ids: frozenset[int]
) -> tuple[Split, Ending]:
    """A stop token is counted; its text is shown only with `include_stop_str_in_output`."""
    # The token that ends an answer by itself is no stop token, whatever the client lists.
    last = len(said.ids) - (ending.finish_reason == "stop")
    for index in range(sampling.min_tokens, last):
        if said.ids[index] in stop_ids:
            pieces = [*said.pieces[: index + 1]]
            if not sampling.include_stop_str_in_output:
                pieces[-1] = ""
            return Split(said.ids[: index + 1], pieces), Ending("stop", said.ids[index])
    return said, ending


def _cut_at_stop_string(said: Split, ending: Ending, sampling: Sampling) -> Answer:
    text = "".join(said.pieces)
    ends = list(accumulate(map(len, said.pieces)))
    match = _first_match(text, ends, sampling)
    kept = len(text)
    if match is not None:
        start, end, stop = match
        ending = Ending("stop", stop)
        num_tokens = bisect_left(ends, end) + 1
        said = Split(said.ids[:num_tokens], said.pieces[:num_tokens])
        kept = end if sampling.include_stop_str_in_output else start
    held_back = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop)) - 1
    shown = [max(0, min(end - held_back, kept)) for end in ends[: said.num_tokens]]
    shown[-1] = kept
    texts = [text[start:end] for start, end in zip([0, *shown], shown, strict=False)]
    return Answer(texts, ending, said.pieces, said.ids)


def _first_match(text: str, ends: list[int], sampling: Sampling) -> tuple[int, int, str] | None:
    """Start, end and name of the stop string that is complete first; the order of the list decides ties.

    A match has to end after the first `min_tokens` tokens.
    """
    not_before = ends[sampling.min_tokens - 1] if sampling.min_tokens else 0
    best: tuple[int, int, str] | None = None
    for stop in sampling.stop:
        start = text.find(stop, max(0, not_before - len(stop) + 1))
        if start >= 0 and (best is None or start + len(stop) < best[1]):
            best = (start, start + len(stop), stop)
    return best
