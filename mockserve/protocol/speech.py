"""The form of POST /v1/audio/transcriptions and /v1/audio/translations, its languages, and their replies."""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mockserve.protocol.bodies import Ending, Usage
from mockserve.protocol.completions.fields import EXTRA_ARGUMENT
from mockserve.protocol.errors import ApiError, Problem, bad_value, unhandled_error
from mockserve.protocol.reading.body import Fields, check_types
from mockserve.protocol.reading.containers import AnyOf, ListOf, MapOf, Nullable
from mockserve.protocol.reading.types import (
    LARGEST_INT64,
    SMALLEST_INT64,
    Anything,
    FieldType,
    Flag,
    Integer,
    Number,
    OneOf,
    Text,
)
from mockserve.protocol.sampling import SamplingParams, read_sampling

_SUPPORTED = (
    "af ar hy az be bs bg ca zh hr cs da nl en et fi fr gl de el he hi hu is id it ja kn kk ko lv lt mk ms mr mi ne no "
    "fa pl pt ro ru sr sk sl es sw sv tl ta th tr uk ur vi cy"
)
_OTHER = (
    "la ml te bn br eu mn sq pa si km sn yo so oc ka tg sd gu am yi lo uz fo ht ps tk nn mt sa lb my bo mg as tt haw "
    "ln ha ba jw su yue"
)

SUPPORTED_LANGUAGES = _SUPPORTED.split()
"""Languages that vLLM lists as supported, in its order."""

OTHER_LANGUAGES = frozenset(_OTHER.split())
"""Languages of the tokenizer that vLLM accepts but does not list as supported."""

WITHOUT_SPACES = frozenset({"ja", "zh"})
"""Languages in which vLLM joins the texts of two segments of a recording without a space."""


def check_language(language: str | None) -> None:
    """Raise ApiError for a language that is neither supported nor in the tokenizer."""
    if language is not None and language not in SUPPORTED_LANGUAGES and language not in OTHER_LANGUAGES:
        raise ApiError(f"Unsupported language: {language!r}.  Must be one of {SUPPORTED_LANGUAGES}.")


def separator_of(language: str) -> str:
    """Return the separator between the texts of two segments of a recording."""
    return "" if language in WITHOUT_SPACES else " "


VERBOSE, DIARIZED = "verbose_json", "diarized_json"
SUPPORTED_FORMATS = ("text", "json", VERBOSE, DIARIZED)
STREAM_OPTIONS = ("stream_include_usage", "stream_continuous_usage_stats")
GRANULARITIES = "timestamp_granularities[]"
RECOGNIZED_LANGUAGE = "en"
"""Language of a recording if the request has no language."""


@dataclass(frozen=True, slots=True)
class _Granularities:
    """A list field of a form; problems of its items are located without the name of the list, as in vLLM's web
    framework."""

    items: ListOf

    def problems(self, value: Any, location: str) -> list[Problem]:
        return self.items.problems(value, location.partition(".")[0])

    def schema(self) -> dict[str, Any]:
        return self.items.schema()


_TEXT: FieldType = Nullable(Text())
_FLAG: FieldType = Nullable(Flag())
_NUMBER: FieldType = Nullable(Number())
_FORMATS = ("json", "text", "srt", VERBOSE, "vtt")

_TRANSCRIPTION_FORMATS = AnyOf((OneOf(_FORMATS), OneOf((DIARIZED,))))
_STREAMING: Mapping[str, FieldType] = dict.fromkeys(("stream", *STREAM_OPTIONS), _FLAG)
_ARGUMENTS: FieldType = Nullable(MapOf(EXTRA_ARGUMENT))
_BEAMS: Mapping[str, FieldType] = {
    "use_beam_search": Flag(),
    "n": Integer(),
    "length_penalty": Number(),
    "include_stop_str_in_output": Flag(),
}
_SEED: FieldType = Nullable(Integer(SMALLEST_INT64, LARGEST_INT64))
_DRAWING: Mapping[str, FieldType] = {
    "temperature": Number(),
    "watermarking": _FLAG,
    "top_p": _NUMBER,
    "top_k": Nullable(Integer()),
    "min_p": _NUMBER,
}
_PENALTIES: Mapping[str, FieldType] = {
    "frequency_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
}
_MAX_TOKENS: FieldType = Nullable(Integer())

