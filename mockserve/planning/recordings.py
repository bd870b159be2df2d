"""How long a recording is, read from its headers; what is said in it plays no role here."""

import struct

from mockserve.protocol.errors import ApiError

MP3_BYTES_PER_S = 16_000
"""Bytes of a second of MP3 or of a video container, which are not looked into: 128 kbit/s."""

OPUS_RATE = 48_000
_CONTAINERS = (b"ftyp", b"\x1a\x45\xdf\xa3")
"""Marks of MP4 and of WebM."""


def duration_s(data: bytes) -> float:
    """Seconds of a WAV, FLAC, Ogg, MP3, MP4 or WebM file. Raises ApiError for anything else."""
    try:
        found = _duration_s(data)
    except (struct.error, IndexError, ZeroDivisionError):
        found = None
    if found is None:
        raise ApiError("Invalid or unsupported audio file.")
    return found


def _duration_s(data: bytes) -> float | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _wav_duration_s(data)
    if data[:4] == b"fLaC":
        return _flac_duration_s(data)
    if data[:4] == b"OggS":
        return _ogg_duration_s(data)
    is_mp3 = data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    is_container = data[4:8] == _CONTAINERS[0] or data[:4] == _CONTAINERS[1]
    return len(data) / MP3_BYTES_PER_S if is_mp3 or is_container else None


def _wav_duration_s(data: bytes) -> float | None:
    """Chunk by chunk: `fmt ` says how many bytes a second has, `data` how many there are."""
    place, bytes_per_s = 12, 0
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        if name == b"fmt ":
            bytes_per_s = struct.unpack_from("<I", data, place + 16)[0]
        elif name == b"data":
            # A stream that was recorded as it came does not know its size.
            return float(min(size, len(data) - place - 8) / bytes_per_s)
        place += 8 + size + size % 2
    return None


def _flac_duration_s(data: bytes) -> float:
    """The first block gives 20 bits of sample rate and 36 bits of samples."""
    packed = int.from_bytes(data[18:26], "big")
    return float((packed & (1 << 36) - 1) / (packed >> 44))


def _ogg_duration_s(data: bytes) -> float:
    """The last page knows how many samples there have been."""
    samples = struct.unpack_from("<q", data, data.rindex(b"OggS") + 6)[0]
    vorbis = data.find(b"\x01vorbis", 0, 4096)
    rate = struct.unpack_from("<I", data, vorbis + 12)[0] if vorbis >= 0 else OPUS_RATE
    return float(samples / rate)
