"""What the model that is not there says: plausible words, one token each, the same for the same seed.

The whole answer is known when a request arrives, so its length, a stop string and the text of every token are too.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import Sampling

MEDIAN_OUTPUT_TOKENS = 200
OUTPUT_TOKENS_SIGMA = 0.7
"""Without a length asked for, answers are log-normal: half are between 125 and 320 tokens."""

_COMMON_WORDS = """
    the of and to a in is that it for was on are as with they at be this from have or by one had not but what all
    were when we there can an your which their said if do will each about how up out them then she many some so these
    would other into has more her two like him see time could no make than first been its who now people my made over
    did down only way find use may water long little very after words called just where most know get through back
    much before go good new write our used me man too any day same right look think also around another came come
    work three word must because does part even place well such here take why things help put years away again off
    went old number great tell men say small every found still between name should home big give air line set own
    under read last never us left end along while might next sound below saw both few those always looked show large
    often asked house world going want school until form food keep feet land side without boy once animal life enough
    took four head above kind began almost live page got earth need far hand high year mother light parts country
    father let night picture being study second soon since white ever paper hard near better best across during today
    however sure knew try told young sun thing whole hear example heard several change answer room sea against top
    turned learn point city play toward five using himself usually money seen car morning body upon family later turn
    move face door cut done group true half red fish plants living black eat short united run book gave order open
    ground cold really table tree course front space inside ago sad early learned strong list cost map test
    """
WORDS = tuple(_COMMON_WORDS.split())
"""Common words of at most seven letters, the most frequent first: the built-in tokenizer has one token for each."""
_WEIGHTS = tuple(accumulate(1 / (rank + 8) for rank in range(len(WORDS))))
_SPACED = tuple(" " + word for word in WORDS)
_CAPITALIZED = {" " + word: " " + word.capitalize() for word in WORDS}


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: `texts[k-1]` is what the client may read when token k arrives; token k may bring no text.

    Joined they are the whole text. `token_texts` are the tokens themselves, before anything was held back or cut.
    """

    texts: Sequence[str]
    ending: Ending
    token_texts: Sequence[str]

    @property
    def num_tokens(self) -> int:
        return len(self.texts)


def compose(random: Random, sampling: Sampling, budget: int, fixed_tokens: int | None = None) -> Answer:
    """An answer of at most `budget` tokens, at least 1. `fixed_tokens` replaces the drawn length.

    An answer that ends by itself spends its last token on the end marker, which has no text, as vLLM counts it.
    """
    num_tokens = fixed_tokens or _natural_length(random)
    num_tokens = max(num_tokens, sampling.min_tokens + 1)
    if sampling.ignore_eos or num_tokens > budget:
        pieces = words(random, budget)
        ending = Ending("length")
    else:
        pieces = [*words(random, num_tokens - 1), ""]
        ending = Ending("stop")
    if not sampling.stop:
        return Answer(pieces, ending, pieces)
    return stopped(pieces, ending, sampling)


def words(random: Random, count: int) -> list[str]:
    """`count` tokens of text: words with the space before them, commas and full stops."""
    pieces: list[str] = []
    while len(pieces) < count:
        length = random.randrange(5, 14)
        sentence = random.choices(_SPACED, cum_weights=_WEIGHTS, k=length)
        sentence[0] = _CAPITALIZED[sentence[0]]
        if length > 9:
            sentence.insert(length // 2, ",")
        pieces += sentence
        pieces.append(".")
    if pieces:
        pieces[0] = pieces[0].lstrip()
    return pieces[:count]


def _natural_length(random: Random) -> int:
    return max(2, round(random.lognormvariate(math.log(MEDIAN_OUTPUT_TOKENS), OUTPUT_TOKENS_SIGMA)))


def stopped(pieces: list[str], ending: Ending, sampling: Sampling) -> Answer:
    """Cut the text at the first stop string, and hold back what could still become one, as vLLM does."""
    text = "".join(pieces)
    ends = list(accumulate(map(len, pieces)))
    match = _first_match(text, ends, sampling)
    kept = len(text)
    if match is not None:
        start, end, stop = match
        ending = Ending("stop", stop)
        pieces = pieces[: bisect_left(ends, end) + 1]
        kept = end if sampling.include_stop_str_in_output else start
    held_back = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop)) - 1
    shown = [max(0, min(end - held_back, kept)) for end in ends[: len(pieces)]]
    shown[-1] = kept
    texts = [text[start:end] for start, end in zip([0, *shown], shown, strict=False)]
    return Answer(texts, ending, pieces)


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
