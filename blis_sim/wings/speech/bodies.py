"""The form of POST /v1/audio/transcriptions and /v1/audio/translations, its languages, and their replies."""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from mockserve.protocol.bodies import Ending, OpenObject, Usage, read_as, set_fields
from mockserve.protocol.completions import ExtraArguments, Int64
from mockserve.protocol.errors import ApiError, bad_value, unhandled_error
from mockserve.protocol.sampling import Delivery, SamplingParams, read_sampling

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


_Format: TypeAlias = Literal["json", "text", "srt", "verbose_json", "vtt"]


class TranscriptionRequest(OpenObject):
    """The form of POST /v1/audio/transcriptions. Names and order of fields are vLLM's."""

    file: Any
    model: str | None = None
    language: str | None = None
    hotwords: str | None = None
    prompt: str = ""
    response_format: _Format | Literal["diarized_json"] = "json"
    timestamp_granularities: list[Literal["word", "segment"]] = Field(
        default_factory=list, alias="timestamp_granularities[]"
    )
    stream: bool | None = False
    stream_include_usage: bool | None = False
    stream_continuous_usage_stats: bool | None = False
    vllm_xargs: ExtraArguments = None
    to_language: str | None = None
    use_beam_search: bool = False
    n: int = 1
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    temperature: float = 0.0
    watermarking: bool | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = None
    presence_penalty: float | None = 0.0
    max_completion_tokens: int | None = None


class TranslationRequest(OpenObject):
    """The form of POST /v1/audio/translations. Names and order of fields are vLLM's."""

    file: Any
    model: str | None = None
    prompt: str = ""
    response_format: _Format = "json"
    use_beam_search: bool = False
    n: int = 1
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    seed: Int64 | None = None
    temperature: float = 0.0
    watermarking: bool | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = 0.0
    repetition_penalty: float | None = None
    presence_penalty: float | None = 0.0
    language: str | None = None
    hotwords: str | None = None
    to_language: str | None = None
    stream: bool | None = False
    stream_include_usage: bool | None = False
    stream_continuous_usage_stats: bool | None = False
    max_completion_tokens: int | None = None
    vllm_xargs: ExtraArguments = None


@dataclass(frozen=True, slots=True)
class SpeechTask:
    """A task on speech: the verb in ids, and the name of its events."""

    verb: str
    event: str
    form: type[TranscriptionRequest] | type[TranslationRequest]


@cache
def _defaults(form: type[BaseModel]) -> Mapping[str, Any]:
    """Return the values of absent fields that are not null; an error about a missing field shows their number."""
    fields = form.model_fields.items()
    found = {each.alias or name: each.get_default(call_default_factory=True) for name, each in fields}
    return {name: value for name, value in found.items() if value is not None and name != "file"}


TRANSCRIBE = SpeechTask("transcribe", "transcription.chunk", TranscriptionRequest)
TRANSLATE = SpeechTask("translate", "translation.chunk", TranslationRequest)


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """A checked form, and its sampling parameters."""

    form: TranscriptionRequest | TranslationRequest
    sampling: SamplingParams

    @property
    def delivery(self) -> Delivery:
        """How the reply is sent, and which usage a stream reports."""
        form, streams = self.form, bool(self.form.stream)
        usage = (form.stream_include_usage, form.stream_continuous_usage_stats)
        return Delivery(streams, *(streams and bool(each) for each in usage))

    @property
    def spoken_language(self) -> str:
        """The language of the recording: requested or recognized."""
        return self.form.language or RECOGNIZED_LANGUAGE

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
    given = _with_arguments(form)
    if not form.get("stream"):
        option = next((name for name in STREAM_OPTIONS if form.get(name)), None)
        if option is not None:
            raise bad_value("Stream options can only be defined when `stream=True`.", option)
    request = read_as(speech.form, {**_defaults(speech.form), **given})
    sampling = read_sampling(set_fields(request), request.max_completion_tokens, "max_completion_tokens", None)
    return SpeechRequest(request, sampling)


def check_speech(api_request: SpeechRequest, model: str) -> None:
    """Raise ApiError for options that speech recognition models do not support."""
    if api_request.delivery.stream and api_request.sampling.use_beam_search:
        raise ApiError("Streaming is not currently supported with beam search")
    if api_request.form.response_format not in SUPPORTED_FORMATS:
        raise ApiError("Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`")
    if api_request.form.response_format == DIARIZED:
        raise ApiError(f"Currently do not support diarized_json for {model}")
    if api_request.form.response_format == VERBOSE and api_request.delivery.stream:
        raise ApiError("verbose_json format doesn't support streaming case")
    check_language(api_request.form.language)
    check_language(api_request.form.to_language or None)


def whole_speech(
    api_request: SpeechRequest, speech: SpeechTask, spoken_segments: Sequence[SpeechSegment], duration_s: float
) -> dict[str, Any]:
    """Return the whole reply. The `text` format is an object with `text`, too."""
    text = api_request.separator.join(each.text for each in spoken_segments)
    if api_request.form.response_format == VERBOSE:
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
