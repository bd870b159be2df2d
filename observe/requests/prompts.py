"""Prompts of a given number of tokens by the server's own counts, or real prompts from a file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

import orjson

from observe.errors import ObserveError
from observe.requests.schedule import Planned
from traces.text_file import read_text

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
    """The text of each prompt, the same for the same seed, whatever the order in which they are requested.

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

    def text_behind(
        self,
        request_id: int,
        repeated: Sequence[tuple[int, int, int]],
        *,
        num_tokens: int,
        prefix_group: str = "",
        prefix_tokens: int = 0,
    ) -> str:
        """A prompt of this many tokens that begins with words of other requests, as `Repeated` has them."""
        words = self._prefix(prefix_group, self.scale.words_inside(prefix_tokens))[:] if prefix_group else []
        num_shared = len(words)
        for number, start, end in repeated:
            begins, ends = (self.scale.words_inside(each - self.scale.tokens_around) for each in (start, end))
            begins = max(num_shared, begins)
            if ends > len(words):
                words += self._own(number, ends - begins)[len(words) - begins :]
        num_own = max(1, self.scale.words(num_tokens) - len(words))
        return " ".join([*words, *self._own(request_id, num_own)])

    def _own(self, request_id: int, count: int) -> list[str]:
        random = Random(f"{self._seed}/request/{request_id}")
        words = random.choices(WORDS, k=min(count, _DISTINCT_WORDS))
        while len(words) < count:
            start = random.randrange(_RIVER_WORDS)
            words += self._river[start : start + count - len(words)]
        return words

    def _make_prefix(self, group: str, count: int) -> list[str]:
        return Random(f"{self._seed}/prefix/{group}").choices(WORDS, k=count)


_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """A prompt, and the number of output tokens if the file has one."""

    text: str
    output_tokens: int | None = None


def read_prompts(path: Path | str) -> list[GivenPrompt]:
    """The prompts of a file, in its order. Raises BlisError.

    Each line of a file that ends in `.jsonl` is an object with `prompt` and perhaps `output_tokens`; its other keys are
    for other programs.
    """
    path = Path(path)
    # Only line feeds end a line: prompts may have any other separator.
    lines = [(number, line.rstrip("\r")) for number, line in enumerate(read_text(path).split("\n"), start=1)]
    filled = [(number, line) for number, line in lines if line.strip()]
    if not filled:
        raise ObserveError(f"{path}: expected a prompt per line, got none")
    if path.suffix != ".jsonl":
        return [GivenPrompt(line) for _, line in filled]
    return [_parsed(f"{path} line {number}", line) for number, line in filled]


def with_prompts(plan: Sequence[Planned], prompts: Sequence[GivenPrompt]) -> list[Planned]:
    """The plan with these prompts in turn, from the first one again after the last one.

    How many tokens they have is only known from answers; until then it is estimated by their characters.
    """
    return [_worded(planned, prompts[place % len(prompts)]) for place, planned in enumerate(plan)]


def _worded(planned: Planned, given: GivenPrompt) -> Planned:
    return replace(
        planned,
        prompt=given.text,
        input_tokens=max(1, round(len(given.text) / _CHARACTERS_PER_TOKEN)),
        output_tokens=given.output_tokens or planned.output_tokens,
    )


def _parsed(place: str, line: str) -> GivenPrompt:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ObserveError(f"{place}: expected a JSON object with the key prompt, {error.msg}") from error
    prompt = entry.get("prompt") if isinstance(entry, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise ObserveError(f"{place}: expected a JSON object with text under the key prompt, got {line[:60]}")
    output_tokens = entry.get("output_tokens")
    if output_tokens is not None and (type(output_tokens) is not int or output_tokens < 1):
        raise ObserveError(f"{place} key output_tokens: expected a whole number above 0, got {output_tokens!r}")
    return GivenPrompt(prompt, output_tokens)
