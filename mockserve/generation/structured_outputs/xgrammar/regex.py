"""Regular expressions with the rules of xgrammar: patterns of its automaton, and the conversion of others to EBNF."""

import re
import string
from collections.abc import Callable

from mockserve.generation.structured_outputs.xgrammar.features import XgrammarError

MAX_REPEAT_DIGITS = 9

_CLASS = r"\[\^?(?:[^\]\\]|\\.)*\]"
_CODE_POINT = r"x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|c[A-Za-z]"
_ESCAPE = rf"\\(?:{_CODE_POINT}|[^xucbBpPk1-9])"
_REPEAT = r"\{ *(\d+) *(?:(,) *(\d*) *)?\}"
_TOKEN = re.compile(
    rf"(?P<class>{_CLASS})|(?P<lookahead>\(\?[=!])|(?P<open>\(\?:|\(\?P?<\w+>|\((?!\?))|(?P<close>\))|(?P<or>\|)"
    rf"|(?P<anchor>[\^$])|(?P<quantifier>[*+?]\??|(?P<repeat>{_REPEAT})\??)|(?P<escape>{_ESCAPE})|(?P<char>[^\\\[\](){{*+?|])"
)
_UNIT = re.compile(rf"\\(?:{_CODE_POINT}|[^xucBpPk1-9])|[^\\]")
_SETS = ("\\d", "\\D", "\\w", "\\W", "\\s", "\\S")


def is_pattern(pattern: str) -> bool:
    """Whether the automaton of `pattern` can be built and accepts any text that JSON strings can contain unescaped.

    Look-ahead is ignored.
    """
    if not all(" " <= each <= "~" for each in pattern):
        return False
    rest = pattern.removeprefix("(?i)")
    depths = [False]
    at = 0
    while at < len(rest):
        token = _TOKEN.match(rest, at)
        if token is None or not _is_supported(token, depths):
            return False
        at = token.end()
        if token.lastgroup == "lookahead" or token.group("lookahead"):
            at = _end_of_lookahead(rest, at)
            if at < 0:
                return False
    return len(depths) == 1


def _is_supported(token: re.Match[str], depths: list[bool]) -> bool:
    """Whether a token is allowed at this position. `depths` has a value for each open group: whether it can be
    repeated."""
    if token.group("open"):
        depths.append(False)
        return True
    if token.group("close"):
        depths.pop()
        if not depths:
            return False
        depths[-1] = True
        return True
    if token.group("or"):
        depths[-1] = False
        return True
    if token.group("anchor"):
        return True
    if token.group("quantifier"):
        return depths[-1] and (token.group("repeat") is None or _is_repeat(token.group("repeat")))
    depths[-1] = True
    if token.group("class"):
        return _is_class(token.group("class"))
    return token.group() not in ('"', "\\\\", '\\"')  # such a character cannot stand in a JSON string unescaped


def _is_repeat(text: str) -> bool:
    match = re.fullmatch(_REPEAT, text)
    if match is None or any(len(each or "") > MAX_REPEAT_DIGITS for each in (match[1], match[3])):
        return False
    return not match[3] or int(match[1]) <= int(match[3])


def _is_class(text: str) -> bool:
    inner = text[1:-1].removeprefix("^")
    if not inner:
        return False
    at = 0
    while at < len(inner):
        low = _UNIT.match(inner, at)
        if low is None:
            return False
        at = low.end()
        if low.group() in _SETS or inner[at : at + 1] != "-" or at + 1 >= len(inner):
            continue
        high = _UNIT.match(inner, at + 1)
        if high is None or high.group() in _SETS or _value(high.group()) < _value(low.group()):
            return False
        at = high.end()
    return True


def _value(unit: str) -> int:
    escapes = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7, "e": 27, "0": 0, "b": 8}
    if unit[0] != "\\":
        return ord(unit)
    if unit[1] in "xu" and len(unit) > 2:
        return int(unit[2:].strip("{}"), 16)
    if unit[1] == "c":
        return ord(unit[2]) & 0x1F
    return escapes.get(unit[1], ord(unit[1]))


def _end_of_lookahead(pattern: str, at: int) -> int:
    """Return the end of the group of a look-ahead, or -1."""
    depth = 1
    while at < len(pattern) and depth:
        if pattern[at] == "\\":
            at += 2
            continue
        if pattern[at] == "[":
            found = re.compile(_CLASS).match(pattern, at)
            if found is None:
                return -1
            at = found.end()
            continue
        depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        at += 1
    return at if depth == 0 else -1


PLACE = "regex_converter.cc:83"

