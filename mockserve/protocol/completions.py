"""Bodies of chat completions, batches and text completions, and their replies field by field in vLLM's order."""

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import Field, ValidationError, WithJsonSchema
from pydantic.config import JsonDict

from blis_sim.options.memo import Memo
from mockserve.protocol.bodies import (
    UNNAMED,
    Choice,
    Choices,
    Entries,
    Items,
    OpenObject,
    Piece,
    PromptOutput,
    Usage,
    described_as,
    id_list,
    listed,
    read_as,
    set_fields,
    unreadable_as,
    weight_versions,
    with_numbers,
)
from mockserve.protocol.chat_messages import (
    NO_PROMPT_EMBEDS,
    PROMPT_EMBEDS,
    ChatMessage,
    check_calls,
    check_parts,
    list_calls,
)
from mockserve.protocol.errors import ApiError, bad_value
from mockserve.protocol.forms import LARGEST_INT64, SMALLEST_INT64
from mockserve.protocol.json_text import JsonBlocks
from mockserve.protocol.sampling import (
    Delivery,
    RepetitionDetectionParams,
    RequestMetadata,
    ResponseOptions,
    SamplingParams,
    StreamOptions,
    StructuredOutputsParams,
    check_max_tokens,
    delivery_of,
    read_request_metadata,
    read_response_options,
    read_sampling,
    refuse_bad_tag,
    refuse_chat_contradictions,
    refuse_completion_contradictions,
    refuse_media_arguments,
)

# Bodies of chat completions, of batches of them and of text completions, with vLLM's names and order of fields.

Int64 = Annotated[int, Field(ge=SMALLEST_INT64, le=LARGEST_INT64)]
Ids: TypeAlias = Items[int] | None
FreeObject: TypeAlias = dict[str, Any] | None
Stop: TypeAlias = str | Annotated[list[str], Field(max_length=4)] | None
Salt: TypeAlias = Annotated[str, Field(min_length=1, max_length=1024)] | None
MediaArguments: TypeAlias = Entries[dict[str, Any]] | None
ExtraArguments: TypeAlias = Entries[str | int | float | Items[str | int | float]] | None
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
_NOTHING: JsonDict = {"default": []}
DEPRECATED: JsonDict = {"deprecated": True}
_Bytes = Annotated[bytes, WithJsonSchema({"type": "string", "contentMediaType": "application/octet-stream"})]


class LegacyStructuralTag(OpenObject):
    """A part of an answer with a schema, between two texts."""

    begin: str
    schema_: FreeObject = Field(None, alias="schema")
    end: str