TRANSCRIPTION_FIELDS: Mapping[str, FieldType] = {
    "file": Anything(),
    "model": _TEXT,
    "language": _TEXT,
    "hotwords": _TEXT,
    "prompt": Text(),
    "response_format": _TRANSCRIPTION_FORMATS,
    GRANULARITIES: _Granularities(ListOf(OneOf(("word", "segment")))),
    **_STREAMING,
    "vllm_xargs": _ARGUMENTS,
    "to_language": _TEXT,
    **_BEAMS,
    **_DRAWING,
    "seed": _SEED,
    **_PENALTIES,
    "max_completion_tokens": _MAX_TOKENS,
}
TRANSLATION_FIELDS: Mapping[str, FieldType] = {
    "file": Anything(),
    "model": _TEXT,
    "prompt": Text(),
    "response_format": OneOf(_FORMATS),
    **_BEAMS,
    "seed": _SEED,
    **_DRAWING,
    **_PENALTIES,
    "language": _TEXT,
    "hotwords": _TEXT,
    "to_language": _TEXT,
    **_STREAMING,
    "max_completion_tokens": _MAX_TOKENS,
    "vllm_xargs": _ARGUMENTS,
}
"""Fields of both forms, in the order of vLLM's errors."""

_DEFAULTS: Mapping[str, Any] = {
    "prompt": "",
    "response_format": "json",
    GRANULARITIES: [],
    **dict.fromkeys(("stream", *STREAM_OPTIONS), False),
    "use_beam_search": False,
    "n": 1,
    "length_penalty": 1.0,
    "include_stop_str_in_output": False,
    "temperature": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
"""Default values of a form in vLLM; an error about a missing field shows their number."""


@dataclass(frozen=True, slots=True)
class SpeechTask:
    """A task on speech: the verb in ids, and the name of its events."""

    verb: str
    event: str
    fields: Mapping[str, FieldType]


TRANSCRIBE = SpeechTask("transcribe", "transcription.chunk", TRANSCRIPTION_FIELDS)
TRANSLATE = SpeechTask("translate", "translation.chunk", TRANSLATION_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """A checked form."""

    model: str
    language: str | None
    to_language: str | None
    prompt: str
    response_format: str
    streams: bool
    include_usage: bool
    continuous_usage: bool
    sampling: SamplingParams

    @property
    def spoken_language(self) -> str:
        """The language of the recording: requested or recognized."""
        return self.language or RECOGNIZED_LANGUAGE

    @property
    def separator(self) -> str:
        """Separator between the texts of two segments of the recording."""
        return separator_of(self.spoken_language)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSegment:
    """The text of one segment of a recording."""

    text: str
    token_ids: Sequence[int]
    start_s: float
    end_s: float
    avg_logprob: float


def parse_speech(form: Mapping[str, Any], speech: SpeechTask) -> SpeechRequest:
    """Parse a form. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    if isinstance(form.get("file"), str):
        message = "Expected 'file' to be a file-like object, not 'str'."
        raise ApiError(message, status=422, kind="Unprocessable Entity")
    fields = Fields(_with_arguments(form))
    if not form.get("stream"):
        option = next((name for name in STREAM_OPTIONS if form.get(name)), None)
        if option is not None:
            raise bad_value("Stream options can only be defined when `stream=True`.", option)
    defaults = {name: value for name, value in _DEFAULTS.items() if name in speech.fields}
    check_types({**defaults, **fields.body}, speech.fields, ("file",))
    streams, max_tokens = fields.flag("stream"), fields.integer("max_completion_tokens")
    fields.body.setdefault("temperature", 0.0)
    sampling = read_sampling(fields, max_tokens, "max_completion_tokens", num_logprobs=None)
    return SpeechRequest(
        model=fields.text("model") or "",
        language=fields.text("language"),
        to_language=fields.text("to_language"),
        prompt=fields.text("prompt") or "",
        response_format=fields.text("response_format") or "json",
        streams=streams,
        include_usage=streams and fields.flag("stream_include_usage"),
        continuous_usage=streams and fields.flag("stream_continuous_usage_stats"),
        sampling=sampling,
    )


def check_speech(api_request: SpeechRequest, model: str) -> None:
    """Raise ApiError for options that speech recognition models do not support."""
    if api_request.streams and api_request.sampling.use_beam_search:
        raise ApiError("Streaming is not currently supported with beam search")
    if api_request.response_format not in SUPPORTED_FORMATS:
        raise ApiError("Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`")
    if api_request.response_format == DIARIZED:
        raise ApiError(f"Currently do not support diarized_json for {model}")
    if api_request.response_format == VERBOSE and api_request.streams:
        raise ApiError("verbose_json format doesn't support streaming case")
    check_language(api_request.language)
    check_language(api_request.to_language or None)


def whole_speech(
    api_request: SpeechRequest, speech: SpeechTask, spoken_segments: Sequence[SpeechSegment], duration_s: float
) -> dict[str, Any]:
    """Return the whole reply. The `text` format is an object with `text`, too."""
    text = api_request.separator.join(each.text for each in spoken_segments)
    if api_request.response_format == VERBOSE:
        segments = [_segment(number, each, api_request) for number, each in enumerate(spoken_segments)]
        found = {"duration": duration_s, "language": api_request.spoken_language, "text": text}
        return {**found, "segments": segments, "words": None}
    usage = {"type": "duration", "seconds": math.ceil(duration_s)}
    return {"text": text, "usage": usage} if speech is TRANSCRIBE else {"text": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechChunks:
    """The events of one stream."""

    id: str
    created: int
    model: str
    speech: SpeechTask

    def text(self, text: str, ending: Ending | None, usage: Usage | None) -> dict[str, Any]:
        """Return the chunk of one or more tokens."""
        choice: dict[str, Any] = {"delta": {"content": text}}
        if ending is not None:
            choice |= {"finish_reason": ending.finish_reason, "stop_reason": ending.stop_reason}
        chunk = {**self._head(), "choices": [choice]}
        return chunk if usage is None else {**chunk, "usage": usage.counts()}

    def usage(self, usage: Usage) -> dict[str, Any]:
        """Return the last chunk, with the usage."""
        return {**self._head(), "choices": [], "usage": usage.counts()}

    def _head(self) -> dict[str, Any]:
        return {"id": self.id, "object": self.speech.event, "created": self.created, "model": self.model}


def _with_arguments(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form with its JSON fields parsed."""
    given = form.get("vllm_xargs")
    if not isinstance(given, str):
        return dict(form)
    try:
        return {**form, "vllm_xargs": json.loads(given)}
    except RecursionError as error:
        raise unhandled_error(str(error)) from None
    except ValueError as error:
        raise bad_value(f"Failed to parse vllm_xargs. Must be valid JSON: {error}", "vllm_xargs") from None


def _segment(number: int, spoken_segments: SpeechSegment, api_request: SpeechRequest) -> dict[str, Any]:
    data = spoken_segments.text.encode()
    return {
        "id": number,
        "avg_logprob": spoken_segments.avg_logprob,
        "compression_ratio": len(data) / len(zlib.compress(data)),
        "end": spoken_segments.end_s,
        "no_speech_prob": None,
        "seek": int(spoken_segments.start_s),
        "start": spoken_segments.start_s,
        "temperature": api_request.sampling.temperature,
        "text": spoken_segments.text,
        "tokens": list(spoken_segments.token_ids),
    }
