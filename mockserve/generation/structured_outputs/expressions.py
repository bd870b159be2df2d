"""Expressions of a grammar: characters and combinations of expressions."""

import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

PRINTABLE = string.ascii_letters + string.digits + " " + string.punctuation
"""Characters used for a wildcard: the likeliest first, so that the shortest text is an ordinary one."""

SPARE = "éßñ中文日本語ЖΩ€£©\t\n\r" + "".join(map(chr, range(0xA1, 0x250)))
"""Character for a class without printable ones."""

LETTERS = string.ascii_letters
WORD = LETTERS + string.digits + "_"

CLASS_ESCAPES = {"d": string.digits, "w": WORD, "s": " \t\n\r\f\v"}

PROPERTIES = {
    "L": LETTERS,
    "Letter": LETTERS,
    "Alphabetic": LETTERS,
    "Lu": string.ascii_uppercase,
    "Uppercase": string.ascii_uppercase,
    "Uppercase_Letter": string.ascii_uppercase,
    "Ll": string.ascii_lowercase,
    "Lowercase": string.ascii_lowercase,
    "Lowercase_Letter": string.ascii_lowercase,
    "N": string.digits,
    "Number": string.digits,
    "Nd": string.digits,
    "P": ".,;:!?-'()[]{}\"/&@#%*_\\",
    "Punctuation": ".,;:!?-'()[]{}\"/&@#%*_\\",
    "S": "$+<=>^`|~",
    "Symbol": "$+<=>^`|~",
    "Sc": "$",
    "Z": " ",
    "Zs": " ",
    "White_Space": " ",
    "Han": "中文日本語",
    "Script=Han": "中文日本語",
    "Latin": LETTERS,
    "Greek": "ΑΒΓΔΩαβγδω",
    "Cyrillic": "АБВГДабвгд",
}
"""Unicode properties by name, each with some of its characters."""

POSIX = {
    "alpha": LETTERS,
    "digit": string.digits,
    "alnum": LETTERS + string.digits,
    "upper": string.ascii_uppercase,
    "lower": string.ascii_lowercase,
    "punct": string.punctuation,
    "space": " \t\n\r\f\v",
    "xdigit": string.digits + "abcdefABCDEF",
    "word": WORD,
}


def between(first: str, last: str) -> str:
    """Return the characters of a range: the printable ones if it has any, else its first."""
    found = "".join(each for each in PRINTABLE if first <= each <= last)
    return found or "".join(map(chr, range(ord(first), min(ord(last), ord(first) + 63) + 1)))


def without(excluded: str, ranges: list[tuple[str, str]]) -> str:
    """Return characters neither `excluded` nor within a range: the printable ones if there are any."""

    def is_free(each: str) -> bool:
        return each not in excluded and not any(first <= each <= last for first, last in ranges)

    return "".join(filter(is_free, PRINTABLE)) or "".join(filter(is_free, SPARE))


MOST_REPEATS = 8
"""Maximum number of repetitions beyond the minimum, for a part with unlimited repetitions."""

ENDLESS = 1 << 62
"""Length of an expression without a finite match."""

MOST_CHARS = 1 << 17
"""Maximum length of a match; a longer match is cut."""


@dataclass(frozen=True, slots=True)
class Text:
    """A fixed text."""

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
    """A part, at least `least` and at most `most` times; `most` None is unlimited."""

    part: "Expression"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """A reference to the rule of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on what surrounds a place in a text, such as `$` or a look-ahead; it takes no characters.

    `kind` is the sign of an anchor or a boundary, or the mark of a look-around, whose pattern is `part`.
    """

    kind: str
    part: "Expression | None" = None


Expression: TypeAlias = Text | Chars | Series | Choice | Repeat | Rule | Assertion

EMPTY = Text("")


@dataclass(frozen=True, slots=True)
class Grammar:
    """A start and the rules that it uses, directly or not."""

    start: Expression
    rules: Mapping[str, Expression] = field(default_factory=dict)

    @property
    def can_end(self) -> bool:
        """Whether any text matches."""
        return _shortest(self.start, _shortest_of_rules(self)) < ENDLESS

    @property
    def can_begin(self) -> bool:
        """Whether some match has a first character, even if no match is finite."""
        found: set[str] = set()
        num_found = -1
        while num_found < len(found):
            num_found = len(found)
            found |= {name for name, expression in self.rules.items() if _begins(expression, found)}
        return _begins(self.start, found)


