"""Prompts of a given number of tokens, for a tokenizer known only through the server's token counts."""

from dataclasses import dataclass
from functools import cache
from random import Random

# Short, common words: almost every tokenizer has each of them, with the space before it, as one token.
_TEXT = """
    time year people way day man thing woman life child world school state family group country hand part place case
    week company system program question work night point home water room mother area money story fact month lot right
    book eye job word business side kind head house service friend father power hour game line end member law car city
    name team minute idea body back face others level office door health person art war history party result change
    morning reason girl boy moment air force food land tree river music paper light table street stone
    road song fire ship
"""
WORDS = tuple(_TEXT.split())

_RIVER_WORDS = 1 << 16
_DISTINCT_WORDS = 16


@dataclass(frozen=True, slots=True)
class TokenScale:
    """How words become tokens: so many for each, and so many around them (chat template, start of text)."""

    tokens_per_word: float = 1.0
    tokens_around: float = 0.0

    def words(self, tokens: int) -> int:
        """How many words make a whole prompt of this many tokens, at least one."""
        return max(1, self.words_inside(tokens - self.tokens_around))

    def words_inside(self, tokens: float) -> int:
        """How many words make this many tokens in the middle of a prompt."""
        return max(0, round(tokens / self.tokens_per_word))


def calibration_text(num_rounds: int) -> str:
    """All the words, so many times over."""
    return " ".join(WORDS * num_rounds)


def scale_from_counts(once: int | None, twice: int | None) -> TokenScale | None:
    """The scale behind what the server counted for one and for two rounds of all the words.

    The difference is free of what surrounds the words; without the second count they are taken as one. None when
    the result is outside 1 to 3 tokens per word, which only a wrong count explains.
    """
    if once is None:
        return None
    num_words = len(WORDS)
    scale = TokenScale(once / num_words)
    if twice is not None:
        scale = TokenScale((twice - once) / num_words, max(0, 2 * once - twice))
    return scale if 1 <= scale.tokens_per_word <= 3 else None


class PromptBook:
    """The text of each prompt, the same for the same seed, whatever the order in which they are asked for.

    A prompt begins with words of its own, so that none shares the blocks of a prefix cache with another except
    through a prefix group; the rest is cut from one long random text, which costs next to nothing.
    """

    def __init__(self, seed: int, scale: TokenScale) -> None:
        self._seed = seed
        self.scale = scale
        self._river = Random(f"{seed}/river").choices(WORDS, k=_RIVER_WORDS)
        self._prefix = cache(self._make_prefix)

    def text(self, request_id: int, *, input_tokens: int, prefix_group: str = "", prefix_tokens: int = 0) -> str:
        """The prompt of one request: the shared start of its group, then `input_tokens` of its own."""
        if not prefix_group:
            return " ".join(self._own(request_id, self.scale.words(input_tokens)))
        num_shared = self.scale.words_inside(prefix_tokens)
        num_own = max(1, self.scale.words(prefix_tokens + input_tokens) - num_shared)
        return " ".join([*self._prefix(prefix_group, num_shared), *self._own(request_id, num_own)])

    def _own(self, request_id: int, count: int) -> list[str]:
        random = Random(f"{self._seed}/request/{request_id}")
        words = random.choices(WORDS, k=min(count, _DISTINCT_WORDS))
        while len(words) < count:
            start = random.randrange(_RIVER_WORDS)
            words += self._river[start : start + count - len(words)]
        return words

    def _make_prefix(self, group: str, count: int) -> list[str]:
        return Random(f"{self._seed}/prefix/{group}").choices(WORDS, k=count)
