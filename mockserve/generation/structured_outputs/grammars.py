"""Parser of context-free grammars in GBNF (`root ::= ...`) or Lark (`start: ...`)."""

import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass

from mockserve.generation.structured_outputs.expressions import (
    Chars,
    Choice,
    Expression,
    Grammar,
    Repeat,
    Rule,
    Series,
    Text,
    rules_used,
)
from mockserve.generation.structured_outputs.regex_parser import RegexError, parse_regex

CONVERSION = "Invalid grammar specification: Failed to convert the grammar from GBNF to Lark: "

_COMMENT = re.compile("(?:#|//).*", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_SHARED = {"space": r"[ \t\r]+", "line": r"\n", "string": _STRING}
_GBNF = {
    **_SHARED,
    "space": r"[ \t\r]+|#[^\n]*",
    "class": r"\[(?:[^\]\\]|\\.)*\]",
    "name": r"[A-Za-z_][\w.-]*",
    "count": r"\{\s*\d*\s*(?:,\s*\d*\s*)?\}",
    "sign": r"::=|[|()*+?.]",
}
_LARK = {
    **_SHARED,
    "space": r"[ \t\r]+|//[^\n]*|#[^\n]*",
    "alias": r"->\s*\w+",
    "string": rf"{_STRING}i?",
    "regex": r"/(?!/)(?:[^/\\\n]|\\.)+/[imslux]*",
    "directive": r"%[a-z_]+(?:[^\n#/]|/(?!/))*",
    "name": r"[!?]?[A-Za-z_]\w*(?:\.-?\d+)?",
    "count": r"~\s*\d+(?:\s*\.\.\s*\d+)?|\{\s*\d*\s*(?:,\s*\d*\s*)?\}",
    "sign": r"\.\.|[:|()\[\]*+?]",
}


class GrammarError(ValueError):
    """An invalid grammar. `str()` is vLLM's message."""


@dataclass(frozen=True, slots=True)
class GrammarToken:
    """One token with its position: `line` and `column` count from 1. The last token has the kind `end`."""

    kind: str
    text: str
    start: int
    line: int
    column: int


def is_lark(source: str) -> bool:
    """Whether a grammar is in Lark's notation, which is the case if no line defines a GBNF rule."""
    return not any("::=" in _COMMENT.sub("", line) for line in source.split("\n"))


def tokenize_grammar(source: str, lark: bool) -> list[GrammarToken]:
    """Return all tokens except spaces and comments. Raises GrammarError at an invalid one."""
    pattern = re.compile("|".join(f"(?P<{name}>{each})" for name, each in _notation(lark).items()))
    words: list[GrammarToken] = []
    at, line, line_start = 0, 1, 0
    while at < len(source):
        match = pattern.match(source, at)
        if match is None or match.lastgroup is None:
            raise _unknown(source, at, line, at - line_start + 1, lark)
        if match.lastgroup not in ("space", "line"):
            words.append(GrammarToken(match.lastgroup, match.group(), at, line, at - line_start + 1))
        at = match.end()
        if match.lastgroup == "line":
            line, line_start = line + 1, at
    words.append(GrammarToken("end", "", at, line, at - line_start + 1))
    return words


def unquote(text: str) -> str:
    """The characters of a quoted string."""

    def replaced(match: re.Match[str]) -> str:
        sign = match.group(1)
        if sign[0] in "xuU" and len(sign) > 1:
            return chr(int(sign[1:], 16))
        return _ESCAPES.get(sign, sign)

    return _ESCAPE.sub(replaced, text[1:-1])


def lark_error(source: str, word: GrammarToken, reason: str) -> GrammarError:
    """Create an error at a token of a Lark grammar, with its line and a mark below it."""
    shown = source.split("\n")[word.line - 1]
    mark = " " * (word.column - 1) + "^"
    return GrammarError(
        f"Grammar error: at {word.line}({word.column}): {reason}\n{word.line:>4} | {shown}\n       {mark}"
    )


def gbnf_error(source: str, at: int, line: int, reason: str) -> GrammarError:
    """Create an error at a position of a GBNF grammar, with the text before and after it."""
    before, after = source[:at].split("\n")[-1], source[at:].split("\n")[0]
    return GrammarError(f"{CONVERSION}{reason} at line {line}, '{before}' ^ '{after}'")


def _notation(lark: bool) -> Mapping[str, str]:
    return _LARK if lark else _GBNF


def _unknown(source: str, at: int, line: int, column: int, lark: bool) -> GrammarError:
    if lark:
        return lark_error(
            source, GrammarToken("unknown", source[at], at, line, column), f"unexpected character: {source[at]!r}"
        )
    unfinished = source[at] in '"['
    end = len(source) if unfinished else at
    return gbnf_error(source, end, line, "Unexpected end of input" if unfinished else "Unexpected character")


MAX_NESTED = 100

COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*",
    "FLOAT": r"[0-9]+\.[0-9]+",
    "SIGNED_FLOAT": r"[+-]?[0-9]+\.[0-9]+",
    "NUMBER": r"[0-9]+(?:\.[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(?:\.[0-9]+)?",
    "ESCAPED_STRING": r'"[a-z ]*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": " ",
    "WS": " ",
    "CR": "\r",
    "LF": "\n",
    "NEWLINE": "\n",
}
"""Terminals of `%import common.NAME`."""