class JsonSchemaResponseFormat(OpenObject):
    """The schema of an answer."""

    name: str
    description: str | None = None
    schema_: FreeObject = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(OpenObject):
    """Text, an object, or a value with a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaResponseFormat | None = None


class StructuralTagResponseFormat(OpenObject):
    """Text with parts that have schemas."""

    type: Literal["structural_tag"]
    format: Any


class LegacyStructuralTagResponseFormat(OpenObject):
    """Text with parts that have schemas, in the older form."""

    type: Literal["structural_tag"]
    structures: Items[LegacyStructuralTag]
    triggers: Items[str]


AnyResponseFormat: TypeAlias = (
    Annotated[ResponseFormat, UNNAMED]
    | Annotated[StructuralTagResponseFormat, UNNAMED]
    | Annotated[LegacyStructuralTagResponseFormat, UNNAMED]
    | None
)


class ChatCompletionNamedFunction(OpenObject):
    """The name of a function."""

    name: str


class ChatCompletionNamedToolChoiceParam(OpenObject):
    """A function that the answer must call."""

    function: ChatCompletionNamedFunction
    type: Literal["function"] = "function"


class FunctionDefinition(OpenObject):
    """A function."""

    name: str
    description: str | None = None
    parameters: FreeObject = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ChatCompletionToolsParam(OpenObject):
    """A tool that the answer may call."""

    type: Literal["function"] = "function"
    function: Annotated[
        FunctionDefinition, described_as("vllm__entrypoints__generate__base__protocol__FunctionDefinition")
    ]
    defer_loading: bool | None = None


ToolChoice: TypeAlias = (
    Literal["none"]
    | Literal["auto"]
    | Literal["required"]
    | Annotated[ChatCompletionNamedToolChoiceParam, UNNAMED]
    | None
)


class ChatCompletionRequest(OpenObject):
    """A conversation to continue. Fields that are not listed are accepted and have no effect."""

    messages: Items[ChatMessage]
    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: Entries[float] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = Field(None, json_schema_extra=DEPRECATED)
    max_completion_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: AnyResponseFormat = None
    seed: Int64 | None = None
    stop: Stop = Field(default_factory=list, json_schema_extra=_NOTHING)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: Items[ChatCompletionToolsParam] | None = None
    tool_choice: ToolChoice = "none"
    reasoning_effort: Effort = None
    thinking_token_budget: int | None = None
    include_reasoning: bool = True
    parallel_tool_calls: bool | None = True
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: Ids = Field(default_factory=list, json_schema_extra=_NOTHING)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=LARGEST_INT64)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Ids = None
    allowed_token_ids: Ids = None
    bad_words: Items[str] = Field(default_factory=list)
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: Items[Entries[str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: FreeObject = None
    media_io_kwargs: MediaArguments = None
    mm_processor_kwargs: FreeObject = None
    structured_outputs: StructuredOutputsParams | None = None
    priority: Int64 = 0
    request_id: str = Field(default_factory=str)
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    return_token_offsets: bool | None = False
    return_prompt_text: bool | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = Field(None, json_schema_extra=DEPRECATED)
    cache_salt: Salt = None
    kv_transfer_params: FreeObject = None
    ec_transfer_params: FreeObject = None
    vllm_xargs: ExtraArguments = None
    repetition_detection: RepetitionDetectionParams | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None


class BatchChatCompletionRequest(OpenObject):
    """Conversations to continue, each with one answer."""

    messages: Annotated[list[Annotated[list[ChatMessage], Field(min_length=1)]], Field(min_length=1)]
    model: str | None = None
    frequency_penalty: float | None = None
    logit_bias: Entries[float] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    logprob_token_ids: Ids = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    presence_penalty: float | None = None
    response_format: Any | None = None
    seed: Int64 | None = None
    stop: Stop = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    tool_choice: Literal["none"] | None = "none"
    include_reasoning: bool = True
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float | None = 1.0
    early_stopping: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    request_id: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: FreeObject = None
    media_io_kwargs: MediaArguments = None
    mm_processor_kwargs: FreeObject = None
    priority: Int64 = 0
    cache_salt: str | None = None
    include_stop_str_in_output: bool = False
    guided_decoding_backend: str | None = None
    echo: bool = False
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool = False


class CompletionRequest(OpenObject):
    """Prompts to continue. Fields that are not listed are accepted and have no effect."""

    model: str | None = None
    prompt: Items[Annotated[int, Field(ge=0)]] | Items[Items[Annotated[int, Field(ge=0)]]] | str | Items[str] | None = (
        None
    )
    echo: bool | None = False
    frequency_penalty: float | None = None
    logit_bias: Entries[float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = 16
    n: int = 1
    presence_penalty: float | None = None
    seed: Int64 | None = None
    stop: Stop = Field(default_factory=list, json_schema_extra=_NOTHING)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    watermarking: bool | None = None
    length_penalty: float = 1.0
    stop_token_ids: Ids = Field(default_factory=list, json_schema_extra=_NOTHING)
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=LARGEST_INT64)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    allowed_token_ids: Ids = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Ids = None
    bad_words: Items[str] = Field(default_factory=list)
    prompt_embeds: _Bytes | Items[_Bytes] | None = None
    add_special_tokens: bool = True
    response_format: AnyResponseFormat = None
    structured_outputs: StructuredOutputsParams | None = None
    priority: Int64 = 0
    request_id: str = Field(default_factory=str)
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: bool = False
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    return_token_offsets: bool | None = False
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = Field(None, json_schema_extra=DEPRECATED)
    cache_salt: Salt = None
    kv_transfer_params: FreeObject = None
    ec_transfer_params: FreeObject = None
    vllm_xargs: ExtraArguments = None
    repetition_detection: RepetitionDetectionParams | None = None
    thinking_token_budget: int | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None


# The bodies of POST /v1/completions, /v1/chat/completions and its batches; repeated bodies are parsed once.


@dataclass(slots=True)
class BodyShape:
    """Bodies that differ in their plain messages or their plain prompt alone."""

    settings: object = None
    """Results of planning that hold for all of these bodies; None before the first plan."""


class ChatRequest(NamedTuple):
    """A parsed chat request. An empty `model` means the first served name; `body` is as it was received.

    `role` is the role of the message that the answer continues, and None for an answer that is a new message. `echoes`:
    the answer repeats the text of that message.
    """

    model: str
    body: dict[str, Any]
    sampling: SamplingParams
    delivery: Delivery
    common: RequestMetadata = RequestMetadata()
    response_options: ResponseOptions = ResponseOptions()
    role: str | None = None
    echoes: bool = False
    add_special_tokens: bool = False
    includes_reasoning: bool = True
    shape: BodyShape | None = None

    @property
    def messages(self) -> list[Any]:
        found: list[Any] = self.body["messages"]
        return found


def parse_chat(
    body: dict[str, Any],
    pydantic_class: str | None = None,
    is_typed: bool = True,
    refuse: Callable[[dict[str, Any]], object] = lambda body: None,
    makes_prompt: bool = True,
) -> ChatRequest:
    """Parse a chat body. Raises ApiError for a request that vLLM refuses before it looks up the model.

    `pydantic_class` is the pydantic class that refuses calls. Messages of other interfaces are not `is_typed`: their
    content parts have no form for each role. `refuse` raises what depends on the server, before parts are looked at.
    Calls and parts are not looked at where no prompt is made of them.
    """
    messages = body.get("messages")
    if "messages" in body and not isinstance(messages, list | str | dict):
        raise ApiError(f"{type(messages).__name__!r} object is not iterable")
    list_calls(messages)
    refuse_chat_contradictions(body)
    request = read_as(ChatCompletionRequest, body)
    messages = body["messages"]
    if makes_prompt:
        check_calls(messages, pydantic_class)
        refuse(body)
        check_parts(messages, is_typed)
    given = set_fields(request)
    newer, top_logprobs = request.max_completion_tokens, request.top_logprobs or 0
    sampling = read_sampling(
        given,
        max_tokens=request.max_tokens if newer is None else newer,
        max_tokens_param="max_tokens" if newer is None else "max_completion_tokens",
        num_logprobs=top_logprobs if request.logprobs else None,
        num_echoed_logprobs=top_logprobs if request.echo else None,
    )
    if request.continue_final_message and request.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    role = None if request.add_generation_prompt or not messages else str(messages[-1]["role"])
    return ChatRequest(
        model=request.model or "",
        body=body,
        sampling=sampling,
        delivery=delivery_of(request.stream, request.stream_options),
        common=read_request_metadata(given),
        response_options=read_response_options(given, sampling),
        role=role,
        echoes=request.echo and bool(messages),
        add_special_tokens=request.add_special_tokens,
        shape=BodyShape(),
        includes_reasoning=request.include_reasoning,
    )


_NOT_OF_EACH_CHAT = frozenset({"messages", "stream", "stream_options", "prompt_logprobs", "return_prompt_text"})
PYDANTIC_CLASS = "ChatCompletionRequest"
"""The pydantic class that parses each conversation of a batch."""


def chat_bodies_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a chat body for each conversation; fields that only chats have apply there. Raises ApiError."""
    _refuse_several_answers(body)
    body = with_numbers(body, read_as(BatchChatCompletionRequest, body))
    checked = {name: value for name, value in body.items() if name != "tool_choice"}
    refuse_chat_contradictions({"add_generation_prompt": True, **checked})
    names = ChatCompletionRequest.model_fields.keys() - _NOT_OF_EACH_CHAT
    shared = {name: value for name, value in body.items() if name in names and value is not None}
    check_calls(next(iter(body["messages"]), []), PYDANTIC_CLASS)
    try:
        ChatCompletionRequest.model_validate({**shared, "messages": []})
    except ValidationError as error:
        refused = unreadable_as(PYDANTIC_CLASS, error)
    else:
        shared.pop("tools", None)  # no prompt of a batch has them
        return [{**shared, "tool_choice": "none", "messages": each} for each in body["messages"]]
    raise refused


