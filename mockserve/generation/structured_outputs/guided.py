"""Texts of grammars, written byte by byte along the masks of llguidance.

The time grows with the text and with the grammar; callers with demands of clients bound it, in worker processes.
"""

import re
import string
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, lru_cache
from random import Random
from typing import Any

MOST_CHARS = 1 << 15
"""Maximum length of a text; a longer text is cut. Each character takes some 20 us and 0.4 kB."""

MOST_LOOKS = 48
"""Maximum number of steps beyond the soft limit at which the nearest end is looked for."""

MOST_BYTES_LOOKED = 2000
MOST_KEPT_CHARS = 2000
"""Longest grammar that is kept compiled for further texts."""

LONG_CHARS = 256
MOST_TRIED_AT_ONCE = 16
"""Number of free bytes that follow each other in a long text without another mask, if the grammar takes them."""

SLACK_CHARS = 16
PRINTABLE = string.ascii_letters + string.digits + " " + string.punctuation
_USUAL = PRINTABLE.encode()
_CLOSING = b'"]}>)'
_STOP_PROBABILITY = 0.2


class GrammarError(ValueError):
    """A grammar that llguidance refuses, in its words, or that has no text."""


def guided_text(grammar: str, random: Random, soft_limit_chars: int) -> str:
    """Return a text of a grammar in llguidance's notation; an endless text is cut.

    Beyond `soft_limit_chars` characters, the text ends as soon as the grammar allows. Raises GrammarError for an
    invalid grammar, and for one whose texts have no first character.
    """
    walk = _Walk(grammar, random, soft_limit_chars)
    walk.run(MOST_CHARS, looks_ahead=True)
    return walk.text


def regex_text(
    terms: Sequence[str],
    random: Random,
    soft_limit_chars: int,
    least: int = 0,
    most: int | None = None,
    avoided: str = "",
    mixes: bool = False,
) -> tuple[str, bool]:
    """Return a text that meets all `terms` of a Lark grammar and whether it is complete; an endless text is cut.

    It is not much longer than `soft_limit_chars`, or than the shortest text. Characters of `avoided` are taken only
    where no others are allowed. With `mixes`, signs are as likely as letters and digits. Raises GrammarError for an
    invalid term, and where no text meets all.
    """
    bounds = (least, most) if least or most is not None else None
    walk = _Walk(_term_grammar(terms, bounds), random, soft_limit_chars, avoided, mixes)
    num_forced = walk.num_forced
    if num_forced <= soft_limit_chars + SLACK_CHARS:
        if walk.run(soft_limit_chars + SLACK_CHARS):
            return walk.text, True
        walk = _Walk(_term_grammar(terms, bounds), random, soft_limit_chars, avoided, mixes)
    for limit in (soft_limit_chars, 4 * soft_limit_chars + 8, 16 * soft_limit_chars + 64):
        if max(least, num_forced) <= limit and (most is None or limit < most):
            with suppress(GrammarError):  # there is no text that short
                short = _Walk(_term_grammar(terms, (least, limit)), random, limit, avoided, mixes)
                if short.run(MOST_CHARS):
                    return short.text, True
    return (walk.text, True) if walk.run(MOST_CHARS) else (walk.text, False)


def _term_grammar(terms: Sequence[str], bounds: tuple[int, int | None] | None) -> str:
    from llguidance import LLMatcher

    lengths = [] if bounds is None else [f"/(?s:.{{{bounds[0]},{'' if bounds[1] is None else bounds[1]}}})/"]
    return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: {' & '.join([*terms, *lengths])}")


