"""Malformed uploads: multipart and urlencoded forms for the routes of recordings."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from workshop.attack.mutations import spoiled
from workshop.attack.sending import Message

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
_FILE = b'Content-Disposition: form-data; name="file"'
_LINES = st.sampled_from([
    *(each.lines[0] for each in VALID), b"nonsense", _FILE + b'; filename="a"', _FILE + b'; filename=""',
    b"Content-Disposition: form-data", b'Content-Disposition: attachment; name="a"', b"Content-Encoding: gzip",
    b'Content-Disposition: form-data; name="_charset_"', b'Content-Disposition: form-data; name="unended',
    b"Content-Disposition: form-data; name*=utf-8''%ff", b"Content-Disposition: form-data; name=" + b"a" * 20_000,
    b"Content-Transfer-Encoding: base64", b"Content-Type: text/plain; charset=nonsense", b"Content-Length: 99999",
    b"Content-Type: multipart/mixed; boundary=inner", b"Content-Type: \xff/\xff",
])  # fmt: skip
_DATA = st.binary() | st.sampled_from([
    b"", b"nan", b"1e400", b"9" * 5000, b"null", b"srt", b"\xed\xa0\x80", b"2", WAVE, WAVE[:20], WAVE[4:],
    bytes(100_000), b"ID3" + b"\xff" * 500, b"OggS" * 50,
])  # fmt: skip
_PARTS = st.sampled_from(VALID) | st.builds(
    Part, st.lists(_LINES | _LINES.flatmap(spoiled), max_size=3).map(tuple), _DATA
)
_CONTENT_TYPES = st.sampled_from([
    *(MULTIPART,) * 12, "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other",
    "multipart/form-data; boundary=" + "x" * 300, "multipart/mixed; boundary=frontier", "text/plain",
    MULTIPART + "; charset=nonsense", "multipart/form-data; boundary=\xe9", "application/x-www-form-urlencoded",
])  # fmt: skip


def encoded(parts: Sequence[Part], boundary: bytes = BOUNDARY.encode(), ends: bool = True) -> bytes:
    """The body of a form."""
    shown = [
        b"--" + boundary + b"\r\n" + b"".join(line + b"\r\n" for line in part.lines) + b"\r\n" + part.data
        for part in parts
    ]
    return b"\r\n".join(shown) + b"\r\n" + (b"--" + boundary + b"--\r\n" if ends else b"")


@st.composite
def hostile_uploads(draw: st.DrawFn) -> Message:
    """A form that lacks some parts of a valid one and has odd ones, too many of them, or spoiled bytes."""
    parts = draw(st.lists(st.sampled_from(VALID), min_size=9, unique=True)) + draw(st.lists(_PARTS, max_size=3))
    parts *= draw(st.sampled_from((1, 1, 1, 1, 1, 1, 30, 200)))
    body = encoded(draw(st.permutations(parts)) if len(parts) < 20 else parts, ends=draw(st.integers(0, 9)) > 0)
    body = draw(st.just(body) | spoiled(body))
    headers = {"Content-Type": draw(_CONTENT_TYPES)}
    return Message(method="POST", path=draw(st.sampled_from(PATHS)), body=body, headers=headers)
