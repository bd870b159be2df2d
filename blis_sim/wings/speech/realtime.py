"""vLLM's realtime interface: events of speech over a WebSocket, their parsing and errors, and their audio."""

import base64
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, TypeAlias
from zlib import crc32

from pydantic_core import InitErrorDetails, ValidationError

from mockserve.protocol.bodies import Usage
from mockserve.protocol.errors import CUT_MARK, Problem, not_an_object, sanitized
from mockserve.protocol.forms import FLAG, TEXT, as_flag, problem_of
from mockserve.protocol.json_text import loads_in_pieces

SAMPLE_RATE = 16_000
SAMPLE_BYTES = 2
SEGMENT_SAMPLES = 5 * SAMPLE_RATE
"""Number of samples that are transcribed together, as in vLLM's Qwen3-ASR."""
MOST_CLIP_SAMPLES = 25 * 2**20
"""Maximum number of samples of one event: VLLM_MAX_AUDIO_CLIP_FILESIZE_MB, which vLLM compares with samples."""
MAX_PENDING_ENDS = 1000
"""Maximum number of pending ends of utterances; vLLM has no such limit."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Audio that is transcribed together: its length, and a digest that is equal for equal audio."""

    num_samples: int
    digest: int

    @property
    def duration_s(self) -> float:
        return self.num_samples / SAMPLE_RATE

    @property
    def is_whole(self) -> bool:
        return self.num_samples >= SEGMENT_SAMPLES

    @property
    def missing_bytes(self) -> int:
        """Number of bytes missing from a whole segment."""
        return (SEGMENT_SAMPLES - self.num_samples) * SAMPLE_BYTES


