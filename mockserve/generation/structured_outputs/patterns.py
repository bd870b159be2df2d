"""Regular expressions in the dialect of llguidance, and texts that match them.

llguidance reads no assertions. Look-aheads at the start of a pattern become intersections; a text is drawn again until
it meets other assertions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from mockserve.generation.structured_outputs.guided import MOST_CHARS, GrammarError, lark_source, regex_text

PatternToken: TypeAlias = re.Match[str]

_TOKEN = re.compile(
    r"(?P<escape>\\(?:[pPux]\{[^}]*\}|.))|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<look>\(\?<?[=!])|(?P<flags>\(\?(?![:<P]))|(?P<open>\()"
    r"|(?P<close>\))|(?P<anchor>[\^$])|(?P<count>\{\d+(?:,\d*)?\})|(?P<brace>\{)|(?P<text>[^\\\[()^${]|.)",
    re.DOTALL,
)
_IN_SET = re.compile(r"(?P<escape>\\.)|(?P<name>\[:\^?\w+:\])|(?P<sign>[\[&~])", re.DOTALL)
_BESIDE_CLASS = re.compile(r"(\\[dDwWsS])-(?!$)|-(?=\\[dDwWsS])")
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_KNOWN_ESCAPES = frozenset("dDwWsSnrtfvaxuUpP")
_MOST_TRIES = 100


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression without assertions."""

    text: str
    ahead: tuple[tuple[bool, str], ...] = ()
    """Look-aheads at the start, each with whether it is negated."""

    is_asserted: bool = False
    """Whether further assertions, other than those at the ends, were left out."""


def tokens_of(pattern: str) -> Iterator[PatternToken]:
    """Yield the parts of a pattern; `lastgroup` is the kind."""
    return _TOKEN.finditer(pattern)


def read_pattern(pattern: str) -> Pattern:
    """Return a pattern in the dialect of llguidance. An invalid pattern stays invalid."""
    kept: list[str] = []
    ahead: list[tuple[bool, str]] = []
    is_asserted = False
    opening: PatternToken | None = None
    depth = 0
    lengths = _Lengths()
    for token in tokens_of(pattern):
        kind, text = str(token.lastgroup), token.group()
        if opening is not None:
            depth += {"open": 1, "look": 1, "flags": 1, "close": -1}.get(kind, 0)
            if depth == 0:
                if kept or "<" in opening.group():
                    is_asserted = True
                else:
                    ahead.append(
                        (opening.group()[-1] == "!", _texts_of_lookahead(pattern[opening.end() : token.start()]))
                    )
                opening = None
        elif kind == "look":
            opening, depth = token, 1
        elif kind == "escape" and text[1] in "bBAzZ":
            is_asserted = is_asserted or text[1] in "bB"
        elif kind != "anchor":
            kept.append(lengths.bounded(kind, _translated_piece(kind, text)))
    return Pattern(pattern if opening is not None else "".join(kept), tuple(ahead), is_asserted)


class _Lengths:
    """Bounds counts of repetitions so that no match has to be much longer than a text that is written."""

    def __init__(self) -> None:
        self._last = 1
        self._longest = [1]

    def bounded(self, kind: str, text: str) -> str:
        """Return a part of a pattern, with its counts bounded."""
        if kind in ("open", "flags"):
            self._longest.append(1)
        elif kind != "count":
            self._last = self._longest.pop() if kind == "close" and len(self._longest) > 1 else 1
        else:
            least = text[1:-1].partition(",")[0]
            limit = max(1, MOST_CHARS // self._last)
            if int(least) > limit:
                text = f"{{{limit}}}"
            self._last *= min(int(least), limit) or 1
        self._longest[-1] = max(self._longest[-1], self._last)
        return text


def _texts_of_lookahead(ahead: str) -> str:
    """Return the texts that begin with a match of a look-ahead."""
    return f"(?:{read_pattern(ahead).text})" + ("" if _is_closed(ahead) else "(?s:.*)")


def _translated_piece(kind: str, text: str) -> str:
    if kind == "escape":
        return _translated_escape(text)
    if kind == "set":
        inner = _IN_SET.sub(_set_part, text[1:-1])
        return "[" + _BESIDE_CLASS.sub(lambda match: (match[1] or "") + r"\-", inner) + "]"
    return "\\{" if kind == "brace" else text


def _set_part(match: re.Match[str]) -> str:
    if match.lastgroup == "escape":
        return "\\x08" if match.group() == "\\b" else _translated_escape(match.group())
    return f"\\{match.group()}" if match.lastgroup == "sign" else match.group()


def _translated_escape(text: str) -> str:
    """Return an escape; what llguidance does not know as one is the character itself, as in ECMAScript."""
    sign = text[1]
    if sign == "0":
        return "\\x00"
    is_plain = sign in "<>_" or (sign.isalpha() and not (sign.isascii() and sign in _KNOWN_ESCAPES))
    return sign if is_plain else text


def pattern_text(
    pattern: str,
    random: Random,
    soft_limit_chars: int,
    least: int = 0,
    most: int | None = None,
    meets_assertions: bool = True,
) -> str:
    """Return a match of `least` to `most` characters for a JSON string, where possible one without escapes.

    Raises GrammarError for an invalid pattern and for one without such a match.
    """
    read = read_pattern(pattern)
    ahead = read.ahead if meets_assertions else ()
    is_open = bool(ahead) and not _is_closed(pattern)
    terms = [lark_source(f"(?:{read.text}){'(?s:.*)' if is_open else ''}")]
    terms += [("~" if is_negated else "") + lark_source(each) for is_negated, each in ahead]
    check = _python_pattern(pattern) if meets_assertions and read.is_asserted else None
    for attempt in range(1 if check is None else _MOST_TRIES):
        limit = soft_limit_chars + attempt // 2  # more room for what is drawn again
        text, is_complete = regex_text(terms, random, limit, least, most, '"\\', mixes=attempt % 2 == 1)
        if is_complete and (check is None or check.search(text)):
            return text
    raise GrammarError(f"no text of length {least} to {most} found that matches the pattern")


def match_of(pattern: str, random: Random, soft_limit_chars: int) -> str:
    """Return a match of a regular expression as a whole; an endless match is cut. Assertions have no effect.

    Raises GrammarError for an invalid pattern and for one without matches.
    """
    return regex_text([lark_source(f"(?:{read_pattern(pattern).text})")], random, soft_limit_chars)[0]


def regex_grammar(pattern: str) -> str:
    """Return a regular expression, without its assertions, in llguidance's notation."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(read_pattern(pattern).text)


def _is_closed(pattern: str) -> bool:
    return pattern.endswith("$") and not pattern.endswith("\\$")


def _python_pattern(pattern: str) -> re.Pattern[str] | None:
    """Return the pattern for a check of its assertions; None where Python reads another dialect."""
    try:
        return re.compile(_NAMED_GROUP.sub("(?P<", pattern))
    except (re.error, OverflowError, RecursionError):
        return None
