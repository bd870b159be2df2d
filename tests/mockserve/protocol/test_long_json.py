"""Large JSON bodies are read as small ones are, and refused when their values would take too much memory."""

import gc
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.executor.executor import SWITCH_INTERVAL_S
from mockserve.protocol.errors import ApiError
from mockserve.protocol.json_text import (
    LARGE_BYTES,
    MOST_SHORT_STRINGS,
    MOST_VALUE_BYTES,
    SHORT_CHARS,
    loads_in_pieces,
    parse_json,
    parse_large_json,
    value_bytes,
)
from tests.patience import attempts

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
)


@given(VALUES)
def test_parses_like_the_standard_library(value: Any) -> None:
    raw = json.dumps(value).encode()
    assert loads_in_pieces([raw]) == json.loads(raw)


@given(st.text(alphabet='{}[]",:0123abetrunl\\ .-', max_size=12))
def test_has_the_error_messages_of_the_standard_library(text: str) -> None:
    def outcome(read: Any) -> object:
        try:
            return repr(read())
        except ValueError as error:
            return str(error)

    assert outcome(lambda: loads_in_pieces([text.encode()])) == outcome(lambda: json.loads(text.encode()))


@pytest.mark.parametrize("beginning", [b"", b"{", b'{"a": [1, 2,', b'{"a": tru', b'\xff{"a": 1}', b"[" * 5000])
def test_a_large_body_is_refused_as_a_small_one_is(beginning: bytes) -> None:
    raw = beginning + b" " * LARGE_BYTES
    with pytest.raises(ApiError) as small:
        parse_json(raw)
    with pytest.raises(ApiError) as large:
        parse_large_json([raw])
    assert (large.value.body(), large.value.status) == (small.value.body(), small.value.status)


def test_a_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    for raw in (b'{"a":[' + b"[]," * 2_000_000 + b"1]}", b'{"a":[' + b"1," * 8_000_000 + b"1]}"):
        with pytest.raises(ApiError) as refusal:
            parse_large_json([raw])
        assert refusal.value.status == 413


def test_a_body_of_200_000_turns_and_one_of_long_text_are_read() -> None:
    turns = [{"role": "user", "content": "hi"}] * 200_000
    raw = json.dumps({"messages": turns}).encode()
    assert parse_large_json([raw]) == {"messages": turns}
    assert value_bytes(b'{"a":"' + b"x" * 30_000_000 + b'"}') < 40_000_000


def test_bodies_of_many_objects_with_a_text_each_are_too_much() -> None:
    part = b'{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}'
    assert value_bytes(b"[" + b",".join([part] * 300_000) + b"]") > MOST_VALUE_BYTES


def test_characters_of_four_bytes_take_as_many_in_the_text_and_in_its_strings() -> None:
    raw = b'{"a":"' + "\U0001f600".encode() * 2_000_000 + b'"}'
    assert value_bytes(raw) > len(raw) + 2 * 4 * 2_000_000


def test_an_object_of_many_members_equals_the_standard_librarys() -> None:
    members = ",".join(f'"k{each % 2500}": {each}' for each in range(5000))
    text = f'{{"a": {{{members}}}}}'
    found, expected = loads_in_pieces([text.encode()]), json.loads(text)
    assert found == expected
    assert list(found["a"]) == list(expected["a"])


@pytest.mark.slow
def test_other_threads_run_while_an_object_of_many_members_is_read() -> None:
    raw = json.dumps({"extra": {f"k{each}": each for each in range(600_000)}}).encode()
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()
    try:
        for _ in attempts():
            if longest_pause_s(lambda: loads_in_pieces([raw])) < 0.1:
                break
    finally:
        gc.enable()
        sys.setswitchinterval(before_s)


def longest_pause_s(work: Callable[[], object]) -> float:
    """How long this thread was kept from running at most, while another did some work."""
    thread = threading.Thread(target=work)
    thread.start()
    longest_s, last_s = 0.0, time.monotonic()
    while thread.is_alive():
        time.sleep(0.001)
        now_s = time.monotonic()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


def test_equal_short_texts_share_their_memory_and_long_ones_are_their_own() -> None:
    long = "x" * (SHORT_CHARS + 1)
    text = json.dumps([{"role": "user", "content": long}] * 3 + [{"role": "user"}] * 20_000)
    first, second, *_ = found = loads_in_pieces([text.encode()])
    assert len({id(each["role"]) for each in found}) == 1
    assert first["content"] is not second["content"]


def test_distinct_short_texts_beyond_a_number_are_read_all_the_same() -> None:
    texts = [f"t{number}" for number in range(MOST_SHORT_STRINGS + 10)]
    found = loads_in_pieces([json.dumps([*texts, "t1", texts[-1]]).encode()])
    assert found == [*texts, "t1", texts[-1]]
    assert found[-2] is found[1]
    assert found[-1] is not found[-3]
