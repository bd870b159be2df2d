"""Expressions that texts can match: what regular expressions and grammars have in common, and how to write a match."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

MOST_REPEATS = 8
"""How often a part that may come any number of times comes at most, beyond its least number."""

ENDLESS = 1 << 17
"""The length of what can never end, and of what is too long to write."""


@dataclass(frozen=True, slots=True)
class Text:
    """This text."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One of these characters."""

    chars: str


@dataclass(frozen=True, slots=True)
class Series:
    """One part after another."""

    parts: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these."""

    options: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part, at least `least` times; without `most` any number of times."""

    part: "Expression"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """What the rule of this name says."""

    name: str


Expression: TypeAlias = Text | Chars | Series | Choice | Repeat | Rule

EMPTY = Text("")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A start and the rules that it uses, directly or not."""

    start: Expression
    rules: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def can_end(self) -> bool:
        """Whether any text of less than a hundred thousand characters matches."""
        return _shortest(self.start, _shortest_of_rules(self)) < ENDLESS


def matching_text(grammar: Grammar, random: Random, room: int) -> str:
    """A text that matches, of about `room` characters at most if there is one so short; 0 gives the shortest.

    Linear in the length of the text.
    """
    writer = _Writer(grammar, random, room)
    writer.write()
    return "".join(writer.pieces)


class _Writer:
    """Writes left to right with a stack of what is still to come, so that deep rules need no deep recursion.

    `room` is what is left for more than the shortest way to the end.
    """

    def __init__(self, grammar: Grammar, random: Random, room: int) -> None:
        self._rules = grammar.rules
        self._of_rules = _shortest_of_rules(grammar)
        self._random = random
        self._room = room - _shortest(grammar.start, self._of_rules)
        self._pending: list[Expression] = [grammar.start]
        self.pieces: list[str] = []

    def write(self) -> None:
        while self._pending:
            self._expand(self._pending.pop())

    def _expand(self, expression: Expression) -> None:
        match expression:
            case Text(text):
                self.pieces.append(text)
            case Chars(chars):
                self.pieces.append(self._random.choice(chars) if self._room > 0 else chars[0])
            case Series(parts):
                self._pending.extend(reversed(parts))
            case Choice(options):
                self._pending.append(self._chosen(options))
            case Repeat(part, least, most):
                self._pending.extend([part] * self._count(part, least, most))
            case Rule(name):
                self._pending.append(self._rules[name])

    def _chosen(self, options: Sequence[Expression]) -> Expression:
        lengths = [_shortest(each, self._of_rules) for each in options]
        least = min(lengths)
        fitting = [index for index, length in enumerate(lengths) if length - least <= self._room]
        chosen = self._random.choice(fitting) if fitting else lengths.index(least)
        self._room -= lengths[chosen] - least
        return options[chosen]

    def _count(self, part: Expression, least: int, most: int | None) -> int:
        length = max(1, _shortest(part, self._of_rules))
        highest = least + MOST_REPEATS if most is None else min(most, least + MOST_REPEATS)
        count = self._random.randint(least, max(least, min(highest, least + self._room // length)))
        self._room -= (count - least) * length
        return count


def _shortest(expression: Expression, of_rules: Mapping[str, int]) -> int:
    """The length of the shortest match, in characters and rules used."""
    match expression:
        case Text(text):
            return len(text)
        case Chars():
            return 1
        case Series(parts):
            return min(ENDLESS, sum(_shortest(each, of_rules) for each in parts))
        case Choice(options):
            return min(_shortest(each, of_rules) for each in options)
        case Repeat(part, least, _):
            return min(ENDLESS, least * max(1, _shortest(part, of_rules)))
        case Rule(name):
            return min(ENDLESS, 1 + of_rules[name])


def _shortest_of_rules(grammar: Grammar) -> dict[str, int]:
    """The shortest match of every rule, found by letting short ones shorten those that use them."""
    found = dict.fromkeys(grammar.rules, ENDLESS)
    changed = True
    while changed:
        changed = False
        for name, expression in grammar.rules.items():
            length = _shortest(expression, found)
            if length < found[name]:
                found[name] = length
                changed = True
    return found


def rules_used(expression: Expression) -> Iterator[str]:
    """The names of the rules that an expression mentions."""
    match expression:
        case Rule(name):
            yield name
        case Series(parts) | Choice(parts):
            for each in parts:
                yield from rules_used(each)
        case Repeat(part):
            yield from rules_used(part)
        case Text() | Chars():
            pass
