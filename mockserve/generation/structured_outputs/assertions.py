"""Texts for patterns with assertions: anchors, word boundaries, look-ahead and look-behind."""

from collections.abc import Iterable, Iterator, Set
from random import Random

from mockserve.generation.structured_outputs.expressions import (
    WORD,
    Assertion,
    Chars,
    Choice,
    Expression,
    Grammar,
    Repeat,
    Rule,
    Series,
    Text,
    matching_text,
)

_ANCHORS = ("^", "$")
"""Assertions that a text that matches as a whole always meets, unless a look-around contains them."""


def asserts_more_than_ends(expression: Expression) -> bool:
    """Whether a text may break an assertion of the pattern although it was written from its characters."""
    return any(each.kind not in _ANCHORS for each in _assertions(expression))


def contains_match(expression: Expression, text: str) -> bool:
    """Whether the pattern matches within the text, in time polynomial in the length of both."""
    return bool(_Matcher(text).ends(expression, range(len(text) + 1)))


def asserted_text(expression: Expression, random: Random, soft_limit_chars: int, is_joined: bool) -> str:
    """Return a text written from the pattern's characters; the caller checks whether it meets the assertions.

    With `is_joined` the text begins with what each look-ahead demands.
    """
    demanded: list[str] = []
    if is_joined:
        parts = [each.part for each in _assertions(expression) if each.kind == "=" and each.part is not None]
        demanded = [matching_text(Grammar(each), random, 0) for each in parts]
        random.shuffle(demanded)
    return "".join(demanded) + matching_text(Grammar(expression), random, soft_limit_chars)


def _assertions(expression: Expression) -> Iterator[Assertion]:
    match expression:
        case Assertion():
            yield expression
        case Series(parts) | Choice(parts):
            for each in parts:
                yield from _assertions(each)
        case Repeat(part):
            yield from _assertions(part)
        case Text() | Chars() | Rule():
            pass


class _Matcher:
    """Finds the places of one text at which matches end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known: dict[tuple[int, int], Set[int]] = {}

    def ends(self, expression: Expression, starts: Iterable[int]) -> set[int]:
        """Return all places at which a match that begins at one of `starts` may end."""
        return {end for start in starts for end in self._ends(expression, start)}

    def _ends(self, expression: Expression, start: int) -> Set[int]:
        key = id(expression), start
        if key not in self._known:
            self._known[key] = self._found(expression, start)
        return self._known[key]

    def _found(self, expression: Expression, start: int) -> Set[int]:
        match expression:
            case Text(text):
                return {start + len(text)} if self._text.startswith(text, start) else set()
            case Chars(chars):
                return {start + 1} if start < len(self._text) and self._text[start] in chars else set()
            case Series(parts):
                found: Set[int] = {start}
                for part in parts:
                    found = self.ends(part, found)
                return found
            case Choice(options):
                return {end for option in options for end in self._ends(option, start)}
            case Repeat(part, least, most):
                return self._repeated(part, least, most, start)
            case Assertion(kind, part):
                return {start} if self._holds(kind, part, start) else set()
            case Rule():
                raise TypeError("a pattern has no rules")

    def _repeated(self, part: Expression, least: int, most: int | None, start: int) -> Set[int]:
        # Beyond one repetition for each character, more of them find no further places.
        enough = len(self._text) + 1
        fresh = {start}
        for _ in range(min(least, enough)):
            fresh = self.ends(part, fresh)
        found = set(fresh)
        for _ in range(enough if most is None else min(most - least, enough)):
            fresh = self.ends(part, fresh) - found
            if not fresh:
                break
            found |= fresh
        return found

    def _holds(self, kind: str, part: Expression | None, at: int) -> bool:
        if part is None:
            return self._is_edge(kind, at)
        if kind in ("=", "!"):
            return bool(self._ends(part, at)) == (kind == "=")
        return any(at in self._ends(part, start) for start in range(at + 1)) == (kind == "<=")

    def _is_edge(self, kind: str, at: int) -> bool:
        if kind == "^":
            return at == 0
        if kind == "$":
            return at == len(self._text)
        before = at > 0 and self._text[at - 1] in WORD
        after = at < len(self._text) and self._text[at] in WORD
        return (before != after) == (kind == "b")
