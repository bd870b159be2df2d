"""Prompts that come again: the same ids, within a bounded memory."""

import asyncio
import threading

from mockserve.content.tokens.aside import LONG_TEXT_CHARS, encode_aside
from mockserve.content.tokens.remembered import CHARS_BESIDE, RememberedPrompts
from mockserve.content.tokens.tokenizer import BuiltinTokenizer


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


class PatientTokenizer(BuiltinTokenizer):
    """One that goes on when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        assert self.may_go.wait(10)
        return super().encode(text, add_special_tokens)


async def test_others_go_on_while_a_long_text_is_encoded() -> None:
    tokenizer, text = PatientTokenizer(), "a" * LONG_TEXT_CHARS
    encoding = asyncio.create_task(encode_aside(tokenizer, text))
    await asyncio.sleep(0)
    tokenizer.may_go.set()
    assert await encoding == BuiltinTokenizer().encode(text)


async def test_what_was_read_ahead_is_known() -> None:
    tokenizer, text = PatientTokenizer(), "a" * LONG_TEXT_CHARS
    remembered = RememberedPrompts(tokenizer)
    tokenizer.may_go.set()
    await asyncio.gather(remembered.read_ahead(text, False), remembered.read_ahead(text, False))
    assert remembered.ids(text, False) is remembered.ids(text, False)
