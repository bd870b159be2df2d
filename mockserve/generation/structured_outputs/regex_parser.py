"""Parser of regular expressions to expressions. Errors have the messages of vLLM's parser."""

import re
from collections.abc import Callable

from mockserve.generation.structured_outputs.expressions import (
    CLASS_ESCAPES,
    EMPTY,
    POSIX,
    PRINTABLE,
    PROPERTIES,
    Assertion,
    Chars,
    Choice,
    Expression,
    Repeat,
    Series,
    Text,
    between,
    without,
)

MAX_NESTED = 200

CONTROL_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
ANCHORS = {"A": "^", "z": "$", "Z": "$", "b": "b", "B": "B"}
LOOK_AROUND = ("=", "!", "<=", "<!")
_REPETITION = re.compile(r"\{\d+(,\d*)?\}|\{,\d+\}")


class RegexError(ValueError):
    """An invalid regular expression. `str()` shows the position, in the format of vLLM's parser."""

    def __init__(self, pattern: str, reason: str, start: int, end: int) -> None:
        marks = " " * start + "^" * max(1, end - start)
        super().__init__(f"regex parse error:\n    {pattern}\n    {marks}\nerror: {reason}")


def parse_regex(pattern: str, keeps_assertions: bool = False) -> Expression:
    """Parse a regular expression. Raises RegexError for invalid patterns, look-around and backreferences.

    Anchors and word boundaries match nothing, since a text is written as a whole. With `keeps_assertions` they and
    look-around are parts of the expression, and a brace that begins no repetition is a character, as in ECMAScript.
    """
    return _Parser(pattern, keeps_assertions).parse()


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, pattern: str, keeps_assertions: bool) -> None:
        self._pattern = pattern
        self._keeps_assertions = keeps_assertions
        self._at = 0
        self._depth = 0

    def parse(self) -> Expression:
        expression = self._alternatives()
        if self._at < len(self._pattern):
            raise self._error("unopened group", self._at, self._at + 1)
        return expression

    def _alternatives(self) -> Expression:
        options = [self._series()]
        while self._peek() == "|":
            self._at += 1
            options.append(self._series())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _series(self) -> Expression:
        parts: list[Expression] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _repeated(self, part: Expression) -> Expression:
        while self._is_at_repetition():
            bounds = self._bounds()
            if self._peek() and self._peek() in "?+":  # lazy or possessive: the same texts match
                self._at += 1
            part = Repeat(part, *bounds)
        return part

    def _is_at_repetition(self) -> bool:
        sign = self._peek()
        if sign == "{" and self._keeps_assertions:
            return _REPETITION.match(self._pattern, self._at) is not None
        return bool(sign) and sign in "*+?{"

    def _bounds(self) -> tuple[int, int | None]:
        sign = self._pattern[self._at]
        start = self._at
        self._at += 1
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        end = self._pattern.find("}", self._at)
        if end < 0:
            raise self._error("unclosed counted repetition", start, len(self._pattern))
        first, comma, last = (each.strip() for each in self._pattern[self._at : end].partition(","))
        self._at = end + 1
        if not first.isdecimal() and not (comma and last.isdecimal() and not first):
            reason = "repetition quantifier expects a valid decimal"
            raise self._error(reason, start, self._at)
        if last and not last.isdecimal():
            raise self._error("repetition quantifier expects a valid decimal", start, self._at)
        least = int(first or 0)
        most = (int(last) if last else None) if comma else least
        if most is not None and most < least:
            raise self._error("invalid repetition count range, the start must be <= the end", start, self._at)
        return least, most

    def _atom(self) -> Expression:
        sign = self._next()
        if sign in "*+?":
            raise self._error("repetition operator missing expression", self._at - 1, self._at)
        if sign in "^$":
            return Assertion(sign) if self._keeps_assertions else EMPTY
        readers: dict[str, Callable[[], Expression]] = {"(": self._group, "[": self._class, "\\": self._escape}
        if sign == ".":
            return Chars(PRINTABLE)
        return readers[sign]() if sign in readers else Text(sign)

    def _group(self) -> Expression:
        start = self._at - 1
        self._depth += 1
        if self._depth > MAX_NESTED:
            raise self._error(
                f"exceed the maximum number of nested parentheses/brackets ({MAX_NESTED})", start, start + 1
            )
        mark = self._look_around() if self._keeps_assertions else None
        if mark is None and self._peek() == "?" and not self._group_head(start):
            self._depth -= 1
            return EMPTY
        expression = self._alternatives()
        if self._peek() != ")":
            raise self._error("unclosed group", start, start + 1)
        self._at += 1
        self._depth -= 1
        return expression if mark is None else Assertion(mark, expression)

    def _look_around(self) -> str | None:
        """Parse the mark of a look-around, if there is one."""
        mark = next((each for each in LOOK_AROUND if self._pattern.startswith(f"?{each}", self._at)), None)
        self._at += 0 if mark is None else 1 + len(mark)
        return mark

    def _group_head(self, start: int) -> bool:
        """Parse the part after `(?`; return whether the group has a content, unlike one that only sets flags."""
        rest = self._pattern[self._at + 1 :]
        for mark in LOOK_AROUND:
            if rest.startswith(mark):
                reason = "look-around, including look-ahead and look-behind, is not supported"
                raise self._error(reason, start, self._at + 1 + len(mark))
        if rest.startswith(("P<", "<")):
            end = self._pattern.find(">", self._at)
            if end < 0:
                raise self._error("unclosed capture group name", len(self._pattern), len(self._pattern))
            self._at = end + 1
            return True
        flags = len(rest) - len(rest.lstrip("imsuxU-"))
        closing = rest[flags : flags + 1]
        if closing not in (":", ")") or not closing:
            at = self._at + 1 + flags
            raise self._error("unrecognized flag", at, at + 1)
        self._at += flags + 2
        return closing == ":"

    def _escape(self) -> Expression:
        if self._keeps_assertions and self._peek() and self._peek() in ANCHORS:
            return Assertion(ANCHORS[self._next()])
        chars, is_class = self._escaped()
        return Chars(chars) if is_class else Text(chars)

    def _escaped(self) -> tuple[str, bool]:
        """Parse the characters after a backslash: return them, and whether they are a class."""
        start = self._at - 1
        if self._at >= len(self._pattern):
            raise self._error("incomplete escape sequence, reached end of pattern prematurely", start, self._at)
        sign = self._next()
        if sign.lower() in CLASS_ESCAPES:
            chars = CLASS_ESCAPES[sign.lower()]
            return (chars[0] if sign == "s" else chars) if sign.islower() else without(chars, []), True
        if sign in "pP":
            return self._property(start, negated=sign == "P"), True
        if sign in "xuU":
            return self._code_point(start), False
        if sign.isdecimal() and sign != "0":
            raise self._error("backreferences are not supported", start, self._at)
        if sign in ANCHORS:
            return "", False
        if sign.isalnum() and sign not in CONTROL_ESCAPES:
            raise self._error("unrecognized escape sequence", start, self._at)
        return CONTROL_ESCAPES.get(sign, sign), False

    def _property(self, start: int, negated: bool) -> str:
        if self._peek() == "{":
            end = self._pattern.find("}", self._at)
            name = self._pattern[self._at + 1 : end] if end > 0 else ""
            self._at = end + 1 if end > 0 else len(self._pattern)
        else:
            name = self._next() if self._peek() else ""
        if name.startswith("^"):
            name, negated = name[1:], not negated
        chars = PROPERTIES.get(name) or PROPERTIES.get(name.rpartition("=")[2])
        if chars is None:
            raise self._error("Unicode property not found", start, self._at)
        return without(chars, []) if negated else chars

    def _code_point(self, start: int) -> str:
        sign = self._pattern[self._at - 1]
        if self._peek() == "{":
            end = self._pattern.find("}", self._at)
            digits = self._pattern[self._at + 1 : end] if end > 0 else ""
            self._at = end + 1 if end > 0 else len(self._pattern)
        else:
            digits = self._pattern[self._at : self._at + {"x": 2, "u": 4, "U": 8}[sign]]
            self._at += len(digits)
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise self._error("invalid hexadecimal digit", start, self._at) from None

    def _class(self) -> Expression:
        start = self._at - 1
        negated = self._peek() == "^"
        self._at += negated
        chars: list[str] = []
        ranges: list[tuple[str, str]] = []
        first = True
        while self._peek() != "]" or first:
            if not self._peek():
                raise self._error("unclosed character class", start, start + 1)
            first = False
            self._class_item(chars, ranges)
        self._at += 1
        if negated:
            return Chars(without("".join(chars), ranges))
        found = "".join(chars) + "".join(between(*each) for each in ranges)
        return Chars("".join(dict.fromkeys(found)))

    def _class_item(self, chars: list[str], ranges: list[tuple[str, str]]) -> None:
        start = self._at
        if self._pattern.startswith("[:", start) and (end := self._pattern.find(":]", start)) > 0:
            self._at = end + 2
            chars.append(POSIX.get(self._pattern[start + 2 : end].lstrip("^"), ""))
            return
        low, is_class = self._class_char()
        if is_class or self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            chars.append(low)
            return
        self._at += 1
        high, is_class = self._class_char()
        if is_class:
            chars += [low, "-", high]
        elif high < low:
            reason = "invalid character class range, the start must be <= the end"
            raise self._error(reason, start, self._at)
        else:
            ranges.append((low, high))

    def _class_char(self) -> tuple[str, bool]:
        sign = self._next()
        if sign != "\\":
            return sign, False
        if self._peek() == "b":  # a backspace, within brackets
            self._at += 1
            return "\b", False
        if self._peek() == "s":
            self._at += 1
            return CLASS_ESCAPES["s"], True
        return self._escaped()

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]

    def _error(self, reason: str, start: int, end: int) -> RegexError:
        return RegexError(self._pattern, reason, start, end)
