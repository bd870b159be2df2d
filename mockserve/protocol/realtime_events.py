"""Events of a client of vLLM's realtime interface, read and refused in vLLM's words."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any, TypeAlias

from mockserve.protocol.errors import CUT_MARK, Problem, no_fields, sanitized, unreadable
from mockserve.protocol.reading.long_json import loads_in_pieces
from mockserve.protocol.reading.types import as_flag, flag_problem, unicode_problem
from mockserve.protocol.realtime import samples_of

LONG_EVENT_CHARS = 1 << 15
"""Reading a longer event may take more than a few milliseconds."""
MOST_SHOWN_CHARS = 10_000
"""Characters of a value that an error repeats; vLLM repeats all of them."""


@dataclass(frozen=True, slots=True)
class SessionUpdate:
    """The client has named a model that is served."""


@dataclass(frozen=True, slots=True)
class AudioAppend:
    """Sound, in samples of PCM16."""

    samples: bytes


@dataclass(frozen=True, slots=True)
class AudioCommit:
    """The beginning of a transcription, or with `is_final` the end of an utterance."""

    is_final: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The error event that answers an event."""

    text: str


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | AudioCommit | Refused


class _EventError(Exception):
    """An event that is refused with a code of its own."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def failed(message: str, code: str) -> str:
    """An error event. A message without a form in UTF-8 is replaced by what vLLM says of such."""
    event = {"type": "error", "error": message, "code": code}
    text = json.dumps(event, separators=(",", ":"), ensure_ascii=False)
    try:
        message.encode()
    except UnicodeEncodeError as error:
        return failed(f"Error serializing to JSON: UnicodeEncodeError: {error}", "processing_error")
    return text


def read_event(text: str, models: Collection[str], has_model: bool) -> ClientEvent:
    """Return the demand of an event. `models` are the names that are served.

    `has_model`: the client has named one of them before. A long event is read, and freed, in pieces between which
    other threads may run.
    """
    is_long = len(text) > LONG_EVENT_CHARS
    event: Any = None
    try:
        event = loads_in_pieces([text.encode()]) if is_long else json.loads(text)
        return _read(event, models, has_model, _written if is_long else repr)
    except json.JSONDecodeError:
        return Refused(failed("Invalid JSON", "invalid_json"))
    except _EventError as error:
        return Refused(failed(str(error), error.code))
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists without end
        return Refused(failed(sanitized(str(error)), "processing_error"))
    finally:
        if is_long:
            _free(event)


def _read(event: Any, models: Collection[str], has_model: bool, write: Callable[[Any], str]) -> ClientEvent:
    if not isinstance(event, dict):
        raise _EventError(no_fields(event).message, "processing_error")
    kind = event.get("type")
    if kind == "session.update":
        return _session_update(event.get("model"), models, write)
    if kind == "input_audio_buffer.append":
        return _audio_append(event, write)
    if kind == "input_audio_buffer.commit":
        return _audio_commit(event, has_model, write)
    raise _EventError(f"Unknown event type: {_shown(kind, write)}", "unknown_event")


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
    problem = flag_problem(final, "final")
    _check("InputAudioBufferCommit", event, [] if problem is None else [problem], write)
    return AudioCommit(as_flag(final))


def _check(title: str, event: Mapping[str, Any], problems: list[Problem], write: Callable[[Any], str]) -> None:
    """Raise an error for the problems of the fields. The first name that is no text is the only problem then."""
    for name in event:
        problem = unicode_problem(name, "")
        if problem is not None:
            problems = [problem]
            break
    if problems:
        raise _EventError(unreadable(title, problems, write).message, "processing_error")


def _shown(value: Any, write: Callable[[Any], str]) -> str:
    """A value in an error, as `str` gives it."""
    text = value if isinstance(value, str) else write(value)
    return text if len(text) <= MOST_SHOWN_CHARS else text[:MOST_SHOWN_CHARS] + CUT_MARK


def _written(value: Any) -> str:
    """The value as `repr` gives it, made in pieces between which other threads may run."""
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
    """Free a value piece by piece: all at once, 700,000 lists would take 70 ms in which no other thread runs."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
            each.clear()
        elif isinstance(each, dict):
            pending += each.values()
            each.clear()
