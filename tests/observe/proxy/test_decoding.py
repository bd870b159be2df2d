"""Compressed bodies are read in any pieces, and none becomes larger than the limit."""

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from observe.proxy.exchanges import MAX_BODY_BYTES, Decoder, UnreadableBodyError, decoded

TEXT = b'{"choices":[]}' * 200


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return made.compress(data) + made.flush()


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "none": ("", bytes),
    "identity": ("identity", bytes),
    "gzip": ("gzip", gzip.compress),
    "gzip in two members": ("x-gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "zlib": ("deflate", zlib.compress),
    "bare deflate": ("Deflate", raw_deflate),
    "brotli": ("br", brotli.compress),
    "zstandard": ("zstd", zstandard.compress),
    "zstandard in two frames": ("zstd", lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
}


@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_bodies_come_out_of_pieces_of_any_size(name: str, size: int) -> None:
    coding, encode = CODINGS[name]
    data = encode(TEXT)
    decoder = Decoder(coding)
    assert b"".join(decoder.feed(data[at : at + size]) for at in range(0, len(data), size)) == TEXT


QUICKLY: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 1),
    "br": lambda data: bytes(brotli.compress(data, quality=1)),
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("coding", QUICKLY)
def test_a_small_body_that_would_become_a_large_one_is_refused(coding: str) -> None:
    bomb = QUICKLY[coding](bytes(MAX_BODY_BYTES + 1))
    with pytest.raises(UnreadableBodyError, match="longer than 16 MB"):
        decoded(coding, bomb)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "compress", "gzip, gzip"])
def test_what_cannot_be_read_is_an_error(coding: str) -> None:
    with pytest.raises(UnreadableBodyError):
        decoded(coding, b"\xff no such coding \xff" * 9)
