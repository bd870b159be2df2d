"""Bodies in which few strings have characters beyond ASCII are read without widening all of their text."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mockserve.protocol import json_text
from mockserve.protocol.json_text import MOST_VALUE_BYTES, MOST_WIDE_BYTES, loads_in_pieces, narrow_text, value_bytes

EMOJI = "\U0001f600"
TEXT = st.text(alphabet='aé漢\U0001f600"\\\n\x01\u2028', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)
PIECES = st.sampled_from(
    [
        '"',
        "\\",
        '\\"',
        "\\\\",
        "é",
        "漢",
        EMOJI,
        "\\u00e9",
        "\\ud83d",
        "a",
        "\n",
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "1",
        " ",
    ]
)


@pytest.fixture(autouse=True, scope="module")
def checked_always() -> Iterator[None]:
    """Short bodies are read as long ones are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "CHECKED_BYTES", 0)
        yield


def outcome(read: Any) -> object:
    try:
        return repr(read())
    except ValueError as error:
        return str(error)


@given(VALUES, st.booleans())
def test_parses_like_the_standard_library(value: Any, escapes: bool) -> None:
    raw = json.dumps(value, ensure_ascii=escapes).encode()
    assert loads_in_pieces([raw]) == json.loads(raw)


@given(st.lists(PIECES, max_size=14).map("".join))
@example('{"é": "a\nb"}')
@example('["é\\x"]')
@example(f'["{EMOJI}\n{EMOJI}", é]')
@example(f'["é"]\n["{EMOJI}"')
@example('["\\é"]')
@example('"é')
def test_has_the_error_messages_and_positions_of_the_standard_library(text: str) -> None:
    raw = text.encode()
    assert outcome(lambda: loads_in_pieces([raw])) == outcome(lambda: json.loads(raw))


@given(st.binary(max_size=8).map(lambda raw: b'["' + raw + b'"]'))
def test_bytes_that_are_not_utf_8_are_parsed_like_by_the_standard_library(raw: bytes) -> None:
    assert outcome(lambda: loads_in_pieces([raw])) == outcome(lambda: json.loads(raw))


def test_the_text_is_ascii() -> None:
    raw = f'{{"a": "é {EMOJI}", "b": "x"}}'.encode()
    narrow = narrow_text(raw)
    assert narrow is not None
    assert narrow.of(raw) == '{"a": "\\u00e9 \\ud83d\\ude00", "b": "x"}'
    assert narrow.num_bytes == len(f"é {EMOJI}".encode())


@pytest.mark.parametrize(
    "raw",
    [
        b'["' + b"x" * MOST_WIDE_BYTES + "é".encode() + b'"]',
        b'["' + "é".encode() + b"x" * MOST_WIDE_BYTES + b'"]',
        b"[" + b",".join(['"é"'.encode()] * 20_000) + b"]",
        b'["' + b'\\"' * 50_000 + "é".encode() + b'"]',
        b'["' + b"\\\\" * 100 + b'"'.join(["é".encode()] * 2) + b'"]',
        b'["\\' + "é".encode() + b'"]',
        b'["\xe9"]',
        "é".encode(),
    ],
    ids=["long before", "long after", "many", "many quotes", "many backslashes", "escaped", "no text", "no string"],
)
def test_text_that_would_be_costly_is_read_in_the_usual_way(raw: bytes) -> None:
    assert narrow_text(raw) is None


def test_pictures_beside_a_message_with_an_emoji_are_taken() -> None:
    raw = f'{{"text": "hello {EMOJI}", "url": "'.encode() + b"A" * 30_000_000 + b'"}'
    assert value_bytes(raw) < MOST_VALUE_BYTES
    assert loads_in_pieces([raw])["text"] == f"hello {EMOJI}"


@pytest.mark.parametrize(("character", "num_mb"), [("é", 31), ("…", 31), (EMOJI, 17)])
def test_one_character_widens_its_own_string(character: str, num_mb: int) -> None:
    body = b'{"prompt": "' + b"x" * (num_mb * 10**6) + character.encode() + b'"}'
    assert value_bytes(body) <= MOST_VALUE_BYTES
    assert value_bytes(body.replace(character.encode(), EMOJI.encode() + b"x" * 15_000_000)) > MOST_VALUE_BYTES


@pytest.mark.parametrize("character", ["é", "漢", EMOJI])
def test_text_of_nothing_but_wide_characters_is_taken(character: str) -> None:
    encoded = character.encode()
    assert value_bytes(b'{"prompt": "' + encoded * (31_000_000 // len(encoded)) + b'"}') <= MOST_VALUE_BYTES