def matching_text(grammar: Grammar, random: Random, soft_limit_chars: int) -> str:
    """Return a matching text of about `soft_limit_chars` characters at most, if there is one; 0 gives the shortest.

    A text of more than `MOST_CHARS` characters is cut. The time is linear in the length of the text.
    """
    writer = _Writer(grammar, random, soft_limit_chars)
    writer.write()
    return "".join(writer.pieces)


class _Writer:
    """Writes a match from left to right with a stack of pending expressions, so that deep rules need no deep recursion.

    `soft_limit_chars` is the number of characters left for more than the shortest way to the end.
    """

    def __init__(self, grammar: Grammar, random: Random, soft_limit_chars: int) -> None:
        self._rules = grammar.rules
        self._of_rules = _shortest_of_rules(grammar)
        self._random = random
        self._soft_limit_chars = soft_limit_chars - _shortest(grammar.start, self._of_rules)
        self._pending: list[Expression] = [grammar.start]
        self._num_chars = 0
        self.pieces: list[str] = []

    def write(self) -> None:
        while self._pending and self._num_chars < MOST_CHARS:
            self._expand(self._pending.pop())

    def _expand(self, expression: Expression) -> None:
        match expression:
            case Text(text):
                self._num_chars += max(1, len(text))
                self.pieces.append(text)
            case Chars(chars):
                self._num_chars += 1
                self.pieces.append(self._random.choice(chars) if self._soft_limit_chars > 0 else chars[0])
            case Series(parts):
                self._pending.extend(reversed(parts))
            case Choice(options):
                self._pending.append(self._chosen(options))
            case Repeat(part, least, most):
                count = min(self._count(part, least, most), MOST_CHARS)
                self._pending.extend([part] * count)
            case Rule(name):
                self._num_chars += 1  # a rule that only leads back to itself ends, too
                self._pending.append(self._rules[name])
            case Assertion():
                pass

    def _chosen(self, options: Sequence[Expression]) -> Expression:
        lengths = [_shortest(each, self._of_rules) for each in options]
        least = min(lengths)
        fitting = [index for index, length in enumerate(lengths) if length - least <= self._soft_limit_chars]
        chosen = self._random.choice(fitting) if fitting else lengths.index(least)
        self._soft_limit_chars -= lengths[chosen] - least
        return options[chosen]

    def _count(self, part: Expression, least: int, most: int | None) -> int:
        length = max(1, _shortest(part, self._of_rules))
        highest = least + MOST_REPEATS if most is None else min(most, least + MOST_REPEATS)
        count = self._random.randint(least, max(least, min(highest, least + self._soft_limit_chars // length)))
        self._soft_limit_chars -= (count - least) * length
        return count


def _begins(expression: Expression, rules: Collection[str]) -> bool:
    """Whether a match can begin with a character; `rules` are the rules for which that is already known."""
    match expression:
        case Text(text) | Chars(text):
            return bool(text)
        case Series(parts):
            for part in parts:
                if _begins(part, rules):
                    return True
                if not (part == EMPTY or (isinstance(part, Repeat) and part.least == 0)):
                    return False
            return False
        case Choice(options):
            return any(_begins(each, rules) for each in options)
        case Repeat(part):
            return _begins(part, rules)
        case Rule(name):
            return name in rules
        case Assertion():
            return False


def _shortest(expression: Expression, of_rules: Mapping[str, int]) -> int:
    """The length of the shortest match, in characters and rules used."""
    match expression:
        case Text(text):
            return len(text)
        case Chars():
            return 1
        case Series(parts):
            return _total(_shortest(each, of_rules) for each in parts)
        case Choice(options):
            return min((_shortest(each, of_rules) for each in options), default=ENDLESS)
        case Repeat(part, least, _):
            length = _shortest(part, of_rules)
            return ENDLESS if length == ENDLESS and least else _total([least * max(1, length) if least else 0])
        case Rule(name):
            return _total([1, of_rules[name]])
        case Assertion():
            return 0


def _total(lengths: Iterable[int]) -> int:
    """Return the sum of lengths: `ENDLESS` if one of them is, otherwise less than `ENDLESS`."""
    total = 0
    for length in lengths:
        if length == ENDLESS:
            return ENDLESS
        total += length
    return min(total, ENDLESS - 1)


def _shortest_of_rules(grammar: Grammar) -> dict[str, int]:
    """Return the length of the shortest match of every rule, computed by fixed-point iteration."""
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
        case Text() | Chars() | Assertion():
            pass
