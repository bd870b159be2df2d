"""Lark grammars (`start: ...`) as xgrammar reads them."""

import re

from mockserve.content.constraints.expressions import Grammar, rules_used
from mockserve.content.constraints.grammar_lexer import GrammarError, words_of
from mockserve.content.constraints.grammar_parser import parse_grammar
from mockserve.content.constraints.xgrammar.features import XgrammarError

_COMMENT = re.compile(r"(#|//).*$")


def is_likely_lark(source: str) -> bool:
    """Whether vLLM takes a grammar for one in Lark's notation: no line has `::=` outside of a comment."""
    return bool(source) and not any("::=" in _COMMENT.sub("", line) for line in source.split("\n"))


def check_lark(source: str) -> None:
    """Raise XgrammarError for what xgrammar does not read. Nothing shows its words."""
    try:
        grammar = parse_grammar(source)
        words = words_of(source, lark=True)
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
