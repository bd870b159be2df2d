from hypothesis import given
from hypothesis import strategies as st

from observe.requests import WORDS, PromptGenerator, TokenScale, calibration_text, scale_from_counts


def book(seed: int = 42, scale: TokenScale | None = None) -> PromptGenerator:
    return PromptGenerator(seed, scale or TokenScale())


def test_there_are_a_hundred_different_words() -> None:
    assert len(WORDS) == len(set(WORDS)) == 100


@given(st.floats(1, 3), st.integers(0, 60), st.integers(80, 200_000))
def test_prompts_have_the_requested_length_for_any_tokenizer(per_word: float, around: int, tokens: int) -> None:
    def count(num_words: int) -> int:
        return round(num_words * per_word) + around

    scale = scale_from_counts(count(100), count(200))
    if scale is None:
        assert not 1 <= (count(200) - count(100)) / 100 <= 3
        return
    words = scale.words(tokens)
    # The scale is known to a hundredth of a token per word.
    assert abs(count(words) - tokens) <= 2 + 0.011 * words


def test_a_counted_scale_is_exact_where_words_are_tokens() -> None:
    assert scale_from_counts(100, 200) == TokenScale(1.0, 0)
    assert scale_from_counts(121, 221) == TokenScale(1.0, 21)
    assert scale_from_counts(150, None) == TokenScale(1.5, 0)


def test_a_scale_that_no_tokenizer_has_is_ignored() -> None:
    assert scale_from_counts(None, None) is None
    assert scale_from_counts(5, 5) is None
    assert scale_from_counts(400, 800) is None


def test_the_words_of_a_prompt_depend_on_nothing_but_seed_and_number() -> None:
    later_first = book()
    later_first.text(9, input_tokens=50)
    assert later_first.text(3, input_tokens=50) == book().text(3, input_tokens=50)
    assert book(1).text(3, input_tokens=50) != book(2).text(3, input_tokens=50)


def test_no_two_prompts_begin_alike() -> None:
    prompts = book()
    starts = {tuple(prompts.text(number, input_tokens=100).split()[:16]) for number in range(2000)}
    assert len(starts) == 2000


def test_prompts_of_a_group_share_their_prefix_and_nothing_else() -> None:
    prompts = book(scale=TokenScale(1.0, 5))
    first, second = (
        prompts.text(number, input_tokens=60, prefix_group="g", prefix_tokens=40).split() for number in (1, 2)
    )
    assert len(first) == len(second) == 95
    assert first[:40] == second[:40]
    assert first[40:56] != second[40:56]


def test_a_prompt_longer_than_the_text_it_is_cut_from_has_its_length() -> None:
    assert len(book().text(0, input_tokens=150_000).split()) == 150_000


def test_the_calibration_text_has_each_word_once_per_round() -> None:
    assert sorted(calibration_text(1).split()) == sorted(WORDS)
    assert len(calibration_text(2).split()) == 200
