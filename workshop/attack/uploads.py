"""Malformed uploads: multipart and urlencoded forms for the routes of recordings."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from workshop.attack.hostile import Message

Form: TypeAlias = tuple[str, bytes]
"""A media type and a body."""

BOUNDARY = "frontier"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"
WAVE_HEAD = bytes.fromhex("524946462400000057415645666d74201000000001000100401f0000803e00000200100064617461")
"""The head of a WAVE file: one channel, 8 kHz, 16 bits."""
WAVE = WAVE_HEAD + bytes(1600)
PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a form, with its header lines as they are sent."""

    lines: tuple[bytes, ...]
    data: bytes


def field(name: str, value: bytes) -> Part:
    """A field of text."""
    return Part((f'Content-Disposition: form-data; name="{name}"'.encode(),), value)


def recording(data: bytes = WAVE) -> Part:
    """The recording itself."""
    return Part((b'Content-Disposition: form-data; name="file"; filename="a.wav"', b"Content-Type: audio/wav"), data)


VALID = (
    recording(), field("model", b"m"), field("language", b"en"), field("prompt", b"p"),
    field("response_format", b"json"), field("temperature", b"0.5"), field("timestamp_granularities[]", b"segment"),
    field("stream", b"false"), field("seed", b"1"), field("top_p", b"0.9"), field("top_k", b"5"),
    field("max_completion_tokens", b"4"), field("stream_include_usage", b"false"),
)  # fmt: skip
ODD_FIELD_VALUES = (
    b"", b"\xff", b"\x00", b"nan", b"1e400", b"-1", b"9" * 5000, b"true", b"null", b"[]", b"x" * 10_000,
    b"verbose_json", b"text", b"srt", b"\xed\xa0\x80", b"2", b"diarized_json", b"zz", b"word",
)  # fmt: skip
ODD_PARTS = (
    Part((), b"no header"), Part((b"Content-Disposition: form-data",), b"no name"), Part((b"nonsense",), b"x"),
    Part((b'Content-Disposition: form-data; name="file"',), b"no filename"),
    Part((b"Content-Type: text/plain",), b"x"),
    Part((b'Content-Disposition: form-data; name="file"; filename=""',), WAVE),
    Part((b'Content-Disposition: attachment; name="a"',), b""),
    Part((b'Content-Disposition: form-data; name="model"; filename="m"',), b"m"),
    Part((b'Content-Disposition: form-data; name=""',), b""),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Transfer-Encoding: base64"), b"!!!"),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Transfer-Encoding: base64"), b"bQ"),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Transfer-Encoding: quoted-printable"), b"=ZZ"),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Transfer-Encoding: nonsense"), b"m"),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Encoding: gzip"), b"m"),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Type: text/plain; charset=nonsense"), b"m"),
    Part((b'Content-Disposition: form-data; name="model"', b"Content-Type: text/plain; charset=utf-16"), b"m"),
    Part((b'Content-Disposition: form-data; name="_charset_"',), b"nonsense"),
    Part((b'Content-Disposition: form-data; name="a"', b"Content-Type: multipart/mixed; boundary=inner"),
         b"--inner\r\n\r\nx\r\n--inner--"),
    Part((b'Content-Disposition: form-data; name="a"', b"Content-Type: multipart/mixed"), b"x"),
    Part((b'Content-Disposition: form-data; name="\xff"',), b"x"),
    Part((b"Content-Disposition: form-data; name=" + b"a" * 20_000,), b"x"),
    Part((b'Content-Disposition: form-data; name="file"; filename="a\x00b.wav"', b"Content-Type: audio/wav"), WAVE),
    Part((b"Content-Disposition: form-data; name*=utf-8''%ff",), b"x"),
    Part((b'Content-Disposition: form-data; name="unended',), b"x"),
    Part((b'Content-Disposition: form-data; name="file"; filename="a.wav"', b"Content-Length: 99999"), WAVE),
    Part((b'Content-Disposition: form-data; name="file"; filename="a.wav"', b"Content-Type: \xff/\xff"), WAVE),
)  # fmt: skip
ODD_RECORDINGS = (
    b"", b"RIFF", WAVE[:20], b"ID3" + b"\xff" * 500, b"OggS" * 50, bytes(100_000), WAVE_HEAD, WAVE[4:],
)  # fmt: skip
CONTENT_TYPES = (
    "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other",
    "multipart/form-data; boundary=" + "x" * 300, 'multipart/form-data; boundary="frontier"',
    "multipart/mixed; boundary=frontier", "application/x-www-form-urlencoded", "application/json",
    "multipart/form-data; boundary=frontier; charset=nonsense", "text/plain", "",
    "multipart/form-data; boundary=\xe9", "multipart/; boundary=frontier",
    "multipart/form-data; charset=utf-8; boundary=frontier", "multipart/form-data; boundary=front ier",
)  # fmt: skip
URLENCODED = (
    b"model=m&file=x", b"", b"&&&", b"=", b"%", b"%ff=%ff", b"model=%00", b"a" * 50_000, b"a=b&" * 5000,
    b"file=%ff&model=m", b"\xff\xfe", b"model=m;file=x", b"_charset_=nonsense&model=m",
)  # fmt: skip


