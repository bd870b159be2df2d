"""Hostile ways to write a body down as JSON text: what parsers disagree about, and what is no JSON at all."""

import json
import random
import re
from collections.abc import Callable
from typing import Any, TypeAlias

TextTrick: TypeAlias = Callable[[bytes, random.Random], bytes]

_NUMBER = re.compile(rb"(?<=[:,\[ ])-?\d+(\.\d+)?(?=[,\]}])")
_STRING = re.compile(rb'"[^"\\]*"(?=[,\]}])')
_VALUE = re.compile(rb'(?<=: )("[^"\\]*"|-?\d+(\.\d+)?|null|true|false|\[\]|\{\})(?=[,\]}])')

ODD_NUMBERS = (
    b"1e400", b"-1e400", b"1" * 4301, b"9" * 100_000, b"-" + b"7" * 5000, b"0." + b"3" * 5000, b"1e-400", b"NaN",
    b"Infinity", b"-Infinity", b"01", b"+1", b"1.", b".5", b"0x10", b"1_000", b"1e", b"--1", b"1e99999999999", b"-",
    b"18446744073709551616", b"9223372036854775808", b"-9223372036854775809", b"1" * 400,
)  # fmt: skip
ODD_STRINGS = (
    rb'"\ud800"', rb'"\udc00"', rb'"\ud800\ud800"', rb'"\u0000"', b'"\x00"', b'"\x01"', b'"\xff"', b'"\xc0\xaf"',
    b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"a\nb"', b'"\t"', rb'"\x41"', rb'"\u12"', b"'single'", b'"unended',
    b'"\xe2\x80\xa8"', rb'"\ud83d"', b'"\xef\xbf\xbe"', b'"' + b"\\u0000" * 2000 + b'"', b'"' + b"\\" * 3 + b'"',
    b'""""', b"undefined",
)  # fmt: skip
ODD_VALUES = (
    b"[" * 100_000, b"[" * 2000 + b"]" * 2000, b"[" * 500 + b"]" * 500, b'{"a":' * 100_000,
    b'{"a":' * 2000 + b"1" + b"}" * 2000, b'{"a":' * 500 + b"1" + b"}" * 500, b"[1,]", b'{"a":1,}', b"{1:2}", b"[,]",
    b"{,}", b'{"a" 1}', b"nul", b"tru", b"/* c */ 1", b"1 // c\n", b"[1 2]", b'{"a":1,"a":2}', b"[[[[[[]", b"\\",
    b"\xff", b"\x00", b"True", b"None",
)  # fmt: skip
WHOLE_TEXTS = (
    b"", b" ", b"\n", b"null", b"true", b"3", b'"x"', b"[]", b"{}", b"[{}]", b"[" * 100_000,
    b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b"{", b"}", b"{}{}", b"{} x", b"\x00",
    b"\xff\xfe", b"\xef\xbb\xbf{}", b"NaN", b"1e400", b"9" * 5000, b"-", b'"\\ud800"', b"'", b"<xml/>", b"a=b",
    b"{'a': 1}", b'{"model"}', b"\xed\xa0\x80", b"[1e400]", b"{}" + b" " * 100_000, b"[" + b"1," * 100_000 + b"1]",
    b"[" * 990 + b"]" * 990, b"[" * 1020 + b"]" * 1020,
)  # fmt: skip


def dumped(body: Any) -> bytes:
    """`body` as JSON text; numbers and strings that JSON does not have are written as Python writes them."""
    return json.dumps(body).encode()


def hostile_text(text: bytes, rng: random.Random) -> tuple[str, bytes]:
    """The name of a trick, and what it makes of a well-formed text."""
    trick = rng.choice(TRICKS)
    return trick.__name__.removeprefix("_"), trick(text, rng)


def _with(pattern: re.Pattern[bytes], replacements: tuple[bytes, ...], text: bytes, rng: random.Random) -> bytes:
    """`text` with one match of a pattern replaced."""
    found = list(pattern.finditer(text))
    if not found:
        return rng.choice(replacements)
    match = rng.choice(found)
    return text[: match.start()] + rng.choice(replacements) + text[match.end() :]


def _odd_number(text: bytes, rng: random.Random) -> bytes:
    return _with(_NUMBER, ODD_NUMBERS, text, rng)


def _odd_string(text: bytes, rng: random.Random) -> bytes:
    return _with(_STRING, ODD_STRINGS, text, rng)


def _odd_value(text: bytes, rng: random.Random) -> bytes:
    return _with(_VALUE, ODD_VALUES + ODD_NUMBERS + ODD_STRINGS, text, rng)


def _odd_number_as_new_field(text: bytes, rng: random.Random) -> bytes:
    return b'{"new_field": ' + rng.choice(ODD_NUMBERS + ODD_VALUES) + b", " + text.removeprefix(b"{")


def _whole(_text: bytes, rng: random.Random) -> bytes:
    return rng.choice(WHOLE_TEXTS)


def _duplicate_keys(text: bytes, rng: random.Random) -> bytes:
    extra = rng.choice([b'"model": "m"', b'"model": null', b'"messages": []', b'"prompt": 3', b'"input": "x"'])
    return text.removesuffix(b"}") + b", " + b", ".join([extra] * rng.choice([1, 2, 50])) + b"}"


def _truncated(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text) + 1)]


def _flipped_bytes(text: bytes, rng: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _trailing(text: bytes, rng: random.Random) -> bytes:
    return text + rng.choice([b" ", b"\x00", b"}", b",", b"x", b"{}", b"\xff", b"\n\n", b"\xef\xbb\xbf"])


def _other_encoding(text: bytes, rng: random.Random) -> bytes:
    encoding = rng.choice(["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7", "cp500"])
    return text.decode("latin-1").encode(encoding)


TRICKS: tuple[TextTrick, ...] = (
    _odd_number, _odd_number, _odd_string, _odd_string, _odd_value, _odd_value, _odd_number_as_new_field, _whole,
    _duplicate_keys, _truncated, _flipped_bytes, _trailing, _other_encoding,
)  # fmt: skip
