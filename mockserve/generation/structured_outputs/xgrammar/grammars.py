"""Grammars in EBNF (`root ::= ...`) and Lark (`start: ...`) with the rules of xgrammar."""

import re
from typing import NoReturn

from mockserve.generation.structured_outputs.expressions import (
    EMPTY,
    Chars,
    Choice,
    Expression,
    Grammar,
    Repeat,
    Rule,
    Series,
    Text,
    between,
    rules_used,
    without,
)
from mockserve.generation.structured_outputs.grammars import GrammarError, parse_grammar, tokenize_grammar
from mockserve.generation.structured_outputs.xgrammar.ebnf_lexer import Kind, Token, tokens_of
from mockserve.generation.structured_outputs.xgrammar.features import XgrammarError

PLACE = "grammar_parser.cc:820"
ROOT = "root"
MAX_NESTING = 1000
MACROS = frozenset({"TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch", "Regex", "Substring"})


def parse_ebnf(source: str) -> Grammar:
    """Parse a grammar with the start `root`. Raises XgrammarError for a grammar that xgrammar refuses."""
    try:
        return _Parser(tokens_of(source)).parse()
    except RecursionError:
        raise XgrammarError("EBNF parser error: Nest layer exceeded the maximum limit", PLACE) from None


class _Parser:
    """Recursive descent over the tokens of one grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> Grammar:
        self._read_rule_names()
        rules: dict[str, Expression] = {}
        while self._token.kind is not Kind.END:
            if self._token.kind is not Kind.RULE_NAME:
                self._fail("Expect rule name")
            name = str(self._take().value)
            self._expect("::=", "Expect ::=")
            rules[name] = self._choices()
            if self._is("(="):
                self._lookahead()
        return Grammar(Rule(ROOT), rules)

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._token
        self._at += 1
        return token

    def _is(self, *signs: str) -> bool:
        return self._token.kind is Kind.SIGN and self._token.text in signs

    def _expect(self, sign: str, reason: str) -> None:
        if not self._is(sign):
            self._fail(reason)
        self._at += 1

    def _read_rule_names(self) -> None:
        for index, token in enumerate(self._tokens):
            if token.kind is not Kind.RULE_NAME:
                continue
            if token.value in self._names:
                self._fail(f'Rule "{token.value}" is defined multiple times', index)
            self._names.add(str(token.value))
        if ROOT not in self._names:
            self._fail(f'The root rule with name "{ROOT}" is not found', 0)

    def _lookahead(self) -> None:
        """Parse a lookahead after a rule; it restricts only ambiguous sentences and is not written."""
        self._at += 1
        self._choices()
        self._expect(")", "Expect )")

    def _choices(self) -> Expression:
        options = [self._sequence()]
        while self._is("|"):
            self._at += 1
            options.append(self._sequence())
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self) -> Expression:
        parts = [self._quantified()]
        while not (self._is("|", ")", "(=") or self._token.kind in (Kind.RULE_NAME, Kind.END)):
            parts.append(self._quantified())
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def _quantified(self) -> Expression:
        part = self._element()
        if self._is("*", "+", "?"):
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._take().text]
            return Repeat(part, least, most)
        return Repeat(part, *self._bounds()) if self._is("{") else part

    def _bounds(self) -> tuple[int, int | None]:
        self._at += 1
        least = self._integer()
        if self._is("}"):
            self._at += 1
            return least, least
        if not self._is(","):
            self._fail("Expect ',' or '}' in repetition range")
        self._at += 1
        if self._is("}"):
            self._at += 1
            return least, None
        most = self._integer()
        if most < least:
            self._fail(f"Lower bound is larger than upper bound: {least} > {most}", self._at - 1)
        self._expect("}", "Expect }")
        return least, most

    def _integer(self) -> int:
        if self._token.kind is not Kind.INTEGER:
            self._fail(f"Expect integer, but got {self._token.text}")
        return int(self._take().value)

    def _element(self) -> Expression:
        token = self._token
        if self._is("("):
            return self._group()
        if self._is("["):
            return self._class()
        if token.kind is Kind.STRING:
            return Text(str(self._take().value))
        if token.kind is not Kind.NAME:
            self._fail(f"Expect element, but got {token.text}")
        if token.value in MACROS:
            return self._macro()
        self._at += 1
        if token.value not in self._names:
            self._fail(f'Rule "{token.value}" is not defined', self._at - 1)
        return Rule(str(token.value))

    def _group(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._fail("Nest layer exceeded the maximum limit", self._at - 1)
        self._at += 1
        if self._is(")"):
            self._at += 1
            self._depth -= 1
            return EMPTY
        inner = self._choices()
        self._expect(")", "Expect )")
        self._depth -= 1
        return inner

    def _macro(self) -> Expression:
        """Parse a call of one of xgrammar's macros, which restrict tokens; none of them requires any text."""
        self._at += 1
        start = self._at
        self._expect("(", "Expect ( after macro function name")
        depth = 1
        while depth:
            if self._token.kind is Kind.END:
                self._fail("Expect , or ) in macro arguments")
            depth += self._is("(") - self._is(")")
            token = self._take()
            if token.kind is Kind.NAME and token.value not in self._names and not self._is("="):
                self._fail(f'Rule "{token.value}" is not defined', start)
        return EMPTY

    def _class(self) -> Expression:
        self._at += 1
        is_negated = self._is("^")
        self._at += is_negated
        chars: list[str] = []
        ranges: list[tuple[str, str]] = []
        while not self._is("]"):
            low = self._class_char()
            if self._is("-") and not self._is_end_of_class(self._at + 1):
                self._at += 1
                high = self._class_char(only_char=True)
                if low > high:
                    reason = "Invalid character class: lower bound is larger than upper bound"
                    self._fail(reason, self._at - 3)
                ranges.append((low, high))
            else:
                chars.append(low)
        self._at += 1
        if is_negated:
            return Chars(without("".join(chars), ranges))
        found = "".join(chars) + "".join(between(*each) for each in ranges)
        return Chars("".join(dict.fromkeys(found))) if found else Choice(())

    def _is_end_of_class(self, index: int) -> bool:
        token = self._tokens[index]
        return not (token.kind is Kind.CHAR or (token.kind is Kind.SIGN and token.text == "-"))

    def _class_char(self, only_char: bool = False) -> str:
        token = self._token
        if token.kind is Kind.CLASS_ESCAPE and not only_char:
            self._fail("Character class escape is not supported yet in EBNF")
        self._at += 1
        return chr(int(token.value)) if token.kind is Kind.CHAR else token.text

    def _fail(self, reason: str, index: int | None = None) -> NoReturn:
        token = self._tokens[self._at if index is None else max(index, 0)]
        raise XgrammarError(f"EBNF parser error at line {token.line}, column {token.column}: {reason}", PLACE)


