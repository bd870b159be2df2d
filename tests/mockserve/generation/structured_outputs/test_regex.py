"""Texts that match a regular expression, and what is said of one that is none."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.structured_outputs.expressions import Grammar, matching_text
from mockserve.generation.structured_outputs.regex_parser import RegexError, parse_regex

PATTERNS = (
    r"",
    r"abc",
    r"a|bc|",
    r"(a|b)*c+d?",
    r"\d{3}-\d{4}",
    r"[A-Z][a-z]{2,8}(?: [A-Z][a-z]+)?",
    r"[\w.+-]+@[\w-]+\.(?:com|org)",
    r"^\s*-?(?:0|[1-9]\d*)(?:\.\d+)?$",
    r"[^abc]{3}[^\W\d]",
    r"(?P<year>19|20)\d\d-(?:0[1-9]|1[0-2])",
    r"(?i)yes|no",
    r"a{2}b{2,}c{,3}d{0}",
    r"x*?y+?z??",
    r"\x41\u00e9\.\\\/\[\]",
    r"[]a-]+[-x][\]\\]",
    r".{5,10}\S\D",
    r"((a(b(c)?)?)?)",
    r"[\d\s]+[é-ü]",
    r"\bfoo\b",
    r"(\{\"a\": \d+\})",
)


def written(pattern: str, seed: int, soft_limit_chars: int) -> str:
    return matching_text(Grammar(parse_regex(pattern)), Random(seed), soft_limit_chars)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_written_text_matches(pattern: str) -> None:
    for seed in range(60):
        text = written(pattern, seed, soft_limit_chars=seed)
        assert re.fullmatch(pattern, text), text


words = st.text(alphabet="ab1 _-", max_size=3).map(re.escape)
patterns = st.recursive(
    words | st.sampled_from([r"\d", r"\w", ".", "[a-c]", "[^a]", r"[\d_]"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=12,
)


@given(patterns, st.integers(0, 1000), st.integers(0, 60))
def test_the_written_text_matches_any_pattern(pattern: str, seed: int, soft_limit_chars: int) -> None:
    assert re.fullmatch(pattern, written(pattern, seed, soft_limit_chars))


@pytest.mark.parametrize(("pattern", "length"), [(r"a*b", 1), (r"(abc|de|f+)", 1), (r"\d{4}(x|yy)", 5), (r"a{3,}", 3)])
def test_a_soft_limit_of_0_gives_the_shortest_match(pattern: str, length: int) -> None:
    assert len(written(pattern, seed=1, soft_limit_chars=0)) == length


@given(st.integers(0, 1000), st.integers(10, 400))
def test_texts_stay_near_their_soft_limit(seed: int, soft_limit_chars: int) -> None:
    assert len(written(r"(ab|cd|e)*", seed, soft_limit_chars)) <= soft_limit_chars


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        # The reasons and marks are those of captured replies.
        ("((", "    ((\n     ^\nerror: unclosed group"),
        ("[a", "    [a\n    ^\nerror: unclosed character class"),
        ("a{3,1}", "     ^^^^^\nerror: invalid repetition count range, the start must be <= the end"),
        ("*a", "    *a\n    ^\nerror: repetition operator missing expression"),
        ("(?=a)b", "    ^^^\nerror: look-around, including look-ahead and look-behind, is not supported"),
        ("(?!a)b", "    ^^^\nerror: look-around, including look-ahead and look-behind, is not supported"),
        ("a\\1(b)", "     ^^\nerror: backreferences are not supported"),
        ("\\p{Zz}", "    ^^^^^^\nerror: Unicode property not found"),
        ("a)", "    a)\n     ^\nerror: unopened group"),
        ("(?P<n", "         ^\nerror: unclosed capture group name"),
        ("[b-a]", "     ^^^\nerror: invalid character class range, the start must be <= the end"),
        ("\\", "error: incomplete escape sequence, reached end of pattern prematurely"),
        ("a{", "error: unclosed counted repetition"),
        ("a{x}", "error: repetition quantifier expects a valid decimal"),
        ("\\q", "error: unrecognized escape sequence"),
        ("(" * 5000, "error: exceed the maximum number of nested"),
    ],
)
def test_an_invalid_pattern_is_refused_with_vllms_message(pattern: str, reason: str) -> None:
    with pytest.raises(RegexError) as refused:
        parse_regex(pattern)
    assert reason in str(refused.value)


@given(st.text(alphabet="ab()[]{}|*+?\\^$.-,:<=!Pdwx1", max_size=12))
def test_any_pattern_is_refused_or_written(pattern: str) -> None:
    try:
        expression = parse_regex(pattern)
    except RegexError:
        return
    assert isinstance(matching_text(Grammar(expression), Random(1), 20), str)
