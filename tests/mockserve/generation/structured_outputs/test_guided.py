"""Matches of regular expressions and sentences of grammars, written along the masks of llguidance."""

import json
import re
from random import Random

import pytest

from mockserve.generation.structured_outputs.backends import refusal_of_xgrammar
from mockserve.generation.structured_outputs.guided import GrammarError, grammar_of_xgrammar, guided_text
from mockserve.generation.structured_outputs.patterns import match_of, pattern_text

PATTERNS = (
    *(r"", r"abc", r"a|bc|", r"(a|b)*c+d?", r"\d{3}-\d{4}", r"[A-Z][a-z]{2,8}(?: [A-Z][a-z]+)?", r"[^abc]{3}[^\W\d]"),
    *(r"[\w.+-]+@[\w-]+\.(?:com|org)", r"^\s*-?(?:0|[1-9]\d*)(?:\.\d+)?$", r"(?P<year>19|20)\d\d-(?:0[1-9]|1[0-2])"),
    *(r"(?i)yes|no", r"a{2}b{2,}d{0}", r"x*?y+?z??", r"\x41\u00e9\.\\\/\[\]", r"[]a-]+[-x][\]\\]", r".{5,10}\S\D"),
    *(r"((a(b(c)?)?)?)", r"[\d\s]+[é-ü]", r"\bfoo\b", r"(\{\"a\": \d+\})", r"[\w-.]+[[&~]", r"[a-z]*;", r".*end"),
)
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
"""
JSON = r"""
root ::= value
value ::= object | array | string | number | "true" | "null"
object ::= "{" (string ":" value ("," string ":" value)*)? "}"
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" [a-z ]* "\""
number ::= "-"? ("0" | [1-9] [0-9]*)
"""


def sentence(source: str, seed: int, soft_limit_chars: int) -> str:
    return guided_text(grammar_of_xgrammar(source), Random(seed), soft_limit_chars)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_written_text_matches(pattern: str) -> None:
    for seed in range(0, 60, 4):
        text = match_of(pattern, Random(seed), seed)
        assert re.fullmatch(pattern.replace(r"[\w-.]+[[&~]", r"[\w\-.]+[\[&~]"), text), text


@pytest.mark.parametrize(("pattern", "length"), [(r"a*b", 1), (r"(abc|de|f+)", 3), (r"\d{4}(x|yy)", 6), (r"a{3,}", 3)])
def test_a_soft_limit_of_0_gives_about_the_shortest_match(pattern: str, length: int) -> None:
    for seed in range(10):
        assert len(match_of(pattern, Random(seed), 0)) <= length + 16


@pytest.mark.parametrize("pattern", [r"(ab|cd|e)*", r".*;", "[a-z ]+end"])
def test_texts_stay_near_their_soft_limit(pattern: str) -> None:
    for seed in range(10):
        assert len(match_of(pattern, Random(seed), 40)) <= 56


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("((", "unclosed group"),
        ("[a", "unclosed character class"),
        ("a{3,1}", "invalid repetition count range"),
        ("*a", "repetition operator missing expression"),
        ("a\\1(b)", "backreferences are not supported"),
        ("a)", "unopened group"),
        ("(" * 5000, "invalid regex"),
    ],
)
def test_an_invalid_pattern_is_refused_in_the_words_of_the_library(pattern: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        match_of(pattern, Random(1), 0)


@pytest.mark.parametrize(
    "pattern", [r"^(?=.*[A-Z])(?=.*\d).{8,}$", "^(?!a)[a-c]{2}$", r"^\w+(?<!_)$", r"(?=.*secret)", r"^\w+\b,(?! ).+$"]
)
def test_assertions_are_met(pattern: str) -> None:
    for seed in range(10):
        text = pattern_text(pattern, Random(seed), 24)
        assert re.search(pattern, text), text
        assert json.dumps(text) == f'"{text}"'


@pytest.mark.parametrize(
    ("source", "pattern"),
    [
        (SQL, r"SELECT col_[12]  from table_[12]  where col_[12] = [12] "),
        ('root ::= "a" [b-d]+ (x | "y"){2} z?\nx ::= "x"\nz ::= "\\n\\x41"', r"a[b-d]+[xy]{2}(\nA)?"),
        ('root ::= [^a-z"\\\\]{1,3} "\\""', r"[^a-z\"\\]{1,3}\""),
        ('root ::= "a" (= "b") | ', r"a?"),
        ('root ::=\n  "a"\n  "\\x22" # next\n  "b"', 'a"b'),
        ('start: "a".."c" /[0-9]{2}/ "x"i ["?"] WORD~2\n%import common (WORD, INT)', r"[abc]\d\d[xX]\??[a-zA-Z]+"),
        ('start: item+ "!"~1..3\nitem: A | B\nA: "a"\nB: /b/i', r"[abB]+!{1,3}"),
        ('start: "a"\n     | "b" // or\n     | "c"\n', r"[abc]"),
        ("start: n\n%import common.INT -> n", r"\d+"),
        ('// start ::= "a"\nstart: "b"  // ::=\n# start ::= "c"', r"b"),
    ],
)
def test_the_written_text_is_a_sentence_of_the_grammar(source: str, pattern: str) -> None:
    for seed in range(0, 60, 4):
        text = sentence(source, seed, soft_limit_chars=seed)
        assert re.fullmatch(pattern, text), text


def test_recursive_rules_come_to_an_end() -> None:
    texts = {sentence(ARITHMETIC, seed, soft_limit_chars=40) for seed in range(40)}
    assert max(map(len, texts)) < 200
    for text in texts:
        eval(re.sub(r"\b0+(?=\d)", "", text))
    for seed in range(40):
        json.loads(sentence(JSON, seed, soft_limit_chars=80))


@pytest.mark.parametrize(
    "source", ["start: x", 'foo: "a"', "root ::= x", 'root ::= "a', 'root ::= ("a"', "start: /((/"]
)
def test_an_invalid_grammar_is_refused(source: str) -> None:
    assert refusal_of_xgrammar("grammar", source) is not None


@pytest.mark.parametrize(
    ("pattern", "is_refused"),
    [
        (r"a[\b]", False),
        (r"\\b", False),
        ("(?<n>x)", False),
        (r"\Bx", True),
        (r"a\1", True),
        ("x{", True),
        ("(?i)x", True),
    ],
)
def test_constructs_that_only_llguidance_knows_are_refused(pattern: str, is_refused: bool) -> None:
    assert (refusal_of_xgrammar("regex", pattern) is not None) == is_refused
