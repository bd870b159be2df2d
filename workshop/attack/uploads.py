"""Malformed uploads: multipart and urlencoded forms for the routes of recordings."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from workshop.attack.hostile import Message
from workshop.attack.mutations import spoiled

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
        parts.insert(at, draw(st.sampled_from(ODD_PARTS)))
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
