"""Sentences of context-free grammars, and what is said of a grammar that is none."""

import json
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.structured_outputs.expressions import matching_text
from mockserve.generation.structured_outputs.grammars import GrammarError, parse_grammar

SQL = """
root ::= select_statement
# a comment
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 "
    | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
ARITHMETIC = """
?start: sum                     // the rule to begin with
?sum: product | sum "+" product   -> add
    | sum "-" product
?product: atom ("*" atom)*
atom: NUMBER | "-" atom | "(" sum ")"
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""


def written(source: str, seed: int, soft_limit_chars: int) -> str:
    return matching_text(parse_grammar(source), Random(seed), soft_limit_chars)


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        (SQL, r"SELECT col_[12]  from table_[12]  where col_[12] = [12] "),
        ('root ::= "a" [b-d]+ (x | "y"){2} z?\nx ::= "x"\nz ::= "\\n\\x41"', r"a[b-d]+[xy]{2}(\nA)?"),
        ('root ::= [^a-z"\\\\]{1,3} "\\""', r"[^a-z\"\\]{1,3}\""),
        ('root ::= "a" | ', r"a?"),
        ('start: "a".."c" /[0-9]{2}/ "x"i ["?"] WORD~2\n%import common (WORD, INT)', r"[abc]\d\d[xX]\??[a-zA-Z]+"),
        ('start: item+ "!"~1..3\nitem.2: A | B\nA: "a"\nB.1: /b/i', r"[abB]+!{1,3}"),
        ('start: "a"\n     | "b" // or\n     | "c"\n', r"[abc]"),
        ("start: n\n%import common.INT -> n", r"\d+"),
        ('// start ::= "a"\nstart: "b" // ::=\n# start ::= "c"', r"b"),
    ],
)
def test_the_written_text_is_a_sentence_of_the_grammar(source: str, pattern: str) -> None:
    for seed in range(60):
        text = written(source, seed, soft_limit_chars=seed)
        assert re.fullmatch(pattern, text), text


def test_recursive_rules_come_to_an_end() -> None:
    texts = {written(ARITHMETIC, seed, soft_limit_chars=40) for seed in range(200)}
    assert max(map(len, texts)) < 200
    assert any("(" in text and "*" in text for text in texts)
    for text in texts:
        eval(re.sub(r"\b0+(?=\d)", "", text))


def test_json_has_a_grammar() -> None:
    source = """
    root ::= value
    value ::= object | array | string | number | "true" | "null"
    object ::= "{" (string ":" value ("," string ":" value)*)? "}"
    array ::= "[" (value ("," value)*)? "]"
    string ::= "\\"" [a-z ]* "\\""
    number ::= "-"? ("0" | [1-9] [0-9]*)
    """
    for seed in range(200):
        json.loads(written(source, seed, soft_limit_chars=80))


def test_a_soft_limit_of_0_gives_the_shortest_sentence() -> None:
    assert len(written(ARITHMETIC, 1, soft_limit_chars=0)) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        # The words are those of captured replies.
        ("start: x", 'Grammar error: at 1(8): unknown name: "x"\n   1 | start: x\n              ^'),
        ('foo: "a"', "GBNF to Lark: Expected ::= at line 1, 'foo' ^ ': \"a\"'"),
        ("xx", "GBNF to Lark: Expected ::= at line 1, 'xx' ^ ''"),
        ("root ::= x", "GBNF to Lark: Rule 'x' not found"),
        ('root ::= "a', "GBNF to Lark: Unexpected end of input at line 1, 'root ::= \"a' ^ ''"),
        ('rule ::= "a"', "Rule 'root' not found"),
        ('root ::= ("a"', "Unexpected end of input"),
        ("start: /((/", "error: unclosed group"),
        ("start: x\n%import python.NAME -> x", "unknown name"),
        ("root ::= " + "(" * 500, "Unexpected token"),
    ],
)
def test_an_invalid_grammar_is_refused_with_vllms_message(source: str, reason: str) -> None:
    with pytest.raises(GrammarError) as refused:
        parse_grammar(source)
    assert reason in str(refused.value)


@given(st.text(alphabet='rotsa:= |()[]{}*+?"/\\\n~.%-', max_size=30), st.sampled_from(["root ::= ", "start: ", ""]))
def test_any_grammar_is_refused_or_written(text: str, head: str) -> None:
    try:
        grammar = parse_grammar(head + text)
    except GrammarError:
        return
    assert isinstance(matching_text(grammar, Random(1), 20), str)
