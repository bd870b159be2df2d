"""Lexer of EBNF grammars (`root ::= ...`) with the rules of xgrammar."""

import re
import string
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn

from mockserve.generation.structured_outputs.xgrammar.features import XgrammarError
from mockserve.generation.structured_outputs.xgrammar.regex import SYNTAX_CHARS, escape_at

PLACE = "grammar_parser.cc:106"
MAX_INTEGER = 10**15

_FIRST_NAME_CHARS = string.ascii_letters + "_-."
_NAME_CHARS = _FIRST_NAME_CHARS + string.digits
_SIGNS = frozenset("){}|,*+?=")
_VALUE = r'\s*=\s*(?:"[^"\\\r\n]*"|[-+.\deE]+)'
_ATTRIBUTE = rf"(?:max_tokens{_VALUE}|max_chars{_VALUE}|capture(?:{_VALUE})?|lazy|temperature{_VALUE})"
_ATTRIBUTES = re.compile(rf"\[[ \t]*{_ATTRIBUTE}[ \t]*(?:,[ \t]*{_ATTRIBUTE}[ \t]*)*\](?=[ \t]*::=)")


class Kind(Enum):
    """Kinds of tokens; a punctuation token is identified by its text."""

    NAME = auto()
    RULE_NAME = auto()
    BOOLEAN = auto()
    STRING = auto()
    INTEGER = auto()
    SIGN = auto()
    CHAR = auto()
    CLASS_ESCAPE = auto()
    END = auto()


@dataclass(slots=True)
class Token:
    """One token. `value` is its meaning; `line` and `column`, which counts bytes, are its start."""

    kind: Kind
    text: str
    value: str | int
    line: int
    column: int


def tokens_of(source: str) -> list[Token]:
    """All tokens of a grammar; the last is of the kind END. Raises XgrammarError."""
    return _Lexer(source).tokens()


class _Lexer:
    """Reads the bytes of a grammar, each held as one character, so that columns count bytes as xgrammar's do."""

    def __init__(self, source: str) -> None:
        self._bytes = source.partition("\0")[0].encode(errors="replace").decode("latin-1")
        self._at = 0
        self._line = 1
        self._column = 1
        self._tokens: list[Token] = []

    def tokens(self) -> list[Token]:
        while True:
            self._skip_space()
            if not self._peek():
                self._add(Kind.END, 0)
                break
            self._next()
        self._mark_rule_names()
        return self._tokens

    def _peek(self, ahead: int = 0) -> str:
        return self._bytes[self._at + ahead : self._at + ahead + 1]

    def _consume(self, count: int = 1) -> None:
        for _ in range(count):
            sign = self._peek()
            if sign == "\n" or (sign == "\r" and self._peek(1) != "\n"):
                self._line += 1
                self._column = 1
            else:
                self._column += 1
            self._at += 1

    def _add(self, kind: Kind, length: int, value: str | int = "") -> None:
        text = self._bytes[self._at : self._at + length]
        self._tokens.append(Token(kind, text, value, self._line, self._column))
        self._consume(length)

    def _skip_space(self) -> None:
        while self._peek() and self._peek() in " \t\r\n#":
            if self._peek() == "#":
                while self._peek() and self._peek() not in "\r\n":
                    self._consume()
            else:
                self._consume()

    def _next(self) -> None:
        sign = self._peek()
        if sign == "(":
            self._add(Kind.SIGN, 2 if self._peek(1) == "=" else 1)
        elif sign == ":":
            if self._bytes[self._at : self._at + 3] != "::=":
                self._fail("Unexpected character: ':'")
            self._add(Kind.SIGN, 3)
        elif sign in _SIGNS:
            self._add(Kind.SIGN, 1)
        elif sign == '"':
            self._string()
        elif sign == "[":
            self._class()
        elif sign in _FIRST_NAME_CHARS:
            self._name()
        elif sign in string.digits:
            self._integer()
        else:
            self._fail(f"Unexpected character: {sign}")

    def _name(self) -> None:
        length = 1
        while self._peek(length) and self._peek(length) in _NAME_CHARS:
            length += 1
        name = self._bytes[self._at : self._at + length]
        if name in ("true", "false"):
            self._add(Kind.BOOLEAN, length, name)
            return
        attributes = _ATTRIBUTES.match(self._bytes, self._at + length)
        self._add(Kind.NAME, length if attributes is None else attributes.end() - self._at, name)

    def _integer(self) -> None:
        length = 0
        while self._peek(length) and self._peek(length) in string.digits:
            length += 1
        value = int(self._bytes[self._at : self._at + min(length, 17)])
        if value > MAX_INTEGER:
            self._fail(f"Integer is too large: parsed {value}, max allowed is {MAX_INTEGER}")
        self._add(Kind.INTEGER, length, value)

    def _string(self) -> None:
        length = 1
        value = ""
        line, column, start = self._line, self._column, self._at
        self._consume()
        while self._peek() not in ('"', "\n", "\r", ""):
            code_point, length = self._character("", "Invalid escape sequence")
            self._consume(length)
            value += chr(code_point) if code_point <= 0x10FFFF else "\ufffd"
        if self._peek() != '"':
            self._fail('Expect " in string literal')
        self._consume()
        self._tokens.append(Token(Kind.STRING, self._bytes[start : self._at], value, line, column))

    def _class(self) -> None:
        self._add(Kind.SIGN, 1)
        if self._peek() == "^":
            self._add(Kind.SIGN, 1)
        while self._peek() not in ("]", ""):
            if self._peek() in "\r\n":
                self._fail("Character class should not contain newline")
            elif self._peek() == "-":
                self._add(Kind.SIGN, 1)
            elif self._peek() == "\\" and self._peek(1) and self._peek(1) in "dDsSwW":
                self._add(Kind.CLASS_ESCAPE, 2, self._peek(1))
            else:
                reason = "Invalid escape sequence" + self._bytes[self._at : self._at + 2]
                code_point, length = self._character(SYNTAX_CHARS + "-", reason)
                self._add(Kind.CHAR, length, code_point)
        if not self._peek():
            self._fail("Unterminated character class")
        self._add(Kind.SIGN, 1)

    def _character(self, also: str, reason: str) -> tuple[int, int]:
        """The code point at this place, escaped or not, and its length in bytes."""
        sign = self._peek()
        if sign == "\\":
            found = escape_at(self._bytes, self._at, also)
            if found is None:
                self._fail(reason)
            return found
        length = 1 if sign < "\x80" else 2 if sign < "\xe0" else 3 if sign < "\xf0" else 4
        return ord(self._bytes[self._at : self._at + length].encode("latin-1").decode()), length

    def _mark_rule_names(self) -> None:
        for index, token in enumerate(self._tokens):
            if token.text != "::=" or token.kind is not Kind.SIGN:
                continue
            if index == 0:
                self._fail("Assign should not be the first token", token)
            name = self._tokens[index - 1]
            if name.kind is not Kind.NAME:
                self._fail("Assign should be preceded by an identifier", name)
            if index >= 2 and self._tokens[index - 2].line == name.line:
                self._fail("The rule name should be at the beginning of the line", name)
            name.kind = Kind.RULE_NAME

    def _fail(self, reason: str, token: Token | None = None) -> NoReturn:
        line, column = (self._line, self._column) if token is None else (token.line, token.column)
        raise XgrammarError(f"EBNF lexer error at line {line}, column {column}: {reason}", PLACE)
