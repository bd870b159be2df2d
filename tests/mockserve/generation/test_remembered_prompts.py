"""Prompts that come again: the same ids, within a bounded memory."""

from mockserve.generation.tokenizer import CHARS_BESIDE, BuiltinTokenizer, RememberedPrompts


def test_a_prompt_is_encoded_once() -> None:
    remembered = RememberedPrompts(BuiltinTokenizer())
    first = remembered.ids("one two", False)
    assert first == BuiltinTokenizer().encode("one two")
    assert remembered.ids("one two", False) is first
    assert remembered.ids("one two", True) is not first


def test_the_longest_unused_is_forgotten_first() -> None:
    remembered = RememberedPrompts(BuiltinTokenizer(), most_chars=8 + 2 * CHARS_BESIDE)
    one = remembered.ids("one", False)
    two = remembered.ids("two", False)
    assert remembered.ids("one", False) is one
    remembered.ids("three", False)
    assert remembered.ids("one", False) is one
    assert remembered.ids("two", False) is not two


def test_a_prompt_beyond_all_bounds_is_still_encoded() -> None:
    assert RememberedPrompts(BuiltinTokenizer(), most_chars=3).ids("four words are here", False)


def test_many_short_prompts_take_no_more_room_than_few_long_ones() -> None:
    remembered = RememberedPrompts(BuiltinTokenizer(), most_chars=10_000)
    first = remembered.ids("a", False)
    for number in range(100):
        remembered.ids(str(number), False)
    assert remembered.ids("a", False) is not first