ESCAPES = {
    "'": "'",
    '"': '"',
    "?": "?",
    "\\": "\\",
    "/": "/",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "0": "\0",
    "e": "\x1b",
}
"""Characters written as a backslash and one letter or sign, in EBNF strings as in regular expressions."""

SYNTAX_CHARS = "^$.*+?\\()[]{}|/"
_PRINTED_ESCAPES = {**{value: f"\\{name}" for name, value in ESCAPES.items() if name != "/"}}

_CLASSES = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[a-zA-Z0-9_]",
    "W": "[^a-zA-Z0-9_]",
    "s": r"[\f\n\r\t\v\u0020\u00a0]",
    "S": r"[^\f\n\r\t\v\u0020\u00a0]",
}
_CLASSES_IN_BRACKETS = {
    "d": "0-9",
    "D": r"\x00-\x2F\x3A-\U0010FFFF",
    "w": "a-zA-Z0-9_",
    "W": r"\x00-\x2F\x3A-\x40\x5B-\x5E\x60\x7B-\U0010FFFF",
    "s": r"\f\n\r\t\v\u0020\u00a0",
    "S": r"\x00-\x08\x0E-\x1F\x21-\x9F\xA1-\U0010FFFF",
}
_UNSUPPORTED_ESCAPES = {
    **dict.fromkeys("123456789k", "Backreference is not supported yet."),
    **dict.fromkeys("pP", "Unicode character class escape sequence is not supported yet."),
    **dict.fromkeys("bB", "Word boundary is not supported yet."),
}
_ANY_CHARACTER = r"[\u0000-\U0010FFFF]"


def regex_to_ebnf(pattern: str) -> str:
    """Return the body of an EBNF rule that is equivalent to `pattern`.

    Raises XgrammarError for syntax that xgrammar does not support.
    """
    return _Converter(pattern).convert()


def escaped(code_point: int) -> str:
    """A character as EBNF strings write it."""
    sign = chr(code_point) if code_point <= 0x10FFFF else ""
    if sign in _PRINTED_ESCAPES:
        return _PRINTED_ESCAPES[sign]
    if 0x20 <= code_point <= 0x7E:
        return sign
    if code_point <= 0xFF:
        return f"\\x{code_point:02x}"
    return f"\\u{code_point:04x}" if code_point <= 0xFFFF else f"\\U{code_point:08x}"


def hex_prefix(text: str, most: int) -> str:
    """The hexadecimal digits that `text` begins with, `most` of them at most."""
    count = 0
    while count < min(most, len(text)) and text[count] in string.hexdigits:
        count += 1
    return text[:count]


def escape_at(text: str, at: int, also: str) -> tuple[int, int] | None:
    """Return the code point and length of the escape sequence at a backslash; None for an unknown one.

    The signs in `also` may be escaped, too.
    """
    sign = text[at + 1 : at + 2]
    if sign and (sign in also or sign in ESCAPES):
        return ord(sign if sign in also else ESCAPES[sign]), 2
    if sign == "x":
        digits = hex_prefix(text[at + 2 :], 16)
        return (int(digits, 16), 2 + len(digits)) if digits else None
    length = {"u": 4, "U": 8}.get(sign, 0)
    digits = hex_prefix(text[at + 2 :], length)
    return (int(digits, 16), 2 + length) if length and len(digits) == length else None


