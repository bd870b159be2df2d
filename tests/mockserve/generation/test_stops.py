"""How stop tokens and stop strings end an answer, and which text is held back meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from mockserve.generation.answer import Answer, apply_stops
from mockserve.generation.tokenizer import Split
from mockserve.protocol.bodies import Ending
from mockserve.protocol.sampling import SamplingParams


def text_of(answer: Answer) -> str:
    return "".join(answer.texts)


def test_text_is_held_back_while_it_could_become_a_stop_string() -> None:
    # The pieces and the expected events are those of a captured vLLM stream.
    answer = composed_of([" this", " is", " a", " test", " of"], SamplingParams(stop=("a test",)))
    assert answer.texts == ["", " th", "is", " is "]
    assert (answer.ending.finish_reason, answer.ending.stop_reason) == ("stop", "a test")


def test_held_back_text_comes_with_the_last_token() -> None:
    answer = composed_of([" one", " two", " three"], SamplingParams(stop=("never",)))
    assert answer.texts == ["", " one", " two three"]
    assert answer.ending.finish_reason == "length"


def test_a_stop_string_may_be_kept() -> None:
    answer = composed_of([" one", " two", " three"], SamplingParams(stop=("two",), include_stop_str_in_output=True))
    assert answer.texts == [" one", " two"]


stops = st.lists(st.text(alphabet="ab ", min_size=1, max_size=4), min_size=1, max_size=4)
pieces_of_text = st.lists(st.text(alphabet="ab ", max_size=3), min_size=1, max_size=12)


@given(pieces_of_text, stops, st.integers(0, 5), st.booleans())
def test_stop_strings_end_the_text_where_checking_token_by_token_does(
    pieces: list[str], stop: list[str], min_tokens: int, include: bool
) -> None:
    min_tokens = min(min_tokens, len(pieces))
    sampling = SamplingParams(stop=tuple(stop), min_tokens=min_tokens, include_stop_str_in_output=include)
    answer = composed_of(pieces, sampling)
    tokens, text, reason = stopped_token_by_token(pieces, sampling)
    assert (answer.num_tokens, text_of(answer), answer.ending.stop_reason) == (tokens, text, reason)


def stopped_token_by_token(pieces: list[str], sampling: SamplingParams) -> tuple[int, str, str | None]:
    """Tokens, text and stop string by the plain reading of the rule: look for a new match after each token."""
    text = ""
    checked = 0
    for number, piece in enumerate(pieces, start=1):
        text += piece
        if number <= sampling.min_tokens:
            checked = len(text)
            continue
        ends = [
            (text.find(stop, max(0, checked + 1 - len(stop))) + len(stop), order, stop)
            for order, stop in enumerate(sampling.stop)
            if text.find(stop, max(0, checked + 1 - len(stop))) >= 0
        ]
        if ends:
            end, _, stop = min(ends)
            return number, text[: end if sampling.include_stop_str_in_output else end - len(stop)], stop
        checked = len(text)
    return len(pieces), text, None


def composed_of(pieces: list[str], sampling: SamplingParams) -> Answer:
    """Return the answer when the model writes `pieces` and then runs out of budget."""
    return apply_stops(Split(range(len(pieces)), pieces), Ending("length"), sampling)


def test_a_stop_token_is_counted_but_not_shown() -> None:
    answer = apply_stops(Split([7, 8, 9], ["a", "b", "c"]), Ending("length"), SamplingParams(stop_token_ids=(8,)))
    assert (answer.texts, answer.token_ids, answer.ending) == (["a", ""], [7, 8], Ending("stop", 8))


def test_a_stop_token_is_shown_on_request() -> None:
    sampling = SamplingParams(include_stop_str_in_output=True, stop_token_ids=(8,))
    assert apply_stops(Split([7, 8], ["a", "b"]), Ending("length"), sampling).texts == ["a", "b"]


def test_stop_tokens_do_not_count_before_the_least_number_of_tokens() -> None:
    said = Split([8, 8, 8], ["a", "b", "c"])
    assert apply_stops(said, Ending("length"), SamplingParams(min_tokens=2, stop_token_ids=(8,))).num_tokens == 3


def test_the_end_marker_is_no_stop_token() -> None:
    assert apply_stops(Split([7, 2], ["a", ""]), Ending("stop"), SamplingParams(stop_token_ids=(2,))).ending == Ending(
        "stop"
    )