def encoded(parts: Sequence[Part], boundary: bytes = BOUNDARY.encode(), ends: bool = True) -> bytes:
    """The body of a form."""
    shown = [
        b"--" + boundary + b"\r\n" + b"".join(line + b"\r\n" for line in part.lines) + b"\r\n" + part.data
        for part in parts
    ]
    return b"\r\n".join(shown) + b"\r\n" + (b"--" + boundary + b"--\r\n" if ends else b"")


def hostile_upload(rng: random.Random, paths: Sequence[str] = PATHS) -> tuple[str, Message]:
    """The name of what is wrong with a form, and the form."""
    kind = rng.choice(list(_FORMS))
    content_type, body = _FORMS[kind](rng)
    headers = {"Content-Type": content_type} if content_type else {}
    return kind, Message(method="POST", path=rng.choice(paths), body=body, headers=headers)


def _odd_part(rng: random.Random) -> Form:
    at = rng.randrange(len(VALID) + 1)
    return MULTIPART, encoded((*VALID[:at], rng.choice(ODD_PARTS), *VALID[at:]))


def _odd_value(rng: random.Random) -> Form:
    at = rng.randrange(1, len(VALID))
    odd = Part(VALID[at].lines, rng.choice(ODD_FIELD_VALUES))
    return MULTIPART, encoded((*VALID[:at], odd, *VALID[at + 1 :]))


def _missing_part(rng: random.Random) -> Form:
    at = rng.randrange(len(VALID))
    return MULTIPART, encoded((*VALID[:at], *VALID[at + 1 :]))


def _many_parts(rng: random.Random) -> Form:
    return MULTIPART, encoded((*VALID, *(field(f"f{each}", b"x") for each in range(rng.choice([200, 1100, 3000])))))


def _odd_recording(rng: random.Random) -> Form:
    return MULTIPART, encoded((recording(rng.choice(ODD_RECORDINGS)), *VALID[1:]))


def _odd_content_type(rng: random.Random) -> Form:
    return rng.choice(CONTENT_TYPES), encoded(VALID)


def _no_end(_chance: random.Random) -> Form:
    return MULTIPART, encoded(VALID, ends=False)


def _broken_bytes(rng: random.Random) -> Form:
    data = bytearray(encoded(VALID))
    for _ in range(rng.randint(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return MULTIPART, bytes(data)


def _cut(rng: random.Random) -> Form:
    body = encoded(VALID)
    return MULTIPART, body[: rng.randrange(len(body))]


def _urlencoded(rng: random.Random) -> Form:
    return "application/x-www-form-urlencoded", rng.choice(URLENCODED)


def _bare_lines(rng: random.Random) -> Form:
    return MULTIPART, encoded(VALID).replace(b"\r\n", rng.choice([b"\n", b"\r"]))


def _preamble(rng: random.Random) -> Form:
    return MULTIPART, rng.choice([b"preamble\r\n", b"\r\n", b"--", bytes(100)]) + encoded(VALID) + b"epilogue"


_FORMS: Mapping[str, Callable[[random.Random], Form]] = {
    "odd part": _odd_part, "odd value": _odd_value, "missing part": _missing_part, "many parts": _many_parts,
    "odd recording": _odd_recording, "content type": _odd_content_type, "no end": _no_end,
    "broken bytes": _broken_bytes, "cut": _cut, "urlencoded": _urlencoded, "bare lines": _bare_lines,
    "preamble": _preamble,
}  # fmt: skip
