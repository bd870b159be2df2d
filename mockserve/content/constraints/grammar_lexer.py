"""The words of a grammar in either notation: GBNF (`root ::= ...`) or Lark (`start: ...`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
    """Not a grammar. `str()` is what vLLM says of it."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word, with where it stands: `line` and `column` count from 1. The last word is of the kind `end`."""

    kind: str
    text: str
    start: int
    line: int
    column: int


def is_lark(source: str) -> bool:
    """Whether a grammar is in Lark's notation: no line defines a rule in the other."""
    return not any("::=" in _COMMENT.sub("", line) for line in source.split("\n"))


def words_of(source: str, lark: bool) -> list[Word]:
    """All words but spaces and comments. Raises GrammarError at what is none."""
    pattern = re.compile("|".join(f"(?P<{name}>{each})" for name, each in _notation(lark).items()))
    words: list[Word] = []
    at, line, line_start = 0, 1, 0
    while at < len(source):
        match = pattern.match(source, at)
        if match is None or match.lastgroup is None:
            raise _unknown(source, at, line, at - line_start + 1, lark)
        if match.lastgroup not in ("space", "line"):
            words.append(Word(match.lastgroup, match.group(), at, line, at - line_start + 1))
        at = match.end()
        if match.lastgroup == "line":
            line, line_start = line + 1, at
    words.append(Word("end", "", at, line, at - line_start + 1))
    return words


def unquoted(text: str) -> str:
    """The characters of a quoted string."""

    def replaced(match: re.Match[str]) -> str:
        sign = match.group(1)
        if sign[0] in "xuU" and len(sign) > 1:
            return chr(int(sign[1:], 16))
        return _ESCAPES.get(sign, sign)

    return _ESCAPE.sub(replaced, text[1:-1])


def pointed_at(source: str, word: Word, reason: str) -> GrammarError:
    """An error at a word of a Lark grammar, with its line and a mark below it."""
    shown = source.split("\n")[word.line - 1]
    mark = " " * (word.column - 1) + "^"
    return GrammarError(
        f"Grammar error: at {word.line}({word.column}): {reason}\n{word.line:>4} | {shown}\n       {mark}"
    )


def not_gbnf(source: str, at: int, line: int, reason: str) -> GrammarError:
    """An error at a place of a GBNF grammar, shown between what is before and after it."""
    before, after = source[:at].split("\n")[-1], source[at:].split("\n")[0]
    return GrammarError(f"{CONVERSION}{reason} at line {line}, '{before}' ^ '{after}'")


def _notation(lark: bool) -> Mapping[str, str]:
    return _LARK if lark else _GBNF


def _unknown(source: str, at: int, line: int, column: int, lark: bool) -> GrammarError:
    if lark:
        return pointed_at(
            source, Word("unknown", source[at], at, line, column), f"unexpected character: {source[at]!r}"
        )
    unfinished = source[at] in '"['
    end = len(source) if unfinished else at
    return not_gbnf(source, end, line, "Unexpected end of input" if unfinished else "Unexpected character")