def _refuse_several_answers(body: dict[str, Any]) -> None:
    """Check a batch before the types of its fields, in vLLM's order. Raises ApiError."""
    if body.get("use_beam_search"):
        message = "Batch chat completions do not support beam search. Please set `use_beam_search` to False."
        raise bad_value(message, "use_beam_search")
    if body.get("logprob_token_ids") and not body.get("logprobs"):
        raise bad_value("when using `logprob_token_ids`, `logprobs` must be set to true.", "logprob_token_ids")
    params = body.get("kv_transfer_params")
    if isinstance(params, dict) and params.get("prompt_token_ids") is not None:
        message = (
            "Batch chat completions do not support `kv_transfer_params['prompt_token_ids']`: "
            "one pre-tokenized prompt cannot serve several conversations."
        )
        raise bad_value(message, "kv_transfer_params.prompt_token_ids")
    refuse_bad_tag(body)
    if body.get("n", 1) not in (None, 1):
        raise bad_value("Batch chat completions do not support `n > 1`. Please set `n` to 1.", "n", body["n"])


DEFAULT_MAX_TOKENS = 16

Prompt: TypeAlias = str | list[int]


class TextRequest(NamedTuple):
    """A parsed completion request. An empty `model` means the first served name.

    `body` is as it was received.
    `echo` repeats the prompt before the answer; `only_echoes` omits the answer.
    """

    model: str
    body: dict[str, Any]
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    delivery: Delivery
    common: RequestMetadata = RequestMetadata()
    response_options: ResponseOptions = ResponseOptions()
    echo: bool = False
    only_echoes: bool = False
    add_special_tokens: bool = True
    shape: BodyShape | None = None


