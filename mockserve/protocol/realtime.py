"""vLLM's realtime interface: events of speech over a WebSocket, and the audio that they bring."""

import base64
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from mockserve.protocol.bodies import Usage

SAMPLE_RATE = 16_000
SAMPLE_BYTES = 2
SEGMENT_SAMPLES = 5 * SAMPLE_RATE
"""Samples that are transcribed at once, as by vLLM's Qwen3-ASR."""
MOST_CLIP_SAMPLES = 25 * 2**20
"""Samples of one event, by VLLM_MAX_AUDIO_CLIP_FILESIZE_MB, which vLLM compares with samples."""
MOST_ENDS = 1000
"""Ends of utterances that may wait; vLLM has no such limit."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Audio that is transcribed at once: its length, and a number that is the same for equal sounds."""

    num_samples: int
    digest: int

    @property
    def duration_s(self) -> float:
        return self.num_samples / SAMPLE_RATE

    @property
    def is_whole(self) -> bool:
        return self.num_samples >= SEGMENT_SAMPLES

    @property
    def room_bytes(self) -> int:
        """Bytes until it is whole."""
        return (SEGMENT_SAMPLES - self.num_samples) * SAMPLE_BYTES


@dataclass(slots=True)
class AudioBuffer:
    """The lengths of what was appended, with the ends of utterances between; no sound is kept."""

    _parts: deque[Segment | None] = field(default_factory=deque)
    _num_ends: int = 0

    def append(self, samples: bytes) -> None:
        """Add sound behind what is there."""
        left = memoryview(samples)
        while left:
            last = self._parts[-1] if self._parts else None
            if last is None or last.is_whole:
                last = Segment(0, 0)
            else:
                self._parts.pop()
            piece, left = left[: last.room_bytes], left[last.room_bytes :]
            self._parts.append(Segment(last.num_samples + len(piece) // SAMPLE_BYTES, crc32(piece, last.digest)))

    def end(self) -> bool:
        """Note the end of an utterance; return whether there was room for it."""
        self._num_ends += 1
        self._parts.append(None)
        return self._num_ends <= MOST_ENDS

    def clear(self) -> None:
        """Forget everything."""
        self._parts.clear()
        self._num_ends = 0

    def take(self) -> tuple[Segment | None, bool]:
        """Take the next whole segment, or the rest of an utterance that has ended; None where there is neither.

        The second value is whether the utterance ends here.
        """
        if not self._parts:
            return None, False
        part = self._parts[0]
        if part is None:
            self._parts.popleft()
            self._num_ends -= 1
            return None, True
        if part.is_whole or len(self._parts) > 1:
            self._parts.popleft()
            return part, False
        return None, False


def samples_of(audio: str) -> bytes | None:
    """The samples of an event; None for what is no audio in base64, or none that vLLM takes."""
    try:
        samples = base64.b64decode(_without_inner_padding(audio.encode("ascii")))
    except ValueError:
        return None
    count, rest = divmod(len(samples), SAMPLE_BYTES)
    return samples if 0 < count <= MOST_CLIP_SAMPLES and not rest else None


_NO_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="))


def _without_inner_padding(audio: bytes) -> bytes:
    """Base64 without the padding before other characters, at which the standard library would stop: vLLM's library
    ignores it."""
    is_inner = b"=" in audio.rstrip(b"=")
    if not is_inner:
        return audio
    kept = audio.translate(None, _NO_BASE64)
    inner = kept.rstrip(b"=")
    return inner.replace(b"=", b"") + kept[len(inner) :]


def session_created(session_id: str) -> str:
    """The first event of a connection."""
    return _event("session.created", id=f"sess-{session_id}", created=int(time.time()))


def delta(text: str) -> str:
    """New text."""
    return _event("transcription.delta", delta=text)


def done(text: str, usage: Usage) -> str:
    """The end of an utterance with all of its text."""
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return _event("transcription.done", text=text, usage={**usage.counts(), **details})


def _event(kind: str, **members: Any) -> str:
    return json.dumps({"type": kind, **members}, separators=(",", ":"), ensure_ascii=False)