def parse_grammar(source: str) -> Grammar:
    """Parse a grammar in GBNF or in Lark's notation.

    Raises GrammarError for invalid syntax, and for a rule that is used but not defined.
    """
    lark = is_lark(source)
    parser = _Parser(source, lark)
    grammar = Grammar(Rule("start" if lark else "root"), parser.rules())
    parser.check(grammar)
    return grammar


class _Parser:
    """Recursive descent over the words of one grammar."""

    def __init__(self, source: str, lark: bool) -> None:
        self._source = source
        self._lark = lark
        self._defines = ":" if lark else "::="
        self._words = tokenize_grammar(source, lark)
        self._at = 0
        self._depth = 0
        self._used: dict[str, GrammarToken] = {}

    def rules(self) -> dict[str, Expression]:
        """All rules by name."""
        rules: dict[str, Expression] = {}
        while self._word.kind != "end":
            word = self._take()
            if word.kind == "alias" and (self._word.kind == "end" or self._begins_line):
                continue
            if word.kind == "directive":
                self._directive(word, rules)
                continue
            if word.kind != "name" or self._word.text != self._defines:
                raise self._undefined(word)
            self._take()
            rules[_rule_name(word.text)] = self._alternatives()
        return rules

    def check(self, grammar: Grammar) -> None:
        """Raise GrammarError unless every rule that is used exists."""
        start = next(rules_used(grammar.start))
        if start not in grammar.rules:
            if not self._lark:
                raise GrammarError(f"{CONVERSION}Rule '{start}' not found")
            raise self._undefined(self._words[0])
        for name, word in self._used.items():
            if name not in grammar.rules:
                if self._lark:
                    raise lark_error(self._source, word, f'unknown name: "{name}"')
                raise GrammarError(f"{CONVERSION}Rule '{name}' not found")

    @property
    def _word(self) -> GrammarToken:
        return self._words[self._at]

    def _take(self) -> GrammarToken:
        word = self._words[self._at]
        self._at += word.kind != "end"
        return word

    def _undefined(self, word: GrammarToken) -> GrammarError:
        return gbnf_error(self._source, word.start + len(word.text), word.line, "Expected ::=")

    def _alternatives(self) -> Expression:
        options = [self._series()]
        while self._word.text == "|" or (self._word.kind == "alias" and self._words[self._at + 1].text == "|"):
            self._at += 1 + (self._word.kind == "alias")
            options.append(self._series())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _series(self) -> Expression:
        parts: list[Expression] = []
        while not self._ends_series():
            parts.append(self._repeated(self._atom()))
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _ends_series(self) -> bool:
        word = self._word
        if word.kind in ("end", "alias") or word.text in ("|", ")", "]"):
            return True
        if self._lark and self._begins_line:
            return True
        return word.kind == "name" and self._words[self._at + 1].text == self._defines

    @property
    def _begins_line(self) -> bool:
        return self._at == 0 or self._word.line != self._words[self._at - 1].line

    def _repeated(self, part: Expression) -> Expression:
        while self._word.text in ("*", "+", "?") or self._word.kind == "count":
            word = self._take()
            if word.kind == "count":
                part = Repeat(part, *_bounds(word.text))
            else:
                least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[word.text]
                part = Repeat(part, least, most)
        return part

    def _atom(self) -> Expression:
        word = self._take()
        if word.kind == "name":
            name = _rule_name(word.text)
            self._used.setdefault(name, word)
            return Rule(name)
        if word.kind == "string":
            return self._string(word)
        if word.kind in ("regex", "class"):
            return self._regex(word)
        if word.text in ("(", "["):
            return self._group(word)
        if word.text == ".":
            return Chars(string.ascii_letters)
        raise self._unexpected(word)

    def _group(self, opening: GrammarToken) -> Expression:
        self._depth += 1
        if self._depth > MAX_NESTED:
            raise self._unexpected(opening)
        inner = self._alternatives()
        if opening.text == "(" and self._lark and self._begins_line:
            raise self._unexpected(self._word)
        closing = self._take()
        if closing.text != {"(": ")", "[": "]"}[opening.text]:
            raise self._unexpected(closing)
        self._depth -= 1
        return Repeat(inner, 0, 1) if opening.text == "[" else inner

    def _string(self, word: GrammarToken) -> Expression:
        if self._lark and not _is_json(word.text.removesuffix("i")):
            raise self._unexpected(word)
        text = unquote(word.text.removesuffix("i"))
        if self._word.text != "..":
            return Text(text)
        self._take()
        last = unquote(self._take().text)
        if len(text) != 1 or len(last) != 1 or last < text:
            raise lark_error(self._source, word, "invalid range")
        return Chars("".join(map(chr, range(ord(text), min(ord(last), ord(text) + 255) + 1))))

    def _regex(self, word: GrammarToken) -> Expression:
        pattern = word.text if word.kind == "class" else word.text[1 : word.text.rindex("/")]
        try:
            return parse_regex(pattern)
        except RegexError as error:
            if self._lark:
                raise lark_error(self._source, word, f"invalid regex {pattern!r} (in regex): {error}") from None
            raise GrammarError(f"{CONVERSION}{error}") from None

    def _directive(self, word: GrammarToken, rules: dict[str, Expression]) -> None:
        """Parse `%import common.X`, single or several. `%ignore` has no effect: ignored text is never written."""
        command, _, rest = word.text[1:].partition(" ")
        if command in ("ignore", "declare"):
            return
        if command != "import":
            raise lark_error(self._source, word, f"unknown directive: %{command}")
        module, _, names = rest.strip().partition("(")
        if names:
            imports = [(each.strip(), each.strip()) for each in names.rstrip(") ").split(",")]
        else:
            # "import common.X -> Y"
            full, _, renamed = rest.partition("->")
            name = full.strip().rpartition(".")[2]
            imports = [(name, renamed.strip() or name)]
        for name, known_as in imports:
            if name not in COMMON or not module.strip().startswith("common"):
                raise lark_error(self._source, word, f'unknown name: "{name}"')
            rules[known_as] = parse_regex(COMMON[name])

    def _unexpected(self, word: GrammarToken) -> GrammarError:
        if self._lark:
            return lark_error(self._source, word, f"unexpected token: {word.text or 'end of input'}")
        reason = "Unexpected end of input" if word.kind == "end" else "Unexpected token"
        return gbnf_error(self._source, word.start, word.line, reason)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _rule_name(text: str) -> str:
    """Return a rule name without Lark's prefixes and priority."""
    name = text.lstrip("!?")
    base, dot, rank = name.partition(".")
    return base if dot and rank.lstrip("-").isdecimal() else name


def _bounds(text: str) -> tuple[int, int | None]:
    """Return the bounds of `{m}`, `{m,}`, `{m,n}`, `~m` or `~m..n`."""
    inner = text.strip("{}~ ").replace("..", ",")
    first, comma, last = (each.strip() for each in inner.partition(","))
    least = int(first or 0)
    return least, (int(last) if last else None) if comma else least