def parse_completion(body: dict[str, Any]) -> TextRequest:
    """Parse a completion body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_completion_contradictions(body)
    request = read_as(CompletionRequest, body)
    delivery = delivery_of(request.stream, request.stream_options)
    if request.use_beam_search and delivery.stream:
        raise ApiError("Streaming is not currently supported with beam search")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    echo, given = bool(request.echo), set_fields(request)
    only_echoes = echo and max_tokens == 0
    sampling = read_sampling(
        given,
        max_tokens=1 if only_echoes and not request.use_beam_search else max_tokens,
        max_tokens_param="max_tokens",
        num_logprobs=request.logprobs,
        num_echoed_logprobs=request.logprobs if echo else None,
    )
    return TextRequest(
        model=request.model or "",
        body=body,
        prompts=_read_prompts(request.prompt),
        sampling=sampling,
        delivery=delivery,
        common=read_request_metadata(given),
        response_options=read_response_options(given, sampling),
        echo=echo,
        only_echoes=only_echoes,
        add_special_tokens=request.add_special_tokens,
        shape=BodyShape(),
    )


def check_prompts(request: TextRequest, sampling: SamplingParams, max_model_len: int) -> None:
    """Raise ApiError for what vLLM refuses before it tokenizes prompts. An empty list of embeddings is ignored."""
    embeds, prompt_logprobs, suffix = (request.body.get(each) for each in (PROMPT_EMBEDS, "prompt_logprobs", "suffix"))
    if suffix is not None:
        raise ApiError(_problem_of_suffix(request), param="suffix")
    if request.echo and embeds is not None:
        raise ApiError("Echo is unsupported with prompt embeds.")
    if prompt_logprobs is not None and embeds is not None:
        raise ApiError("prompt_logprobs is not compatible with prompt embeds.")
    refuse_media_arguments(request.body)
    check_max_tokens(sampling, max_model_len)
    if embeds not in (None, []):
        raise bad_value(f"{NO_PROMPT_EMBEDS}.", PROMPT_EMBEDS)
    if request.body.get("prompt") == []:
        raise bad_value("You must pass at least one prompt", "prompt")


def _problem_of_suffix(request: TextRequest) -> str:
    if request.echo:
        return "Echo is unsupported with suffix."
    for name in (PROMPT_EMBEDS, "truncate_prompt_tokens"):
        if request.body.get(name) is not None:
            return f"suffix is not supported with {name}"
    if all(isinstance(each, str) for each in request.prompts):
        return "suffix is only supported for models with FIM completion rendering"
    return "suffix requires text prompt input for FIM completion rendering"


def _read_prompts(value: list[int] | list[list[int]] | str | list[str] | None) -> tuple[Prompt, ...]:
    """Return a string, strings, token ids or lists of token ids as a sequence of prompts."""
    if not value:
        return ("",) if value == "" else ()
    if isinstance(value, str):
        return (value,)
    return (value,) if isinstance(value[0], int) else tuple(value)


T = TypeVar("T")

MAX_CACHED = 256
MOST_BYTES = 16_384
"""Maximum size of a cached body, without its prompt."""
_FORMAT = 2
"""Version of the marshal format in which equal values have equal bytes."""
_PLAIN_ROLES = frozenset({"system", "user", "assistant"})
_ABOUT_MESSAGES = frozenset({"echo", "add_generation_prompt", "continue_final_message"})
"""Fields whose validity depends on the messages of the body."""


class ParsedBodyCache(Generic[T]):
    """Parses bodies, and caches recent results under all fields except the `varying` one."""

    def __init__(
        self,
        parse: Callable[[dict[str, Any]], T],
        varying: str,
        blank: object,
        is_plain: Callable[[dict[str, Any]], bool],
        with_body: Callable[[T, dict[str, Any]], T],
    ) -> None:
        """`is_plain` returns whether `varying` has a form that does not affect other fields.

        What is cached has `blank` in its place: texts of a client are not kept.
        """
        self._parse = parse
        self._varying = varying
        self._blank = blank
        self._is_plain = is_plain
        self._with_body = with_body
        self._cache = Memo[bytes, T](MAX_CACHED)

    def parse(self, body: dict[str, Any]) -> T:
        """Return the parsed body. Raises ApiError."""
        if not self._is_plain(body):
            return self._parse(body)
        rest = body.copy()
        del rest[self._varying]
        try:
            key = marshal.dumps(rest, _FORMAT)
        except ValueError:  # lists within lists without end
            return self._parse(body)
        if len(key) > MOST_BYTES:
            return self._parse(body)
        found = self._cache.get(key)
        if found is not None:
            return self._with_body(found, body)
        parsed = self._parse(body)
        self._cache.keep(key, self._with_body(parsed, {**rest, self._varying: self._blank}))
        return parsed

    def parse_long(self, body: dict[str, Any]) -> T:
        """Parse a long body without caching. Raises ApiError."""
        return self._parse(body)


def completion_body_cache() -> ParsedBodyCache[TextRequest]:
    """Return the cache of text completions."""
    return ParsedBodyCache(parse_completion, "prompt", "", has_plain_prompt, _with_prompt)


def chat_body_cache(refuse: Callable[[dict[str, Any]], object]) -> ParsedBodyCache[ChatRequest]:
    """Return the cache of chat completions. `refuse` is as for `parse_chat`, and is not called for repeated bodies."""
    parse = partial(parse_chat, refuse=refuse)
    return ParsedBodyCache(
        parse, "messages", [], has_plain_messages, lambda api_request, body: api_request._replace(body=body)
    )


def has_plain_prompt(body: dict[str, Any]) -> bool:
    """Whether the prompt of a body is one text, on which no other field depends."""
    prompt = body.get("prompt")
    return type(prompt) is str and prompt != ""


def _with_prompt(api_request: TextRequest, body: dict[str, Any]) -> TextRequest:
    return api_request._replace(body=body, prompts=(body["prompt"],))


def has_plain_messages(body: dict[str, Any]) -> bool:
    """Whether the messages of a body are texts of usual roles, on which no other field depends."""
    messages = body.get("messages")
    if type(messages) is not list or not messages or not _ABOUT_MESSAGES.isdisjoint(body):
        return False
    for each in messages:
        if type(each) is not dict or len(each) != 2 or type(each.get("content")) is not str:
            return False
        role = each.get("role")
        if type(role) is not str or role not in _PLAIN_ROLES:
            return False
    return True


# Chat and text replies, field by field in vLLM's order. vLLM sends explicitly set fields, hence uneven nulls.

CHUNK = "chat.completion.chunk"


class ChatBodies(NamedTuple):
    """Bodies of one chat reply. `ends_with_usage`: a usage chunk follows, which has the fingerprint.

    `role` is the role of the answer. `echoed` is the text that the answer continues, if the request has `echo`.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False
    role: str = "assistant"
    echoed: str = ""
    shows_prompt_ids: bool = False
    weight_version: str | None = None
    """Version to include if the client requests it."""

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        about_prompt = {
            "prompt_token_ids": id_list(prompt_output.token_ids) if self.shows_prompt_ids else None,
            "prompt_text": prompt_output.text,
        }
        role = {"role": self.role, "content": ""}
        chunks = [self._opening(index, role, usage) | about_prompt for index in range(num_choices)]
        if self.echoed:
            echo = content_delta(self.echoed)
            chunks += [self._opening(index, echo, usage) for index in range(num_choices)]
        return chunks

    def _opening(self, index: int, delta: dict[str, Any], usage: Usage | None) -> dict[str, Any]:
        chunk = self._head(CHUNK, [_choice(index, delta, None, None)])
        return chunk if usage is None else {**chunk, "usage": usage.running()}

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = _choice(index, piece.delta, piece.logprobs, None if ending is None else ending.finish_reason)
        if ending is not None:
            choice["stop_reason"] = ending.stop_reason
        choice["token_ids"] = id_list(piece.token_ids)
        if ending is not None:
            choice["weight_versions"] = weight_versions(self.weight_version, piece.num_tokens)
        chunk = self._head(CHUNK, [choice])
        if usage is not None:
            chunk["usage"] = usage.running()
        if ending is not None and not self.ends_with_usage:
            chunk["system_fingerprint"] = self.fingerprint
        chunk["kv_transfer_params"] = piece.kv_transfer_params
        return chunk

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head(CHUNK, []), "usage": usage.last(), "system_fingerprint": self.fingerprint}
        return chunk if metrics is None else {**chunk, "metrics": metrics}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        prompt_output = choices[0].prompt_output if len(choices) else PromptOutput()
        return {
            **self._head("chat.completion", listed(choices, self._whole_choice)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "prompt_logprobs": prompt_output.logprobs,
            "prompt_token_ids": id_list(prompt_output.token_ids) if self.shows_prompt_ids else None,
            "prompt_text": prompt_output.text,
            "kv_transfer_params": choices[-1].kv_transfer_params if len(choices) else None,
            "ec_transfer_params": None,
            "metrics": metrics,
        }

    def _head(self, kind: str, choices: list[dict[str, Any]] | JsonBlocks) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        message = choice.content
        if self.echoed:
            message = {**message, "content": self.echoed + (message["content"] or "")}
        return {
            "index": index,
            "message": message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.ending.finish_reason,
            "stop_reason": choice.ending.stop_reason,
            "token_ids": id_list(choice.token_ids),
            "routed_experts": None,
            "weight_versions": weight_versions(self.weight_version, choice.num_tokens),
        }


def _choice(
    index: int, delta: dict[str, Any], logprobs: Mapping[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


TOOL_CALL_PREFIX = "chatcmpl-tool-"
KEY_ORDER = ("content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function; `arguments` are JSON as text."""

    id: str
    name: str
    arguments: str


def content_delta(text: str) -> dict[str, Any]:
    return {"content": text}


def reasoning_delta(text: str) -> dict[str, Any]:
    return {"reasoning": text}


def tool_name_delta(call: int, call_id: str, name: str, arguments: str | None = None) -> dict[str, Any]:
    """The first event of call number `call`."""
    function = {"name": name} if arguments is None else {"name": name, "arguments": arguments}
    return {"tool_calls": [{"id": call_id, "type": "function", "index": call, "function": function}]}


def tool_arguments_delta(call: int, text: str, null_name: bool = False, null_id: bool = False) -> dict[str, Any]:
    """Return a further part of the arguments of call number `call`, with a null name or id for parsers that send
    nulls."""
    function = {"name": None, "arguments": text} if null_name else {"arguments": text}
    part = {"index": call, "function": function}
    return {"tool_calls": [{"id": None, **part} if null_id else part]}


def merge_deltas(deltas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge deltas of one event: texts joined, calls one after the other."""
    if len(deltas) == 1:
        return deltas[0]
    found: dict[str, Any] = {}
    for delta in deltas:
        for key, value in delta.items():
            if key == "tool_calls":
                found[key] = _joined_calls([*found.get(key, []), *value])
            elif found.get(key) is None:
                found[key] = value
            elif value is not None:
                found[key] += value
    return {key: found[key] for key in KEY_ORDER if key in found}


def _joined_calls(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the parts of each call: the name of the first, the arguments of all."""
    joined: dict[int, dict[str, Any]] = {}
    for call in calls:
        known = joined.get(call["index"])
        if known is None:
            joined[call["index"]] = {**call, "function": dict(call["function"])}
        else:
            function = known["function"]
            function["arguments"] = function.get("arguments", "") + call["function"].get("arguments", "")
    return list(joined.values())


def whole_message(role: str, content: str | None, reasoning: str | None, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """The message of a whole reply, in vLLM's order of keys."""
    tool_calls = [
        {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in calls
    ]
    return {
        "role": role,
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": tool_calls} if tool_calls else {}),
        "reasoning": reasoning,
    }


class CompletionBodies(NamedTuple):
    """Bodies of one completion reply. `ends_with_usage`: a usage chunk follows, which has the fingerprint."""

    id: str
    created: int
    model: str
    fingerprint: str
    ends_with_usage: bool = False
    shows_prompt_ids: bool = False
    weight_version: str | None = None
    """Version to include if the client requests it."""

    def opening_chunks(
        self, num_choices: int, prompt_output: PromptOutput, usage: Usage | None
    ) -> list[dict[str, Any]]:
        return []

    def chunk(self, index: int, piece: Piece, usage: Usage | None) -> dict[str, Any]:
        ending = piece.ending
        choice = {
            "index": index,
            "text": piece.delta,
            "logprobs": piece.logprobs,
            "finish_reason": None if ending is None else ending.finish_reason,
            "stop_reason": None if ending is None else ending.stop_reason,
            "prompt_token_ids": id_list(piece.prompt_token_ids),
            "token_ids": id_list(piece.token_ids),
            "weight_versions": weight_versions(self.weight_version if ending is not None else None, piece.num_tokens),
        }
        chunk = self._head([choice])
        if usage is not None:
            chunk["usage"] = usage.counts()
        if ending is not None and not self.ends_with_usage:
            chunk["system_fingerprint"] = self.fingerprint
        chunk["kv_transfer_params"] = piece.kv_transfer_params
        return chunk

    def usage_chunk(self, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        chunk = {**self._head([]), "usage": usage.last(), "system_fingerprint": self.fingerprint}
        return chunk if metrics is None else {**chunk, "metrics": metrics}

    def whole(self, choices: Choices, usage: Usage, metrics: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            **self._head(listed(choices, self._whole_choice)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage.full(),
            "kv_transfer_params": choices[0].kv_transfer_params if len(choices) else None,
            "ec_transfer_params": None,
            "metrics": metrics,
        }

    def _head(self, choices: list[dict[str, Any]] | JsonBlocks) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _whole_choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "text": choice.content,
            "logprobs": choice.logprobs,
            "finish_reason": choice.ending.finish_reason,
            "stop_reason": choice.ending.stop_reason,
            "token_ids": id_list(choice.token_ids),
            "prompt_logprobs": choice.prompt_output.logprobs,
            "prompt_token_ids": id_list(choice.prompt_output.token_ids) if self.shows_prompt_ids else None,
            "routed_experts": None,
            "weight_versions": weight_versions(self.weight_version, choice.num_tokens),
        }