@dataclass(slots=True)
class AudioBuffer:
    """Buffer of the lengths of appended audio and of ends of utterances; the audio itself is not kept."""

    _parts: deque[Segment | None] = field(default_factory=deque)
    _num_ends: int = 0

    def append(self, samples: bytes) -> None:
        """Append audio."""
        left = memoryview(samples)
        while left:
            last = self._parts[-1] if self._parts else None
            if last is None or last.is_whole:
                last = Segment(0, 0)
            else:
                self._parts.pop()
            piece, left = left[: last.missing_bytes], left[last.missing_bytes :]
            self._parts.append(Segment(last.num_samples + len(piece) // SAMPLE_BYTES, crc32(piece, last.digest)))

    def end(self) -> bool:
        """Record the end of an utterance; return whether there was room for it."""
        self._num_ends += 1
        self._parts.append(None)
        return self._num_ends <= MAX_PENDING_ENDS

    def clear(self) -> None:
        """Drop all audio and ends of utterances."""
        self._parts.clear()
        self._num_ends = 0

    def take(self) -> tuple[Segment | None, bool]:
        """Remove and return the next whole segment, or the rest of an ended utterance; None if there is neither.

        The second value is whether the utterance ends with the segment.
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
    """Return the samples of an event; None for audio that is not base64, or that vLLM refuses."""
    try:
        samples = base64.b64decode(_without_inner_padding(audio.encode("ascii")))
    except ValueError:
        return None
    count, rest = divmod(len(samples), SAMPLE_BYTES)
    return samples if 0 < count <= MOST_CLIP_SAMPLES and not rest else None


_NO_BASE64 = bytes(set(range(256)) - set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="))


def _without_inner_padding(audio: bytes) -> bytes:
    """Return base64 without padding before other characters: vLLM's library ignores such padding, the standard library
    stops at it."""
    is_inner = b"=" in audio.rstrip(b"=")
    if not is_inner:
        return audio
    kept = audio.translate(None, _NO_BASE64)
    inner = kept.rstrip(b"=")
    return inner.replace(b"=", b"") + kept[len(inner) :]


def session_created(session_id: str) -> str:
    """Return the first event of a connection."""
    return _event("session.created", id=f"sess-{session_id}", created=int(time.time()))


def delta(text: str) -> str:
    """Return the event of new text."""
    return _event("transcription.delta", delta=text)


def done(text: str, usage: Usage) -> str:
    """Return the event of the end of an utterance, with its whole text."""
    details = {"prompt_tokens_details": None, "completion_tokens_details": None}
    return _event("transcription.done", text=text, usage={**usage.counts(), **details})


def _event(kind: str, **members: Any) -> str:
    return json.dumps({"type": kind, **members}, separators=(",", ":"), ensure_ascii=False)


LONG_EVENT_CHARS = 1 << 15
"""Length of an event, in characters, from which parsing may take more than a few milliseconds."""
MOST_SHOWN_CHARS = 10_000
"""Maximum number of characters of a value in an error; vLLM has no maximum."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """The client has selected a served model."""


@dataclass(frozen=True, slots=True)
class AudioAppend:
    """Audio, in samples of PCM16."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class AudioCommit:
    """The beginning of a transcription, or with `is_final` the end of an utterance."""

    is_final: bool


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The error event in reply to a client's event."""

    text: str


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | AudioCommit | ErrorReply


class _EventError(Exception):
    """A refusal of an event with an error code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def error_event(message: str, code: str) -> str:
    """Return an error event. A message that cannot be encoded in UTF-8 is replaced by vLLM's error about it."""
    try:
        message.encode()
    except UnicodeEncodeError as error:
        return error_event(f"Error serializing to JSON: UnicodeEncodeError: {error}", "processing_error")
    return _event("error", error=message, code=code)


def read_event(text: str, models: Collection[str], has_model: bool) -> ClientEvent:
    """Parse an event. `models` are the served names.

    `has_model`: the client has selected a model before. A long event is parsed, and freed, in pieces between which
    other threads can run.
    """
    is_long = len(text) > LONG_EVENT_CHARS
    event: Any = None
    try:
        event = loads_in_pieces([text.encode()]) if is_long else json.loads(text)
        write = _repr_in_pieces if is_long else repr
        if not isinstance(event, dict):
            raise _EventError(not_an_object(event).message, "processing_error")
        kind = event.get("type")
        if kind == "session.update":
            return _session_update(event.get("model"), models, write)
        if kind == "input_audio_buffer.append":
            return _audio_append(event, write)
        if kind == "input_audio_buffer.commit":
            return _audio_commit(event, has_model, write)
        raise _EventError(f"Unknown event type: {_shown(kind, write)}", "unknown_event")
    except json.JSONDecodeError:
        return ErrorReply(error_event("Invalid JSON", "invalid_json"))
    except _EventError as error:
        return ErrorReply(error_event(str(error), error.code))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists without end
        return ErrorReply(error_event(sanitized(str(error)), "processing_error"))
    finally:
        if is_long:
            _free(event)


def _session_update(model: Any, models: Collection[str], write: Callable[[Any], str]) -> ClientEvent:
    if model is None:
        raise _EventError("Missing required field: model", "invalid_event")
    if model and (not isinstance(model, str) or model not in models):
        raise _EventError(sanitized(f"The model `{_shown(model, write)}` does not exist."), "model_not_found")
    return SessionUpdate()


def _audio_append(event: Mapping[str, Any], write: Callable[[Any], str]) -> ClientEvent:
    audio = event.get("audio")
    problems = [] if isinstance(audio, str) else [_no_text(event)]
    _check("InputAudioBufferAppend", event, problems, write)
    samples = samples_of(audio) if isinstance(audio, str) else None
    if samples is None:
        raise _EventError("Invalid audio data", "invalid_audio")
    return AudioAppend(samples)


def _no_text(event: Mapping[str, Any]) -> Problem:
    if "audio" not in event:
        return Problem("missing", "audio", "Field required", event)
    return Problem("string_type", "audio", "Input should be a valid string", event["audio"])


def _audio_commit(event: Mapping[str, Any], has_model: bool, write: Callable[[Any], str]) -> ClientEvent:
    if not has_model:
        raise _EventError(
            "Model not validated. Make sure to validate the model by sending a session.update event.",
            "model_not_validated",
        )
    final = event.get("final", False)
    problem = problem_of(FLAG, final, "final")
    _check("InputAudioBufferCommit", event, [] if problem is None else [problem], write)
    return AudioCommit(as_flag(final))


def _check(title: str, event: Mapping[str, Any], problems: list[Problem], write: Callable[[Any], str]) -> None:
    """Raise an error for the problems of the fields. A field name that is not text is reported alone."""
    for name in event:
        problem = problem_of(TEXT, name, "")
        if problem is not None:
            problems = [problem]
            break
    if problems:
        details = [
            InitErrorDetails(
                type=each.kind, loc=(each.location,) if each.location else (), input=_as_written(each.found, write)
            )
            for each in problems
        ]
        message = str(ValidationError.from_exception_data(title, details))
        raise _EventError(sanitized(message), "processing_error")


def _as_written(value: Any, write: Callable[[Any], str]) -> Any:
    """Return an object that pydantic shows as this value, with the text that `write` has made of it."""
    text = write(value)
    return type(type(value).__name__, (), {"__repr__": lambda _: text})()


def _shown(value: Any, write: Callable[[Any], str]) -> str:
    """Return a value as `str` gives it, shortened for an error."""
    text = value if isinstance(value, str) else write(value)
    return text if len(text) <= MOST_SHOWN_CHARS else text[:MOST_SHOWN_CHARS] + CUT_MARK


def _repr_in_pieces(value: Any) -> str:
    """Return the `repr` of a value, made in pieces between which other threads can run."""
    written = StringIO()
    _write(value, written.write)
    return written.getvalue()


def _write(value: Any, write: Callable[[str], int]) -> None:
    if isinstance(value, list):
        for number, each in enumerate(value):
            write(", " if number else "[")
            _write(each, write)
        write("]" if value else "[]")
    elif isinstance(value, dict):
        for number, (name, each) in enumerate(value.items()):
            write(", " if number else "{")
            write(f"{name!r}: ")
            _write(each, write)
        write("}" if value else "{}")
    else:
        write(repr(value))


def _free(value: Any) -> None:
    """Free a value piece by piece. Freeing 700,000 lists at once would block all threads for 70 ms."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
            each.clear()
        elif isinstance(each, dict):
            pending += each.values()
            each.clear()
