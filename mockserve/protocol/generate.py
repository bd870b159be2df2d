"""Bodies of POST /inference/v1/generate, of the render routes, and of the derender routes for token ids of another
server.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

from mockserve.options.parsers import call_parsers_with
from mockserve.protocol.bodies import (
    LONG_TOKENS,
    LOWEST_LOGPROB,
    BodyOfOneKind,
    Candidate,
    Choice,
    Choices,
    Items,
    OpenObject,
    Piece,
    PromptOutput,
    RequestObject,
    ScoredToken,
    ScoredTokens,
    Usage,
    described_as,
    error_details,
    id_list,
    in_pieces,
    listed,
    read_as,
    set_fields,
    with_numbers,
)
from mockserve.protocol.chat_messages import tool_definitions
from mockserve.protocol.completions import ChatCompletionRequest, CompletionRequest
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.forms import LARGEST_INT64, SMALLEST_INT64, as_flag
from mockserve.protocol.json_text import json_array
from mockserve.protocol.sampling import (
    Delivery,
    RepetitionDetectionParams,
    RequestMetadata,
    SamplingParams,
    StreamOptions,
    StructuredOutputsParams,
    all_constraints,
    delivery_of,
    read_request_metadata,
    read_sampling,
    refuse_bad_salt,
    refuse_bad_thinking_budget,
    refuse_chat_contradictions,
    refuse_completion_contradictions,
)

# Replies of the render routes: a request in the format of POST /inference/v1/generate.

DEFAULT_MAX_TOKENS = 16
WHOLE_REPLY, DELTAS = 2, 1
"""Numbers of vLLM's `RequestOutputKind`."""


SKIPS_SPECIAL_TOKENS = call_parsers_with("skips-special-tokens")
"""Parsers of calls for which a rendered request skips special tokens, as other requests do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedRequest:
    """One rendered prompt with its request. `parse_context` is the information for parsing a chat's answer."""

    request_id: str
    token_ids: Sequence[int]
    token_offsets: Sequence[tuple[int, int]] | None
    sampling: dict[str, Any]
    body: Mapping[str, Any]
    streams: bool
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: Mapping[str, Any] | None = None
    parse_context: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the body, with fields in vLLM's order."""
        body = self.body
        return {
            "request_id": self.request_id,
            "token_ids": list(self.token_ids),
            "token_offsets": None if self.token_offsets is None else [list(each) for each in self.token_offsets],
            "features": None,
            "content_parts": None,
            "sampling_params": self.sampling,
            "model": body.get("model"),
            "reasoning_ended": self.reasoning_ended,
            "reasoning_parser_kwargs": self.reasoning_parser_kwargs,
            "return_token_ids": _flag(body.get("return_token_ids")),
            "output_mode": "tokens",
            "parse_context": self.parse_context,
            "stream": self.streams,
            "stream_options": _stream_options(body) if self.streams else None,
            "cache_salt": body.get("cache_salt"),
            "priority": body.get("priority", 0),
            "kv_transfer_params": body.get("kv_transfer_params") or None,
            "ec_transfer_params": body.get("ec_transfer_params") or None,
        }


