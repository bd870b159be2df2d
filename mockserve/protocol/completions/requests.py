"""The bodies of POST /v1/completions, /v1/chat/completions and its batches; repeated bodies are parsed once."""

import marshal
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from blis_sim.options.memo import Memo
from mockserve.protocol.completions.content_parts import NO_PROMPT_EMBEDS, PROMPT_EMBEDS
from mockserve.protocol.completions.fields import CHAT_FIELDS, CHAT_REQUIRED, COMPLETION_FIELDS
from mockserve.protocol.completions.messages import (
    MESSAGE,
    check_iterable_calls,
    check_parts,
)
from mockserve.protocol.errors import ApiError, Problem, bad_value, unreadable
from mockserve.protocol.reading.body import Fields, check_types
from mockserve.protocol.reading.containers import ListOf, Nullable
from mockserve.protocol.reading.types import FieldType, Flag, Integer, OneOf, Text, as_integer
from mockserve.protocol.refusals import (
    check_one_constraint,
    refuse_bad_tag,
    refuse_chat_contradictions,
    refuse_completion_contradictions,
)
from mockserve.protocol.sampling import (
    Delivery,
    RequestMetadata,
    ResponseOptions,
    SamplingParams,
    read_delivery,
    read_request_metadata,
    read_response_options,
    read_sampling,
)
from mockserve.protocol.token_checks import check_logit_bias_keys


class ChatRequest(NamedTuple):
    """A parsed chat request. An empty `model` means the first served name; `messages` are unchanged.

    `role` is the role of the message that the answer continues, and None for an answer that is a new message. `echoes`:
    the answer repeats the text of that message.
    """

    model: str
    messages: list[Any]
    sampling: SamplingParams
    delivery: Delivery
    common: RequestMetadata = RequestMetadata()
    response_options: ResponseOptions = ResponseOptions()
    role: str | None = None
    echoes: bool = False
    add_special_tokens: bool = False
    includes_reasoning: bool = True


def parse_chat(body: dict[str, Any], pydantic_class: str | None = None, is_typed: bool = True) -> ChatRequest:
    """Parse a chat body. Raises ApiError for a request that vLLM refuses before it looks up the model.

    `pydantic_class` is the pydantic class that refuses calls. Messages of other interfaces are not `is_typed`: their
    content parts have no form for each role.
    """
    messages = body.get("messages")
    if "messages" in body and not isinstance(messages, list | str | dict):
        raise ApiError(f"{type(messages).__name__!r} object is not iterable")
    check_iterable_calls(messages)
    refuse_chat_contradictions(body)
    check_types(body, CHAT_FIELDS, CHAT_REQUIRED)
    assert isinstance(messages, list)
    check_parts(messages, pydantic_class, is_typed)
    fields = Fields(body)
    sampling = _read_chat_sampling(fields)
    check_logit_bias_keys(body.get("logit_bias"))
    if fields.flag("continue_final_message") and fields.flag("add_generation_prompt", True):
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    role = None if fields.flag("add_generation_prompt", True) or not messages else str(messages[-1]["role"])
    return ChatRequest(
        model=fields.text("model") or "",
        messages=messages,
        sampling=sampling,
        delivery=read_delivery(fields),
        common=read_request_metadata(fields),
        response_options=read_response_options(fields, sampling),
        role=role,
        echoes=fields.flag("echo") and bool(messages),
        add_special_tokens=fields.flag("add_special_tokens"),
        includes_reasoning=fields.flag("include_reasoning", True),
    )


def _read_chat_sampling(fields: Fields) -> SamplingParams:
    newer = fields.integer("max_completion_tokens")
    top_logprobs = fields.integer("top_logprobs", 0) or 0
    return read_sampling(
        fields,
        max_tokens=fields.integer("max_tokens") if newer is None else newer,
        max_tokens_param="max_tokens" if newer is None else "max_completion_tokens",
        num_logprobs=top_logprobs if fields.flag("logprobs") else None,
        num_echoed_logprobs=top_logprobs if fields.flag("echo") else None,
    )