_COMMENT = re.compile(r"(#|//).*$")


def is_likely_lark(source: str) -> bool:
    """Whether vLLM reads a grammar as Lark, which is the case if no line has `::=` outside of a comment."""
    return bool(source) and not any("::=" in _COMMENT.sub("", line) for line in source.split("\n"))


def check_lark(source: str) -> None:
    """Raise XgrammarError for a grammar that xgrammar refuses. The message is never shown to clients."""
    try:
        grammar = parse_grammar(source)
        words = tokenize_grammar(source, lark=True)
    except GrammarError as error:
        raise XgrammarError(str(error)) from None
    if any(word.kind == "name" and "." in word.text for word in words):
        raise XgrammarError("rule and terminal priorities are not supported")
    for name in grammar.rules:
        if _is_terminal(name):
            _check_terminal(name, grammar)


def _check_terminal(name: str, grammar: Grammar) -> None:
    """Raise XgrammarError for a terminal that refers to a rule or to itself."""
    seen: set[str] = set()
    pending = list(rules_used(grammar.rules[name]))
    while pending:
        used = pending.pop()
        if used == name or not _is_terminal(used):
            raise XgrammarError(f"terminal {name!r} cannot refer to {used!r}")
        if used not in seen:
            seen.add(used)
            pending.extend(rules_used(grammar.rules[used]))


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()
