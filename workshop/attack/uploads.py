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
ODD_FIELD_VALUES = (
    b"", b"\xff", b"\x00", b"nan", b"1e400", b"9" * 5000, b"null", b"x" * 10_000, b"srt", b"\xed\xa0\x80", b"2",
)  # fmt: skip
_MODEL = b'Content-Disposition: form-data; name="model"'
_FILE = b'Content-Disposition: form-data; name="file"'
ODD_HEADS: tuple[tuple[bytes, ...], ...] = (
    (), (b"Content-Disposition: form-data",), (b"nonsense",), (_FILE,), (b"Content-Type: text/plain",),
    (_FILE + b'; filename=""',), (b'Content-Disposition: attachment; name="a"',), (_MODEL + b'; filename="m"',),
    (_MODEL, b"Content-Transfer-Encoding: base64"), (_MODEL, b"Content-Transfer-Encoding: nonsense"),
    (_MODEL, b"Content-Encoding: gzip"), (_MODEL, b"Content-Type: text/plain; charset=nonsense"),
    (_MODEL, b"Content-Type: multipart/mixed; boundary=inner"), (_MODEL, b"Content-Type: multipart/mixed"),
    (b'Content-Disposition: form-data; name="_charset_"',), (b'Content-Disposition: form-data; name="\xff"',),
    (b"Content-Disposition: form-data; name=" + b"a" * 20_000,), (_FILE + b'; filename="a\x00b.wav"',),
    (b"Content-Disposition: form-data; name*=utf-8''%ff",), (b'Content-Disposition: form-data; name="unended',),
    (_FILE + b'; filename="a"', b"Content-Length: 99999"), (_FILE + b'; filename="a"', b"Content-Type: \xff/\xff"),
)  # fmt: skip
ODD_RECORDINGS = (b"", b"RIFF", WAVE[:20], b"ID3" + b"\xff" * 500, b"OggS" * 50, bytes(100_000), WAVE_HEAD, WAVE[4:])
CONTENT_TYPES = (
    "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=other", "text/plain", "",
    "multipart/form-data; boundary=" + "x" * 300, "multipart/mixed; boundary=frontier", "application/json",
    "multipart/form-data; boundary=frontier; charset=nonsense", "multipart/form-data; boundary=\xe9",
)  # fmt: skip
URLENCODED = (b"model=m&file=x", b"", b"&&&", b"%", b"%ff=%ff", b"model=%00", b"a=b&" * 5000, b"\xff\xfe")


def encoded(parts: Sequence[Part], boundary: bytes = BOUNDARY.encode(), ends: bool = True) -> bytes:
    """The body of a form."""
    shown = [
        b"--" + boundary + b"\r\n" + b"".join(line + b"\r\n" for line in part.lines) + b"\r\n" + part.data
        for part in parts
    ]
    return b"\r\n".join(shown) + b"\r\n" + (b"--" + boundary + b"--\r\n" if ends else b"")


@st.composite
def hostile_uploads(draw: st.DrawFn, paths: Sequence[str] = PATHS) -> tuple[str, Message]:
    """The name of what is wrong with a form, and the form."""
    kind = draw(st.sampled_from(KINDS))
    content_type, body = MULTIPART, encoded(_parts(draw, kind), ends=kind != "no end")
    if kind == "content type":
        content_type = draw(st.sampled_from(CONTENT_TYPES))
    elif kind == "urlencoded":
        content_type, body = "application/x-www-form-urlencoded", draw(st.sampled_from(URLENCODED))
    elif kind == "broken bytes":
        body = draw(spoiled(body))
    elif kind == "bare lines":
        body = body.replace(b"\r\n", draw(st.sampled_from([b"\n", b"\r"])))
    elif kind == "preamble":
        body = draw(st.sampled_from([b"preamble\r\n", b"\r\n", b"--", bytes(100)])) + body + b"epilogue"
    headers = {"Content-Type": content_type} if content_type else {}
    return kind, Message(method="POST", path=draw(st.sampled_from(paths)), body=body, headers=headers)


def _parts(draw: st.DrawFn, kind: str) -> list[Part]:
    parts, at = list(VALID), draw(st.integers(1, len(VALID) - 1))
    if kind == "odd part":
        parts.insert(at, Part(draw(st.sampled_from(ODD_HEADS)), draw(st.sampled_from((b"x", b"bQ", WAVE)))))
    elif kind == "odd value":
        parts[at] = Part(VALID[at].lines, draw(st.sampled_from(ODD_FIELD_VALUES) | st.binary()))
    elif kind == "missing part":
        del parts[draw(st.integers(0, len(VALID) - 1))]
    elif kind == "many parts":
        parts += [field(f"f{each}", b"x") for each in range(draw(st.sampled_from([200, 1100, 3000])))]
    elif kind == "odd recording":
        parts[0] = recording(draw(st.sampled_from(ODD_RECORDINGS) | st.binary()))
    return parts


KINDS = (
    "odd part", "odd part", "odd value", "missing part", "many parts", "odd recording", "content type", "no end",
    "broken bytes", "broken bytes", "urlencoded", "bare lines", "preamble",
)  # fmt: skip