_CONVERSATIONS: FieldType = ListOf(ListOf(MESSAGE, at_least=1), at_least=1)
_BEFORE = (
    *("model", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "logprob_token_ids", "max_tokens"),
    *("max_completion_tokens", "n", "presence_penalty", "response_format", "seed", "stop", "temperature", "top_p"),
    *("user", "tool_choice", "include_reasoning"),
)
_BETWEEN = ("use_beam_search", "top_k", "min_p", "repetition_penalty", "watermarking", "length_penalty")
_AFTER = (
    *("structured_outputs", "request_id", "add_generation_prompt", "continue_final_message", "chat_template"),
    *("chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "priority", "cache_salt"),
    "include_stop_str_in_output",
)
_LAST = ("echo", "return_tokens_as_token_ids", "return_token_ids")


def _of_chat(names: tuple[str, ...]) -> dict[str, FieldType]:
    return {name: CHAT_FIELDS[name] for name in names}


BATCH_FIELDS: Mapping[str, FieldType] = {
    "messages": _CONVERSATIONS,
    **_of_chat(_BEFORE),
    "tool_choice": Nullable(OneOf(("none",))),
    "best_of": Nullable(Integer()),
    **_of_chat(_BETWEEN),
    "early_stopping": Flag(),
    **_of_chat(_AFTER),
    "request_id": Nullable(Text()),
    "guided_decoding_backend": Nullable(Text()),
    **_of_chat(_LAST),
}


_NOT_OF_EACH_CHAT = frozenset({"messages", "stream", "stream_options", "prompt_logprobs", "return_prompt_text"})
PYDANTIC_CLASS = "ChatCompletionRequest"
"""The pydantic class that parses each conversation of a batch."""


def chat_bodies_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a chat body for each conversation; fields that only chats have apply there. Raises ApiError."""
    _refuse_several_answers(body)
    check_types(body, BATCH_FIELDS, ("messages",))
    if body.get("structured_outputs") is not None:
        check_one_constraint(body["structured_outputs"])
    checked = {name: value for name, value in body.items() if name != "tool_choice"}
    refuse_chat_contradictions({"add_generation_prompt": True, **checked})
    shared = {
        name: value
        for name, value in body.items()
        if name in CHAT_FIELDS and name not in _NOT_OF_EACH_CHAT and value is not None
    }
    of_chats = [name for name in CHAT_FIELDS if name in shared and name not in BATCH_FIELDS]
    problems = [problem for name in of_chats for problem in CHAT_FIELDS[name].problems(shared[name], name)]
    if problems:
        raise unreadable(PYDANTIC_CLASS, [_as_instance(each) for each in problems])
    shared.pop("tools", None)  # no prompt of a batch has them
    return [{**shared, "tool_choice": "none", "messages": each} for each in body["messages"]]


def _as_instance(problem: Problem) -> Problem:
    """Return pydantic's problem of a field where a chat is made from Python values: no object is a valid value."""
    if problem.kind != "model_attributes_type" or not problem.location.startswith("tools."):
        return problem
    name = "FunctionDefinition" if problem.location.endswith(".function") else "ChatCompletionToolsParam"
    message = f"Input should be a valid dictionary or instance of {name}"
    return replace(problem, kind="model_type", message=message)


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


class CompletionRequest(NamedTuple):
    """A parsed completion request. An empty `model` means the first served name; `prompts` is never empty.

    `echo` repeats the prompt before the answer; `only_echoes` omits the answer.
    """

    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    delivery: Delivery
    common: RequestMetadata = RequestMetadata()
    response_options: ResponseOptions = ResponseOptions()
    echo: bool = False
    only_echoes: bool = False
    add_special_tokens: bool = True


def parse_completion(body: dict[str, Any]) -> CompletionRequest:
    """Parse a completion body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    refuse_completion_contradictions(body)
    check_types(body, COMPLETION_FIELDS)
    fields = Fields(body)
    _refuse_embeds(fields)
    delivery = read_delivery(fields)
    if fields.flag("use_beam_search") and delivery.stream:
        raise ApiError("Streaming is not currently supported with beam search")
    if fields.text("suffix") is not None:
        if fields.flag("echo"):
            raise ApiError("Echo is unsupported with suffix.", param="suffix")
        raise ApiError("suffix is only supported for models with FIM completion rendering", param="suffix")
    max_tokens = fields.integer("max_tokens", DEFAULT_MAX_TOKENS)
    echo = fields.flag("echo")
    only_echoes = echo and max_tokens == 0
    num_logprobs = fields.integer("logprobs")
    sampling = read_sampling(
        fields,
        max_tokens=1 if only_echoes and not fields.flag("use_beam_search") else max_tokens,
        max_tokens_param="max_tokens",
        num_logprobs=num_logprobs,
        num_echoed_logprobs=num_logprobs if echo else None,
    )
    check_logit_bias_keys(body.get("logit_bias"))
    return CompletionRequest(
        model=fields.text("model") or "",
        prompts=_read_prompts(body.get("prompt")),
        sampling=sampling,
        delivery=delivery,
        common=read_request_metadata(fields),
        response_options=read_response_options(fields, sampling),
        echo=echo,
        only_echoes=only_echoes,
        add_special_tokens=fields.flag("add_special_tokens", True),
    )


def _refuse_embeds(fields: Fields) -> None:
    """Raise ApiError for prompts as embeddings, which are not supported. An empty list of them is ignored."""
    given = fields.body.get("prompt_embeds")
    if given is None:
        return
    if fields.flag("echo"):
        raise ApiError("Echo is unsupported with prompt embeds.")
    if fields.body.get("prompt_logprobs") is not None:
        raise ApiError("prompt_logprobs is not compatible with prompt embeds.")
    if given != []:
        raise bad_value(f"{NO_PROMPT_EMBEDS}.", PROMPT_EMBEDS)


def _read_prompts(value: Any) -> tuple[Prompt, ...]:
    """Convert a string, a list of strings, token ids or a list of lists of token ids to a sequence of prompts."""
    if value == []:
        raise bad_value("You must pass at least one prompt", "prompt")
    if isinstance(value, str):
        return (value,)
    if all(isinstance(each, str) for each in value):
        return tuple(value)
    if all(isinstance(each, list) for each in value):
        return tuple(_as_ids(each) for each in value)
    return (_as_ids(value),)


def _as_ids(values: list[Any]) -> list[int]:
    return [as_integer(each) for each in values]


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
        is_plain: Callable[[dict[str, Any]], bool],
        with_varying: Callable[[T, Any], T],
    ) -> None:
        """`is_plain` returns whether `varying` has a form that does not affect other fields."""
        self._parse = parse
        self._varying = varying
        self._is_plain = is_plain
        self._with_varying = with_varying
        self._cache = Memo[bytes, T](MAX_CACHED)

    def parse(self, body: dict[str, Any]) -> T:
        """Return the parsed body. Raises ApiError."""
        key = self._key(body) if self._is_plain(body) else None
        if key is None:
            return self._parse(body)
        found = self._cache.get(key)
        if found is not None:
            return self._with_varying(found, body[self._varying])
        return self._cache.keep(key, self._parse(body))

    def parse_long(self, body: dict[str, Any]) -> T:
        """Parse a long body without caching. Raises ApiError."""
        return self._parse(body)

    def _key(self, body: dict[str, Any]) -> bytes | None:
        rest = body.copy()
        del rest[self._varying]
        try:
            key = marshal.dumps(rest, _FORMAT)
        except ValueError:  # lists within lists without end
            return None
        return key if len(key) <= MOST_BYTES else None


def completion_body_cache() -> ParsedBodyCache[CompletionRequest]:
    """Return the cache of text completions."""
    return ParsedBodyCache(parse_completion, "prompt", _has_plain_prompt, _replace_prompt)


def chat_body_cache() -> ParsedBodyCache[ChatRequest]:
    """Return the cache of chat completions."""
    return ParsedBodyCache(parse_chat, "messages", _has_plain_messages, _with_messages)


def _has_plain_prompt(body: dict[str, Any]) -> bool:
    prompt = body.get("prompt")
    return type(prompt) is str and prompt != ""


def _replace_prompt(api_request: CompletionRequest, prompt: str) -> CompletionRequest:
    return api_request._replace(prompts=(prompt,))


def _has_plain_messages(body: dict[str, Any]) -> bool:
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


def _with_messages(api_request: ChatRequest, messages: list[Any]) -> ChatRequest:
    return api_request._replace(messages=messages)
