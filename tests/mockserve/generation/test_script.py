"""A script, cut into tokens and sorted by kind."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.answer import CutCalls, Delta, Kind, RenderOptions, Segment, render_tokens, sorted_by_kind
from mockserve.generation.tokenizer import BuiltinTokenizer
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import SamplingParams

TOKENIZER = BuiltinTokenizer()
THINKING = (
    Segment(Kind.MARKUP, "<think>"),
    Segment(Kind.REASONING, "I think so"),
    Segment(Kind.MARKUP, "</think>"),
    Segment(Kind.CONTENT, "The answer"),
)


def performance(budget: int = 100, **sampling: object) -> RenderOptions:
    return RenderOptions(TOKENIZER, SamplingParams(**sampling), budget)  # type: ignore[arg-type]


def test_text_is_sorted_by_kind() -> None:
    answer = render_tokens(THINKING, performance())
    assert answer.deltas == [
        (),
        (Delta(Kind.REASONING, "I"),),
        (Delta(Kind.REASONING, " think"),),
        (Delta(Kind.REASONING, " so"),),
        (),
        (Delta(Kind.CONTENT, "The"),),
        (Delta(Kind.CONTENT, " answer"),),
        (),
    ]
    assert answer.num_reasoning_tokens == 3
    assert (answer.ending, answer.token_ids[-1]) == (Ending("stop"), TOKENIZER.eos_token_id)


def test_a_thought_of_one_character_is_one_token_of_reasoning() -> None:
    script = [replace(each, text="I") if each.kind is Kind.REASONING else each for each in THINKING]
    for opened in (script, script[1:]):  # the chat template may have opened it
        assert render_tokens(opened, performance()).num_reasoning_tokens == 1


def test_a_token_may_bring_two_kinds() -> None:
    script = [Segment(Kind.CONTENT, "a "), Segment(Kind.MARKUP, "<"), Segment(Kind.TOOL_ARGUMENTS, "{}", call=1)]
    assert sorted_by_kind(["a", " <{", "}"], script) == [
        (Delta(Kind.CONTENT, "a"),),
        (Delta(Kind.CONTENT, " "), Delta(Kind.TOOL_ARGUMENTS, "{", 1)),
        (Delta(Kind.TOOL_ARGUMENTS, "}", 1),),
    ]


def test_a_name_is_shown_when_it_is_complete() -> None:
    script = [Segment(Kind.TOOL_NAME, 'get_weather"', shown="get_weather")]
    assert sorted_by_kind(["get", "_weather", '"'], script) == [(), (), (Delta(Kind.TOOL_NAME, "get_weather"),)]


def test_a_budget_cuts_the_text() -> None:
    answer = render_tokens(THINKING, performance(budget=3))
    assert (answer.num_tokens, answer.ending, answer.num_reasoning_tokens) == (3, Ending("length"), 2)


def test_a_call_that_is_cut_within_the_marks_of_reasoning_leaves_nothing_unparsed() -> None:
    call = [
        Segment(Kind.MARKUP, '<tool_call>\n{"name": "'),
        Segment(Kind.TOOL_NAME, 'look"', shown="look"),
        Segment(Kind.MARKUP, ', "arguments": '),
        Segment(Kind.TOOL_ARGUMENTS, "{}"),
        Segment(Kind.MARKUP, "}\n</tool_call>"),
    ]
    assert render_tokens([*THINKING[:3], *call], performance(budget=1)).cut == CutCalls("", 0, False)


def test_an_answer_that_may_not_end_is_filled_with_end_markers() -> None:
    answer = render_tokens([Segment(Kind.CONTENT, "one")], performance(budget=4, ignore_eos=True))
    assert (answer.num_tokens, answer.ending, "".join(answer.texts)) == (4, Ending("length"), "one")
    answer = render_tokens([Segment(Kind.CONTENT, "one")], performance(budget=9, min_tokens=4))
    assert (answer.num_tokens, answer.ending) == (5, Ending("stop"))


kinds = st.sampled_from([Kind.CONTENT, Kind.REASONING, Kind.MARKUP, Kind.TOOL_ARGUMENTS])
segments = st.builds(Segment, kinds, st.text(max_size=8), st.integers(0, 2))


@given(st.lists(segments, max_size=8), st.lists(st.integers(0, 6)))
def test_no_text_is_lost_or_repeated(script: list[Segment], sizes: list[int]) -> None:
    whole = "".join(each.text for each in script)
    texts = []
    at = 0
    for size in sizes:
        texts.append(whole[at : at + size])
        at += size
    texts.append(whole[at:])
    shown = [delta for deltas in sorted_by_kind(texts, script) for delta in deltas]
    for kind in Kind:
        if kind is not Kind.MARKUP:
            expected = "".join(each.text for each in script if each.kind is kind)
            assert "".join(each.text for each in shown if each.kind is kind) == expected


def test_equal_tokens_of_a_segment_share_one_delta() -> None:
    texts = [" yes", " no"] * 500
    thought, said = Segment(Kind.REASONING, "".join(texts[:500])), Segment(Kind.CONTENT, "".join(texts[500:]))
    deltas = sorted_by_kind(texts, (thought, said))
    assert deltas == [
        (Delta(Kind.REASONING if place < 500 else Kind.CONTENT, text),) for place, text in enumerate(texts)
    ]
    assert len({id(each) for each in deltas}) <= 6


def test_without_a_parser_all_is_content() -> None:
    answer = render_tokens([Segment(Kind.CONTENT, "so it is")], replace(performance(), is_parsed=False))
    assert (answer.deltas, "".join(answer.texts), answer.texts[-1]) == (None, "so it is", "")
