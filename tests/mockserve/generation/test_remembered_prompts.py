"""Prompts that come again: the same ids, within a bounded memory."""

from mockserve.generation.tokenizer import ENTRY_OVERHEAD_CHARS, BuiltinTokenizer, PromptTokenCache


def test_a_prompt_is_encoded_once() -> None:
    remembered = PromptTokenCache(BuiltinTokenizer())
    first = remembered.ids("one two", False)
    assert first == BuiltinTokenizer().encode("one two")
    assert remembered.ids("one two", False) is first
    assert remembered.ids("one two", True) is not first


def test_the_least_recently_used_prompt_is_evicted() -> None:
    remembered = PromptTokenCache(BuiltinTokenizer(), most_chars=8 + 2 * ENTRY_OVERHEAD_CHARS)
    one = remembered.ids("one", False)
    two = remembered.ids("two", False)
    assert remembered.ids("one", False) is one
    remembered.ids("three", False)
    assert remembered.ids("one", False) is one
    assert remembered.ids("two", False) is not two


def test_a_prompt_beyond_all_bounds_is_still_encoded() -> None:
    assert PromptTokenCache(BuiltinTokenizer(), most_chars=3).ids("four words are here", False)


def test_many_short_prompts_take_no_more_memory_than_few_long_ones() -> None:
    remembered = PromptTokenCache(BuiltinTokenizer(), most_chars=10_000)
    first = remembered.ids("a", False)
    for number in range(100):
        remembered.ids(str(number), False)
    assert remembered.ids("a", False) is not first