def as_read(request: BaseModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a request with numbers, flags and known objects as they were read."""
    found: dict[str, Any] = {}
    for name, value in set_fields(request).items():
        if isinstance(value, StructuredOutputsParams):
            found[name] = value.given()
        elif isinstance(value, RepetitionDetectionParams):
            found[name] = asdict(value)
        elif isinstance(value, StreamOptions):
            found[name] = value.model_dump()
    return with_numbers(body, request) | found


def sampling_object(
    sampling: SamplingParams,
    body: Mapping[str, Any],
    max_tokens: int,
    streams: bool,
    parses_calls: bool = False,
    is_response: bool = False,
) -> dict[str, Any]:
    """Return vLLM's object of sampling parameters, without defaults, in vLLM's order.

    Special tokens are not skipped when calls are to be parsed, since they may mark calls. A response has an object of
    extra arguments without any, too, unless blocks of its prompt are transferred.
    """
    needs_prompt = sampling.num_prompt_logprobs is not None
    chosen = list(sampling.logprob_token_ids or ())
    greedy, extra_arguments = sampling.is_greedy, body.get("vllm_xargs")
    transfers = body.get("kv_transfer_params") or body.get("ec_transfer_params")
    budget, experts_start = body.get("thinking_token_budget"), body.get("routed_experts_prompt_start")
    buffer_chars = 0 if sampling.include_stop_str_in_output else max(map(len, sampling.stop), default=1) - 1
    rows: tuple[tuple[str, Any, bool], ...] = (
        ("n", sampling.n, sampling.n != 1),
        ("presence_penalty", sampling.presence_penalty, True),
        ("frequency_penalty", sampling.frequency_penalty, True),
        ("repetition_penalty", sampling.repetition_penalty, True),
        ("temperature", sampling.temperature, True),
        _given(body, "watermarking"),
        ("top_p", sampling.top_p, not greedy),
        ("top_k", sampling.top_k, sampling.top_k != 0 and not greedy),
        ("min_p", sampling.min_p, not greedy),
        ("seed", sampling.seed, sampling.seed is not None),
        ("stop", list(sampling.stop), True),
        ("stop_token_ids", list(sampling.stop_token_ids), True),
        ("ignore_eos", True, sampling.ignore_eos),
        ("max_tokens", max_tokens, max_tokens != DEFAULT_MAX_TOKENS),
        ("min_tokens", sampling.min_tokens, sampling.min_tokens != 0),
        ("logprobs", sampling.num_logprobs, sampling.num_logprobs is not None and not chosen),
        ("prompt_logprobs", sampling.num_prompt_logprobs, needs_prompt),
        ("logprob_token_ids", chosen, bool(chosen)),
        ("skip_special_tokens", False, parses_calls or not sampling.skip_special_tokens),
        ("spaces_between_special_tokens", False, body.get("spaces_between_special_tokens") is False),
        ("include_stop_str_in_output", True, sampling.include_stop_str_in_output),
        ("output_kind", DELTAS if streams else WHOLE_REPLY, True),
        _given(body, "stream_interval"),
        ("skip_clone", True, True),
        ("output_text_buffer_length", buffer_chars, buffer_chars != 0),
        ("structured_outputs", structured_outputs(body), structured_outputs(body) is not None),
        ("logit_bias", _biases(body), bool(body.get("logit_bias"))),
        ("allowed_token_ids", list(sampling.allowed_token_ids or ()), sampling.allowed_token_ids is not None),
        ("extra_args", extra_arguments or {}, bool(extra_arguments) or (is_response and not transfers)),
        ("bad_words", list(sampling.bad_words), True),
        ("skip_reading_prefix_cache", needs_prompt, True),
        ("thinking_token_budget", budget, budget not in (None, -1)),
        _given(body, "repetition_detection"),
        ("routed_experts_prompt_start", experts_start, bool(experts_start)),
    )
    return {name: value for name, value, is_shown in rows if is_shown}


def _given(body: Mapping[str, Any], name: str) -> tuple[str, Any, bool]:
    """Return the row of a field that is copied from the request."""
    return name, body.get(name), body.get(name) is not None


def structured_outputs(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the constraint of a request's answer as one object with all its fields."""
    given = dict(body.get("structured_outputs") or {})
    requested = body.get("response_format") or {}
    if requested.get("type") == "json_object":
        given["json_object"] = True
    elif requested.get("type") == "json_schema":
        given["json"] = (requested.get("json_schema") or {}).get("schema")
    return all_constraints(given) if given else None


def parse_context(body: Mapping[str, Any], template_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the information for parsing a chat's answer: its tools, and the arguments of the template for its
    prompt."""
    tools = body.get("tools")
    return {
        "tools": None if tools is None else tool_definitions(tools),
        "tool_choice": _shown_choice(body.get("tool_choice", "auto" if tools else "none")),
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "include_reasoning": body.get("include_reasoning", True),
        "chat_template_kwargs": dict(template_arguments),
        "history_tool_call_cnt": sum(len(each.get("tool_calls") or ()) for each in body["messages"]),
    }


def _shown_choice(choice: Any) -> Any:
    return {"function": choice.get("function"), "type": "function", **choice} if isinstance(choice, Mapping) else choice


def _stream_options(body: Mapping[str, Any]) -> dict[str, Any] | None:
    options = body.get("stream_options")
    return None if options is None else {"include_usage": False, "continuous_usage_stats": False, **options}


def _biases(body: Mapping[str, Any]) -> dict[str, float]:
    return {str(int(key)): float(value) for key, value in (body.get("logit_bias") or {}).items()}


def _flag(value: Any) -> bool | None:
    return None if value is None else as_flag(value)


# Bodies of the derender routes: token ids of another server to convert to a reply, whole or chunk by chunk.
#
# Names and order of fields are vLLM's.

MAX_WINDOW_TOKENS = 1024
_Map: TypeAlias = dict[str, Any] | None
_DerenderIds: TypeAlias = Items[int]
_PromptIds: TypeAlias = Items[NonNegativeInt] | None


class PromptTokenUsageInfo(OpenObject):
    """Tokens of a prompt by their origin."""

    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    multimodal_tokens: dict[str, int] | None = None


class CompletionTokenUsageInfo(OpenObject):
    """Tokens of an answer by their purpose."""

    reasoning_tokens: int = 0


class UsageInfo(OpenObject):
    """Tokens of a generated reply."""

    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
    completion_tokens_details: CompletionTokenUsageInfo | None = None


@dataclass(slots=True)
class WeightVersionSpan:
    """Tokens that one version of the weights generated."""

    version: str
    start: int
    end: int


@dataclass(slots=True)
class Logprob:
    """The log-probability of a token of a prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class PlaceholderRangeInfo(RequestObject):
    """The tokens of one picture or recording."""

    offset: int = Field(ge=0)
    length: int = Field(gt=0)


class GenerateLogProb(RequestObject):
    """A possible token of a step."""

    token_id: int
    logprob: float
    rank: int | None = None


class GenerateLogProbsContent(GenerateLogProb):
    """The chosen token of a step with the likeliest."""

    top_logprobs: Items[GenerateLogProb] = Field([])


class GenerateLogProbs(RequestObject):
    """The tokens of a choice."""

    content: Items[GenerateLogProbsContent] | None = None


def not_negative(token_ids: list[int] | None) -> list[int] | None:
    """Return token ids unless one is negative. Raises ValueError."""
    if any(each < 0 for each in token_ids or ()):
        raise ValueError("token_ids must not contain negative values")
    return token_ids


class GenerateTokensStreamChoice(RequestObject):
    """The tokens of one choice in a chunk, whose ids may be any integers."""

    index: int
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: _DerenderIds | None = None
    routed_experts: str | None = None
    sampling_mask: Items[Items[int]] | None = None
    weight_versions: Items[Annotated[WeightVersionSpan, described_as("WeightVersionSpan-Input")]] | None = None
    logprobs: GenerateLogProbs | None = None


class GenerateTokensChoice(GenerateTokensStreamChoice):
    """One choice of a whole reply."""

    finish_reason: str | None = "stop"
    token_ids: Annotated[_DerenderIds | None, AfterValidator(not_negative)] = None


class SpeculativeDecodingMetrics(OpenObject):
    """Drafts of a request, and how many of their tokens were accepted."""

    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: Items[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    per_step_accepted: Items[int] | None = None
    per_step_drafted: Items[int] | None = None


class PerRequestMetrics(OpenObject):
    """Times of a request."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: SpeculativeDecodingMetrics | None = None


class GenerateTokensStreamResponse(RequestObject):
    """A generated chunk."""

    request_id: str = Field(default_factory=str)
    usage: UsageInfo | None = None
    prompt_token_ids: _PromptIds = None
    mm_placeholders: dict[str, Items[PlaceholderRangeInfo]] | None = None
    metrics: Annotated[PerRequestMetrics, described_as("PerRequestMetrics")] | None = None
    output_mode: Literal["tokens"] = "tokens"
    choices: Items[GenerateTokensStreamChoice]


_PromptLogprobs = dict[int, Annotated[Logprob, described_as("vllm__logprobs__Logprob-Input")]]


class GenerateTokensResponse(RequestObject):
    """A generated reply."""

    request_id: str = Field(default_factory=str)
    model: str | None = None
    created: int | None = None
    usage: UsageInfo | None = None
    prompt_logprobs: Items[_PromptLogprobs | None] | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: _PromptIds = None
    mm_placeholders: dict[str, Items[PlaceholderRangeInfo]] | None = None
    metrics: Annotated[PerRequestMetrics, described_as("PerRequestMetrics")] | None = None
    kv_transfer_params: _Map = None
    ec_transfer_params: _Map = None
    output_mode: Literal["tokens"] = "tokens"
    choices: Items[GenerateTokensChoice]


def _within_window(tokens: list[str]) -> list[str]:
    if len(tokens) > MAX_WINDOW_TOKENS:
        raise ValueError(f"prev_tokens length ({len(tokens)}) exceeds maximum ({MAX_WINDOW_TOKENS})")
    return tokens


class DerenderStreamState(RequestObject):
    """The state that a client passes from one chunk to the next."""

    prev_tokens: Annotated[Items[str], AfterValidator(_within_window)] = Field(default_factory=list)
    prefix_offset: int = Field(0, ge=0)
    read_offset: int = Field(0, ge=0)
    role_sent: bool = False
    logprob_context_token_ids: list[int] = Field(default_factory=list, max_length=4)
    logprob_text_offset: int = Field(0, ge=0)
    output_token_ids: _DerenderIds = Field(default_factory=list)
    output_chunk_lens: Items[PositiveInt] = Field(default_factory=list)
    tools_streamed: bool = False
    last_tool_call_ids: Items[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        total, length = sum(self.output_chunk_lens), len(self.output_token_ids)
        if total != length:
            found = f"got sum={total}, len(output_token_ids)={length}"
            raise ValueError(f"output_chunk_lens must sum to len(output_token_ids) ({found})")
        return self


def _body_of(kind: type[OpenObject]) -> BeforeValidator:
    """Return the annotation of an object that has to be a body of another route."""

    def check(value: Any) -> Any:
        return as_read(kind.model_validate(value, from_attributes=True), value)

    return BeforeValidator(check)


_Chat: TypeAlias = (
    Annotated[dict[str, Any], _body_of(ChatCompletionRequest), described_as("ChatCompletionRequest")] | None
)
_Completion: TypeAlias = (
    Annotated[dict[str, Any], _body_of(CompletionRequest), described_as("CompletionRequest")] | None
)


class DerenderChatRequest(RequestObject):
    """A whole reply to a chat."""

    stream: Literal[False] = False
    model: str | None = None
    generate_response: GenerateTokensResponse
    prompt_tokens: int | None = None
    prompt_token_ids: _PromptIds = None
    chat_request: _Chat = None


class DerenderCompletionRequest(RequestObject):
    """Whole replies to the prompts of a completion request."""

    stream: Literal[False] = False
    model: str | None = None
    generate_responses: Items[GenerateTokensResponse]
    prompt_tokens: _DerenderIds | None = None
    prompt_token_ids: Items[_PromptIds] | None = None
    completion_request: _Completion = None

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        expected = len(self.generate_responses)
        for name, given in (("prompt_tokens", self.prompt_tokens), ("prompt_token_ids", self.prompt_token_ids)):
            if given is not None and len(given) != expected:
                raise ValueError(f"{name} length ({len(given)}) must equal generate_responses length ({expected})")
        return self


class _DerenderStreamRequest(RequestObject):
    stream: Literal[True]
    model: str | None = None
    generate_chunk: GenerateTokensStreamResponse
    stream_state: DerenderStreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: _PromptIds = None


class DerenderChatStreamRequest(_DerenderStreamRequest):
    """A chunk of a reply to a chat."""

    chat_request: _Chat = None


class DerenderCompletionStreamRequest(_DerenderStreamRequest):
    """A chunk of a reply to a prompt."""

    completion_request: _Completion = None


class DerenderedChat(BodyOfOneKind):
    """The body of POST /v1/chat/completions/derender."""

    root: DerenderChatRequest | DerenderChatStreamRequest


class DerenderedCompletion(BodyOfOneKind):
    """The body of POST /v1/completions/derender."""

    root: DerenderCompletionRequest | DerenderCompletionStreamRequest


def read_derendered_chat(body: dict[str, Any]) -> DerenderChatRequest | DerenderChatStreamRequest:
    """Return the body as a whole reply or a chunk. Raises ApiError for a body of neither form."""
    if isinstance(body.get("chat_request"), dict):
        refuse_chat_contradictions(body["chat_request"])
    found = read_as(DerenderedChat, body).root
    if isinstance(found, DerenderChatRequest):
        _check_ids([found.prompt_token_ids], [found.generate_response])
    return found


def read_derendered_completion(body: dict[str, Any]) -> DerenderCompletionRequest | DerenderCompletionStreamRequest:
    """Return the body as whole replies or a chunk. Raises ApiError for a body of neither form."""
    if isinstance(body.get("completion_request"), dict):
        refuse_completion_contradictions(body["completion_request"])
    found = read_as(DerenderedCompletion, body).root
    if isinstance(found, DerenderCompletionRequest):
        _check_ids(found.prompt_token_ids or (), found.generate_responses)
    return found


def _check_ids(prompts: Collection[list[int] | None], replies: Collection[GenerateTokensResponse]) -> None:
    """Raise ApiError for an id of a whole reply that vLLM cannot pass to its tokenizer."""
    lists = [*prompts, *(each.prompt_token_ids for each in replies)]
    lists += [choice.token_ids for each in replies for choice in each.choices]
    if any(max(each, default=0) > LARGEST_INT64 for each in lists if each):
        raise ApiError("Python int too large to convert to C long")


# The bodies of POST /inference/v1/generate and its replies.


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBodies:
    """Bodies of one reply. Text or a message of a choice is in separate keys beside its ids."""

    id: str
    created: int
    model: str
    output_mode: str
    shows_prompt_ids: bool
    weight_version: str

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        return []

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = {
            "index": index,
            "finish_reason": None if ending is None else ending.finish_reason,
            "stop_reason": None if ending is None else ending.stop_reason,
            "token_ids": id_list(piece.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": None if ending is None else self._weights(piece.num_tokens),
            **piece.delta,
            "logprobs": piece.logprobs,
        }
        # Only a chunk with prompt token ids, the first, has their key.
        about_prompt = {"prompt_token_ids": id_list(piece.prompt_token_ids)} if piece.prompt_token_ids else {}
        return {
            "request_id": self.id,
            "usage": None if usage is None else usage.full(),
            **about_prompt,
            "output_mode": self.output_mode,
            "choices": [choice],
        }

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return {"request_id": self.id, "usage": usage.last(), "output_mode": self.output_mode, "choices": []}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        prompt_output = choices[0].prompt_output
        return {
            "request_id": self.id,
            "model": self.model,
            "created": self.created,
            "usage": usage.full(),
            "prompt_logprobs": prompt_output.logprobs,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": id_list(prompt_output.token_ids) if self.shows_prompt_ids else None,
            "mm_placeholders": None,
            "metrics": metrics,
            "kv_transfer_params": choices[-1].kv_transfer_params,
            "ec_transfer_params": None,
            "output_mode": self.output_mode,
            "choices": listed(choices, self._whole_choice),
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "finish_reason": choice.ending.finish_reason,
            "stop_reason": choice.ending.stop_reason,
            "token_ids": id_list(choice.token_ids),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": self._weights(choice.num_tokens),
            **choice.content,
            "logprobs": choice.logprobs,
        }

    def _weights(self, num_tokens: int) -> list[dict[str, Any]]:
        return [{"version": self.weight_version, "start": 0, "end": num_tokens}]


def token_logprobs(tokens: ScoredTokens) -> dict[str, Any]:
    """Log-probabilities by token id."""
    if len(tokens) > LONG_TOKENS:
        return {"content": json_array(lambda: map(_token, tokens))}
    return {"content": [_token(each) for each in tokens]}


def _token(scored: ScoredToken) -> dict[str, Any]:
    return {**_candidate(scored.chosen), "top_logprobs": [_candidate(shown) for shown in scored.shown]}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    logprob = max(candidate.logprob, LOWEST_LOGPROB)
    return {"token_id": candidate.token_id, "logprob": logprob, "rank": candidate.rank}


class RequestOutputKind(Enum):
    """Which tokens each reply of the engine has."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


_Ids: TypeAlias = Items[int] | None


class SamplingFields(RequestObject):
    """vLLM's own object of sampling parameters."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Items[str] | None = None
    stop_token_ids: _Ids = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Items[Items[int]] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: _Ids = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Annotated[dict[int, float], WrapValidator(in_pieces)] | None = None
    allowed_token_ids: _Ids = None
    extra_args: _Map = None
    bad_words: Items[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: _Ids = None


def _read_sampling_fields(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Report that the value is no such object of vLLM beside what is wrong with it as JSON."""
    try:
        if isinstance(value, dict):
            return validate(value)
        wrong = [InitErrorDetails(type="dict_type", input=value)]
    except ValidationError as error:
        wrong = error_details(error)
    instance = InitErrorDetails(type="is_instance_of", input=value, ctx={"class": "SamplingParams"})
    raise ValidationError.from_exception_data("", [instance, *wrong])


class _Inline:
    """Annotates a model whose schema stands where it is used."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler.resolve_ref_schema(handler(schema))


class MultiModalFeatures(RequestObject):
    """Pictures and recordings of a prompt."""

    mm_hashes: dict[str, Items[str]]
    mm_placeholders: dict[str, Items[PlaceholderRangeInfo]]
    kwargs_data: dict[str, Items[str | None]] | None = None
    mm_metadata: dict[str, Items[str | None]] | None = None


class ReasoningParserKwargs(RequestObject):
    """Arguments of the parser of reasoning."""

    model_config = ConfigDict(extra="forbid")

    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class ParseContext(OpenObject):
    """The chat that the tokens belong to."""


class GenerateRequest(RequestObject):
    """The body of POST /inference/v1/generate."""

    request_id: str = Field(default_factory=str)
    token_ids: Annotated[list[int], Field(min_length=1), WrapValidator(in_pieces), AfterValidator(not_negative)]
    token_offsets: Items[tuple[int, int]] | None = None
    features: MultiModalFeatures | None = None
    content_parts: Items[dict[str, Any]] | None = None
    sampling_params: Annotated[SamplingFields, WrapValidator(_read_sampling_fields), _Inline()]
    model: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    parse_context: Annotated[ParseContext, described_as("ParseContext")] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    priority: int = Field(0, ge=SMALLEST_INT64, le=LARGEST_INT64)
    kv_transfer_params: _Map = None
    ec_transfer_params: _Map = None

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.output_mode != "tokens" and not self.sampling_params.detokenize:
            raise ValueError(f"output_mode={self.output_mode!r} requires sampling_params.detokenize to be true")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A parsed request. An empty `model` means the first served name."""

    model: str
    token_ids: list[int]
    sampling: SamplingParams
    logit_bias: dict[int, float] | None
    structured_outputs: Mapping[str, Any] | None
    thinking_token_budget: int | None
    delivery: Delivery
    output_mode: str
    returns_prompt_ids: bool
    includes_reasoning: bool
    parse_context: Mapping[str, Any] | None
    """Context for parsing the answer: the chat to which it belongs may parse reasoning or calls. None for other
    text."""
    common: RequestMetadata
    stream_interval: int = 1


def parse_generate(body: dict[str, Any]) -> GenerationRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_bad_salt(body.get("cache_salt"))
    request = read_as(GenerateRequest, body)
    given = request.sampling_params
    constraint = None if given.structured_outputs is None else given.structured_outputs.given()
    refuse_bad_thinking_budget(given.thinking_token_budget)
    if given.stop and not given.detokenize:
        raise ApiError("stop strings are only supported when detokenize is True. Set detokenize=True to use stop.")
    delivery = delivery_of(request.stream, request.stream_options)
    if delivery.stream and request.output_mode == "derender":
        raise ApiError("output_mode='derender' does not support stream=true.")
    interval = 1 if given.stream_interval is None else given.stream_interval
    if interval < 1:
        raise bad_value(f"stream_interval must be at least 1, got {interval}.", "stream_interval", interval)
    max_tokens = given.max_tokens if "max_tokens" in given.model_fields_set else None
    context = None if request.parse_context is None else request.parse_context.model_extra or {}
    return GenerationRequest(
        model=request.model or "",
        token_ids=request.token_ids,
        sampling=read_sampling(set_fields(given), max_tokens, "max_tokens", given.logprobs),
        logit_bias=given.logit_bias,
        structured_outputs=constraint,
        thinking_token_budget=given.thinking_token_budget,
        delivery=delivery,
        output_mode=request.output_mode,
        returns_prompt_ids=bool(request.return_token_ids),
        includes_reasoning=(context or {}).get("include_reasoning") is not False,
        parse_context=context,
        common=read_request_metadata(set_fields(request)),
        stream_interval=interval,
    )


def check_prompt_length(num_tokens: int, max_model_len: int) -> None:
    """Raise ApiError, with this route's message, for a prompt that leaves no room for output."""
    if num_tokens > max_model_len:
        raise ApiError(f"Input length ({num_tokens}) exceeds model's maximum context length ({max_model_len}).")
    if num_tokens == max_model_len:
        raise ApiError(
            f"The decoder prompt (length {num_tokens}) plus the number of requested output tokens (at least 1) is "
            f"longer than the maximum model length of {max_model_len}. Make sure that `max_model_len` is no smaller "
            "than the number of text tokens (prompt + requested output tokens)."
        )
