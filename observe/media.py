"""Images and sounds as files: PNG and WAV of a size that vision and audio models count as so many tokens."""

import base64
import math
import struct
import zlib
from random import Random
from typing import Any

_TILE_PIXELS = 28
"""Side of the square of an image that is a token in Qwen2-VL and Qwen2.5-VL: two patches of 14 pixels."""
_SAMPLES_PER_S = 16_000
_SAMPLES_PER_TOKEN = 640
"""Qwen2-Audio has 25 tokens for a second of sound."""


def png(num_tokens: int, random: Random) -> bytes:
    """Return an image of about so many tiles, each of a colour of its own."""
    rows = max(1, math.isqrt(num_tokens))
    columns = max(1, round(num_tokens / rows))
    lines = []
    for _ in range(rows):
        tiles = random.randbytes(columns)
        lines.append(b"\0" + b"".join(tiles[place : place + 1] * _TILE_PIXELS for place in range(columns)))
    pixels = b"".join(line * _TILE_PIXELS for line in lines)
    size = struct.pack(">IIBBBBB", columns * _TILE_PIXELS, rows * _TILE_PIXELS, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"PLTE", random.randbytes(768)), (b"IDAT", zlib.compress(pixels, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def wav(num_tokens: int, random: Random) -> bytes:
    """Return a sound of so many tones, each as long as a token."""
    tones = []
    for _ in range(max(1, num_tokens)):
        half = random.randint(8, 80)
        period = struct.pack("<h", 8000) * half + struct.pack("<h", -8000) * half
        tones.append((period * (1 + _SAMPLES_PER_TOKEN // half))[: 2 * _SAMPLES_PER_TOKEN])
    samples = b"".join(tones)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _SAMPLES_PER_S, 2 * _SAMPLES_PER_S, 2, 16)  # mono, 16 bits
    return struct.pack("<4sI4s", b"RIFF", 36 + len(samples), b"WAVE") + form + _sized(b"data", samples)


def _sized(kind: bytes, data: bytes) -> bytes:
    return struct.pack("<4sI", kind, len(data)) + data


def parts_of(image_tokens: int, audio_tokens: int, seed: str) -> list[dict[str, Any]]:
    """Return the parts of a chat message for an image and a sound of so many tokens, of those that have any."""
    random, parts = Random(seed), list[dict[str, Any]]()
    if image_tokens:
        image = base64.b64encode(png(image_tokens, random)).decode()
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}})
    if audio_tokens:
        sound = base64.b64encode(wav(audio_tokens, random)).decode()
        parts.append({"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}})
    return parts