class _Converter:
    """One pass over a pattern from left to right. Positions in errors count characters from 1."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._segments: list[str] = []
        self._readers: dict[str, Callable[[], None]] = {
            "[": lambda: self._segments.append(self._class()),
            "(": self._open,
            ")": self._close,
            "|": self._alternative,
            "\\": lambda: self._segments.append(self._escape()),
            **dict.fromkeys("*+?{", self._quantifier),
        }

    def convert(self) -> str:
        while self._at < len(self._pattern):
            sign = self._pattern[self._at]
            if sign in "^$":  # anchors match the edges of the whole text, and are ignored elsewhere
                self._at += 1
            elif sign in self._readers:
                self._readers[sign]()
            else:
                self._segments.append(_ANY_CHARACTER if sign == "." else f'"{escaped(ord(sign))}"')
                self._at += 1
        if self._depth:
            raise self._error("The parenthesis is not closed.")
        if not self._segments or self._last_is("|"):
            self._segments.append('""')
        return " ".join(self._segments)

    def _last_is(self, signs: str) -> bool:
        return bool(self._segments) and self._segments[-1][-1] in signs

    def _peek(self, ahead: int = 0) -> str:
        return self._pattern[self._at + ahead : self._at + ahead + 1]

    def _open(self) -> None:
        self._at += 1
        self._depth += 1
        self._segments.append("(")
        if self._peek() == "?":
            self._at += 1
            self._group_modifier()

    def _group_modifier(self) -> None:
        sign, next_sign = self._peek(), self._peek(1)
        if not sign:
            raise self._error("Group modifier is not finished.")
        if sign in "=!":
            raise self._error("Lookahead is not supported yet.")
        if sign == "<" and next_sign and next_sign in "=!":
            raise self._error("Lookbehind is not supported yet.")
        if sign not in ":<":
            raise self._error("Group modifier flag is not supported yet.")
        self._at += 1
        if sign == "<":
            while self._peek() and self._peek() in string.ascii_letters:
                self._at += 1
            if self._peek() != ">":
                raise self._error("Invalid named capturing group.")
            self._at += 1

    def _close(self) -> None:
        if not self._depth:
            raise self._error("Unmatched ')'")
        if self._last_is("|"):
            self._segments.append('""')
        self._depth -= 1
        self._segments.append(")")
        self._at += 1

    def _alternative(self) -> None:
        if not self._segments or self._last_is("|("):
            self._segments.append('""')
        self._segments.append("|")
        self._at += 1

    def _quantifier(self) -> None:
        quantifier = self._repetition() if self._peek() == "{" else self._peek()
        if len(quantifier) == 1:
            self._at += 1
        if self._peek() == "?":  # a lazy quantifier matches the same texts
            self._at += 1
        if self._segments:
            self._segments[-1] += quantifier
        else:
            self._segments.append(quantifier)
        if self._peek() and self._peek() in "{*+?":
            raise self._error("Two consecutive repetition modifiers are not allowed.")

    def _repetition(self) -> str:
        start = self._at
        self._at += 1
        self._count()
        if self._peek() == "}":
            self._at += 1
            return self._pattern[start : self._at]
        if self._peek() != ",":
            raise self._error("Invalid repetition count.")
        self._at += 1
        if self._peek() != "}":
            self._count()
        if self._peek() != "}":
            raise self._error("Invalid repetition count.")
        self._at += 1
        return self._pattern[start : self._at]

    def _count(self) -> None:
        if not self._peek() or self._peek() not in string.digits:
            raise self._error("Invalid repetition count.")
        while self._peek() and self._peek() in string.digits:
            self._at += 1

    def _class(self) -> str:
        self._at += 1
        if self._peek() == "]":
            raise self._error("Empty character class is not allowed in regex.")
        parts = ["["]
        while self._peek() not in ("]", ""):
            if self._peek() == "\\":
                parts.append(self._escape_in_class())
            else:
                parts.append(self._peek())
                self._at += 1
        if not self._peek():
            raise self._error("Unclosed '['")
        self._at += 1
        return "".join(parts) + "]"

    def _escape_in_class(self) -> str:
        self._require_more(2)
        sign = self._peek(1)
        if sign in _CLASSES_IN_BRACKETS:
            self._at += 2
            return _CLASSES_IN_BRACKETS[sign]
        text = self._escaped_character()
        return f"\\{text}" if text in ("]", "-") else text

    def _escape(self) -> str:
        self._require_more(2)
        sign = self._peek(1)
        if sign in _CLASSES:
            self._at += 2
            return _CLASSES[sign]
        if sign in _UNSUPPORTED_ESCAPES:
            raise self._error(_UNSUPPORTED_ESCAPES[sign])
        return f'"{self._escaped_character()}"'

    def _escaped_character(self) -> str:
        sign = self._peek(1)
        self._require_more({"u": 5, "x": 4, "c": 3}.get(sign, 2))
        found = escape_at(self._pattern, self._at, SYNTAX_CHARS + "-")
        if found is not None:
            self._at += found[1]
            return escaped(found[0])
        if sign == "u" and self._peek(2) == "{":
            return self._braced_code_point()
        if sign == "c":
            self._at += 2
            if not (self._peek().isascii() and self._peek().isalpha()):
                raise self._error("Invalid control character escape sequence.")
            self._at += 1
            return escaped(ord(self._peek(-1)) % 32)
        self._at += 2
        return escaped(ord(sign))

    def _braced_code_point(self) -> str:
        self._at += 3
        digits = hex_prefix(self._pattern[self._at :], 7)
        if not 1 <= len(digits) <= 6 or self._peek(len(digits)) != "}":
            raise self._error("Invalid Unicode escape sequence.")
        self._at += len(digits) + 1
        return escaped(int(digits, 16))

    def _require_more(self, length: int) -> None:
        if len(self._pattern) - self._at < length:
            raise self._error("Escape sequence is not finished.")

    def _error(self, reason: str) -> XgrammarError:
        return XgrammarError(f"Regex parsing error at position {self._at + 1}: {reason}", PLACE)