class _Walk:
    """Writes one text."""

    def __init__(
        self, grammar: str, random: Random, soft_limit_chars: int, avoided: str = "", mixes: bool = False
    ) -> None:
        self._matcher = _grammar_matcher(grammar)
        self._random = random
        self._soft_limit_chars = soft_limit_chars
        self._usual = bytes(each for each in _USUAL if each not in avoided.encode())
        self._mixes = mixes
        self._written = bytearray()
        self._num_looks = 0

    @property
    def text(self) -> str:
        return self._written.decode(errors="ignore")

    @property
    def num_forced(self) -> int:
        """The number of bytes with which every text continues."""
        return len(self._matcher.compute_ff_bytes())

    def run(self, most_bytes: int, looks_ahead: bool = False) -> bool:
        """Write up to a length; return whether the text is complete. Raises GrammarError where it cannot begin."""
        matcher, written = self._matcher, self._written
        while len(written) < most_bytes and not matcher.is_stopped():
            must_finish = len(written) >= self._soft_limit_chars
            if matcher.is_accepting() and (must_finish or self._random.random() < _STOP_PROBABILITY):
                return True
            run = matcher.compute_ff_bytes()[: MOST_CHARS - len(written)]
            if not run:
                run = self._free_run(must_finish, looks_ahead)
            if not run and matcher.is_accepting():
                return True
            if not (run or written):
                raise GrammarError("no text meets it")
            num_consumed = matcher.try_consume_tokens(list(run))
            written += run[: max(1, num_consumed)]
            if not num_consumed:
                _kept_matcher.cache_clear()  # copies share the limit that this one has reached
                return False
        return bool(matcher.is_accepting()) or (matcher.is_stopped() and not matcher.is_error())

    def _free_run(self, must_finish: bool, looks_ahead: bool) -> bytes:
        mask = self._matcher.compute_bitmask()
        found = [byte for byte in self._usual if mask[byte >> 3] >> (byte & 7) & 1]
        allowed = found or [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if must_finish and looks_ahead and self._num_looks < MOST_LOOKS:
            self._num_looks += 1
            nearest = _nearest_end(self._matcher, allowed)
            if nearest:
                return nearest
        closing = [byte for byte in allowed if byte in _CLOSING] if must_finish else []
        if self._mixes and self._random.random() < 0.5:
            allowed = [byte for byte in allowed if not chr(byte).isalnum()] or allowed
        num_tried = MOST_TRIED_AT_ONCE if len(self._written) > LONG_CHARS else 1
        return bytes(self._random.choices(closing[:1] or allowed, k=num_tried)) if allowed else b""


@cache
def _byte_tokenizer() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def _grammar_matcher(grammar: str) -> Any:
    """Return a matcher at the start of a grammar. Raises GrammarError for an invalid grammar."""
    found = (_kept_matcher if len(grammar) <= MOST_KEPT_CHARS else _new_matcher)(grammar)
    if isinstance(found, GrammarError):
        raise found
    return found.deep_copy()


def _new_matcher(grammar: str) -> Any:
    """Return the compiled grammar, or what is wrong with it."""
    from llguidance import LLMatcher

    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0)
    return GrammarError(matcher.get_error()) if matcher.is_error() else matcher


_kept_matcher = lru_cache(maxsize=64)(_new_matcher)


def _nearest_end(matcher: Any, allowed: list[int]) -> bytes:
    """Return the shortest run of a free byte and the bytes that it forces after which the text may end, or none."""
    best = b""
    for byte in allowed:
        ahead = matcher.deep_copy()
        ahead.consume_token(byte)
        forced = ahead.compute_ff_bytes()[:MOST_BYTES_LOOKED]
        if best and len(forced) + 1 >= len(best):
            continue
        if forced:
            ahead.consume_tokens(list(forced))
        if ahead.is_accepting() or (ahead.is_stopped() and not ahead.is_error()):
            best = bytes([byte]) + forced
            if not forced:
                break
    return best


def lark_source(pattern: str) -> str:
    """Return a regular expression as a literal of a Lark grammar."""
    return "/" + re.sub(r"\\.|[/\n]", _in_slashes, pattern, flags=re.DOTALL) + "/"


def _in_slashes(match: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(match.group(), match.group())


_NOTATION = re.compile(
    r'(?P<string>"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\])*\])|(?P<comment>#[^\n]*)'
    r"|(?P<lookahead>\(=(?:\"(?:\\.|[^\"\\\n])*\"|[^()\"])*\))|(?P<line>\s*\n\s*(?![\w.-]+\s*::=))",
)
_CODE_POINT = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_COMMENT = re.compile("(?:#|//).*", re.DOTALL)
_RANGE = re.compile(r'("(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/)|~\s*(\d+)\s*\.\.\s*(\d+)')


def is_lark(source: str) -> bool:
    """Whether vLLM reads a grammar as Lark, which is the case if no line has `::=` outside of a comment."""
    return not any("::=" in _COMMENT.sub("", line) for line in source.split("\n"))


def grammar_of_xgrammar(source: str) -> str:
    """Return a grammar that vLLM gives to xgrammar, Lark or EBNF, in llguidance's notation.

    Raises GrammarError. Look-ahead after a rule is left out, since it restricts only ambiguous sentences.
    """
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if is_lark(source):
        return LLMatcher.grammar_from_lark(_RANGE.sub(lambda match: match[1] or f"{{{match[2]},{match[3]}}}", source))
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(_NOTATION.sub(_as_gbnf, source)))
    except Exception as error:  # noqa: BLE001  (the library raises plain exceptions)
        raise GrammarError(str(error)) from None


def _as_gbnf(match: re.Match[str]) -> str:
    """Return a part of an EBNF grammar as llama.cpp writes it: one rule a line, and no escaped letters."""
    if match.lastgroup == "string":
        return _CODE_POINT.sub(_escaped_character, match.group())
    return " " if match.lastgroup == "line" else ""


def _escaped_character(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    if digits is None:
        return match.group()[1] if match.group()[1] in "'?/" else match.group()
    sign = chr(min(int(digits, 16), 0x10FFFF))
    if sign in '"\\[]':
        return f"\\{sign}"
    return sign if sign.isprintable() and sign not in "^-" else match.group()
