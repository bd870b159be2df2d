"""Anthropic's Messages API: bodies of requests, turns in vLLM's form, and replies as JSON and as events."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from mockserve.protocol.bodies import Choice, Ending, Event, Items, Piece, RequestObject, Usage
from mockserve.protocol.errors import ApiError, anthropic_error
from mockserve.protocol.sampling import refuse_unavailable_tools

# Bodies of POST /v1/messages and POST /v1/messages/count_tokens. Names and order of fields are vLLM's.

FreeObject: TypeAlias = dict[str, Any] | None
TOOL_CHANGES = ("tool_addition", "tool_removal")


class AnthropicTool(RequestObject):
    """A tool that a model may call."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    defer_loading: bool | None = None


class AnthropicToolChangeReference(RequestObject):
    """The name of a tool that is added or removed."""

    type: Literal["tool_reference"]
    name: str


class AnthropicToolChangeDefinition(RequestObject):
    """A new tool."""

    type: Literal["tool_definition"]
    definition: AnthropicTool


_ToolChange = Annotated[AnthropicToolChangeReference | AnthropicToolChangeDefinition, Field(discriminator="type")]


class AnthropicContentBlock(RequestObject):
    """A block of content. Blocks of some types change the tools, and need one."""

    type: Literal[
        "text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking",
        "tool_addition", "tool_removal",
    ]  # fmt: skip
    text: str | None = None
    source: FreeObject = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: FreeObject = None
    content: str | Items[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    tool: _ToolChange | None = None

    @property
    def is_tool_change(self) -> bool:
        return self.type in TOOL_CHANGES

    @model_validator(mode="after")
    def _check_tool(self) -> Self:
        if self.is_tool_change and self.tool is None:
            raise ValueError(f"tool is required for {self.type} blocks")
        if self.type == "tool_removal" and isinstance(self.tool, AnthropicToolChangeDefinition):
            raise ValueError("tool_removal only accepts a tool_reference")
        return self


Content: TypeAlias = str | Items[AnthropicContentBlock]


def _without_changes(content: Content | None) -> Content | None:
    if not isinstance(content, str):
        kind = next((each.type for each in content or () if each.is_tool_change), None)
        if kind is not None:
            raise ValueError(f'{kind} blocks are only allowed in messages with role "system"')
    return content


class AnthropicMessage(RequestObject):
    """A message, which may change the tools only with the role `system`."""

    role: Literal["user", "assistant", "system"]
    content: Content

    @model_validator(mode="after")
    def _check_changes(self) -> Self:
        if self.role != "system":
            _without_changes(self.content)
        return self


class AnthropicToolChoice(RequestObject):
    """Which tool an answer must or may call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.type == "tool" and not self.name:
            raise ValueError("tool_choice.name is required when type is 'tool'")
        return self


class AnthropicJsonOutputFormat(RequestObject):
    """The JSON schema of an answer."""

    json_schema: FreeObject = Field(None, alias="schema")
    type: Literal["json_schema"] = "json_schema"


class AnthropicOutputConfig(RequestObject):
    """The effort of an answer, and its format."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicJsonOutputFormat | None = None


_Display: TypeAlias = Literal["summarized", "omitted", "updates"] | None


class AnthropicThinkingConfigEnabled(RequestObject):
    """Thinking of at most some tokens."""

    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024)
    display: _Display = None


class AnthropicThinkingConfigDisabled(RequestObject):
    """No thinking."""

    type: Literal["disabled"]


class AnthropicThinkingConfigAdaptive(RequestObject):
    """As much thinking as the model chooses."""

    type: Literal["adaptive"]
    display: _Display = None


_Thinking = Annotated[
    AnthropicThinkingConfigEnabled | AnthropicThinkingConfigDisabled | AnthropicThinkingConfigAdaptive,
    Field(discriminator="type"),
]


def _named(model: str) -> str:
    if not model:
        raise ValueError("Model is required")
    return model


def _positive(number: int) -> int:
    if number <= 0:
        raise ValueError("max_tokens must be positive")
    return number


_Model = Annotated[str, AfterValidator(_named)]
_System = Annotated[Content | None, AfterValidator(_without_changes)]


class AnthropicCountTokensRequest(RequestObject):
    """A conversation. Fields about the answer do not affect the count and are not read."""

    model: _Model
    messages: Items[AnthropicMessage]
    output_config: AnthropicOutputConfig | None = None
    system: _System = None
    thinking: _Thinking | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: Items[AnthropicTool] | None = None
    chat_template_kwargs: FreeObject = None


class AnthropicMessagesRequest(RequestObject):
    """A conversation, and how it is to be answered."""

    model: _Model
    messages: Items[AnthropicMessage]
    max_tokens: Annotated[int, AfterValidator(_positive)]
    metadata: FreeObject = None
    output_config: AnthropicOutputConfig | None = None
    thinking: _Thinking | None = None
    stop_sequences: Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool | None = False
    system: _System = None
    temperature: float | None = None
    tool_choice: AnthropicToolChoice | None = None
    tools: Items[AnthropicTool] | None = None
    top_k: int | None = None
    top_p: float | None = None
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = Field(None, json_schema_extra={"deprecated": True})
    cache_salt: str | None = Field(None, min_length=1, max_length=1024)
    watermarking: bool | None = None
    kv_transfer_params: FreeObject = None
    ec_transfer_params: FreeObject = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    chat_template_kwargs: FreeObject = None

    @model_validator(mode="after")
    def _check_budget(self) -> Self:
        if (self.kv_transfer_params or {}).get("do_remote_decode"):
            return self
        if isinstance(self.thinking, AnthropicThinkingConfigEnabled) and self.thinking.budget_tokens >= self.max_tokens:
            raise ValueError("thinking.budget_tokens must be less than max_tokens")
        return self


# The body of POST /v1/messages, and its turns in vLLM's form for chat templates.

Conversation: TypeAlias = AnthropicMessagesRequest | AnthropicCountTokensRequest

BILLING_HEADER = "x-anthropic-billing-header"
"""Beginning of a text that differs between requests and would prevent prefix caching."""


def chat_messages(body: Conversation) -> list[dict[str, Any]]:
    """The messages of a body, the system prompt first."""
    system = _system_text(body.system)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in body.messages:
        messages += _chat_messages(message)
    return messages


def _chat_messages(message: AnthropicMessage) -> list[dict[str, Any]]:
    role, content = message.role, message.content
    if role == "system":
        text = _system_text(content)
        return [{"role": role, "content": text}] if text else []
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    turn = _Turn(role)
    for block in content:
        turn.add(block)
    return turn.messages()


class _Turn:
    """One message with blocks. Tool results become separate messages before it."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._before: list[dict[str, Any]] = []
        self._parts: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._reasoning: list[str] = []

    def add(self, block: AnthropicContentBlock) -> None:
        kind = block.type
        if kind == "text" and block.text:
            self._parts.append({"type": "text", "text": block.text})
        elif kind == "image" and block.source:
            self._parts.append(_picture(block.source))
        elif kind == "thinking" and block.thinking is not None:
            self._reasoning.append(block.thinking)
        elif kind == "tool_use":
            self._calls.append(_call(block))
        elif kind == "tool_result" and self._role == "user":
            self._before += _results(block)
        elif kind == "tool_result":
            self._parts.append({"type": "text", "text": f"Tool result: {block.content or ''}"})

    def messages(self) -> list[dict[str, Any]]:
        message: dict[str, Any] = {"role": self._role}
        if self._reasoning:
            message["reasoning"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        if len(self._parts) == 1 and self._parts[0]["type"] == "text":
            message["content"] = self._parts[0]["text"]
        elif self._parts:
            message["content"] = self._parts
        is_empty = self._role == "user" and "content" not in message
        return self._before if is_empty else [*self._before, message]


def _system_text(content: Content | None) -> str:
    texts = [content] if isinstance(content, str) else [each.text for each in content or ()]
    return "".join(each for each in texts if each and not each.startswith(BILLING_HEADER))


def _picture(source: Mapping[str, Any]) -> dict[str, Any]:
    url = source.get("url", "")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: AnthropicContentBlock) -> dict[str, Any]:
    function = {"name": block.name or "", "arguments": json.dumps(block.input or {})}
    return {"id": block.id or "call_0", "type": "function", "function": function}


def _results(block: AnthropicContentBlock) -> list[dict[str, Any]]:
    """Return the messages of a tool result: its text, then its pictures as a message of the user."""
    content = block.content or ""
    items: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = [each.get("text", "") for each in items if each.get("type") == "text"]
    for number, each in enumerate(texts):
        if not isinstance(each, str):  # in the words of the language that vLLM is written in
            raise ApiError(f"sequence item {number}: expected str instance, {type(each).__name__} found")
    found: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": "\n".join(texts)}
    ]
    pictures = [_picture(each.get("source", {})) for each in items if each.get("type") == "image"]
    return [*found, {"role": "user", "content": pictures}] if pictures else found


def final_tools(body: Conversation) -> list[AnthropicTool]:
    """Return the tools of a body after all changes. Raises ApiError for a change of an unknown tool."""
    tools = {each.name: each for each in body.tools or ()}
    removed: set[str] = set()
    for block in _changes(body):
        change = block.tool
        assert change is not None
        if isinstance(change, AnthropicToolChangeDefinition):
            name = change.definition.name
            tools[name] = change.definition
        else:
            name = change.name
            if name not in tools:
                raise ApiError(f"{block.type} references tool {name!r}, which is not declared in tools")
            if block.type == "tool_addition":
                tools[name] = tools[name].model_copy(update={"defer_loading": None})
        if block.type == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in tools.items() if name not in removed]


def _changes(body: Conversation) -> Iterator[AnthropicContentBlock]:
    for message in body.messages:
        if not isinstance(message.content, str):
            yield from (each for each in message.content if each.type in TOOL_CHANGES)


SHARED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "watermarking",
    "cache_salt",
    "kv_transfer_params",
    "ec_transfer_params",
    "vllm_xargs",
    "chat_template_kwargs",
)


def chat_body(body: Conversation, can_call_tools: bool) -> dict[str, Any]:
    """Return the equivalent chat request. Raises ApiError for a tool choice without tools."""
    requested: dict[str, Any] = {"model": body.model, "messages": chat_messages(body)}
    shared = {name: getattr(body, name, None) for name in SHARED_FIELDS}
    requested |= {name: value for name, value in shared.items() if value is not None}
    if isinstance(body, AnthropicMessagesRequest):
        requested["max_completion_tokens"] = body.max_tokens
        if body.stop_sequences:
            requested["stop"] = body.stop_sequences
        if body.stream:
            options = {"include_usage": True, "continuous_usage_stats": True}
            requested |= {"stream": True, "stream_options": options}
    return requested | _output(body) | _tools(body, can_call_tools)


def _output(body: Conversation) -> dict[str, Any]:
    """Return the fields for the form of the answer and for reasoning."""
    requested: dict[str, Any] = {}
    config = body.output_config
    if config is not None and config.format is not None and config.format.json_schema:
        form = {"name": "json_schema", "schema": config.format.json_schema}
        requested["response_format"] = {"type": "json_schema", "json_schema": form}
    if config is not None and config.effort is not None:
        requested["reasoning_effort"] = config.effort
    if isinstance(body.thinking, AnthropicThinkingConfigEnabled):
        requested["thinking_token_budget"] = body.thinking.budget_tokens
    elif body.thinking is not None and body.thinking.type == "disabled":
        requested["reasoning_effort"] = "none"
    return requested


def _tools(body: Conversation, can_call_tools: bool) -> dict[str, Any]:
    choice = body.tool_choice
    kind = None if choice is None else choice.type
    tools, chosen = final_tools(body), _chat_choice(choice)
    if not tools:
        if choice is not None and kind != "none":
            refuse_unavailable_tools({"tools": [choice], "tool_choice": chosen}, can_call_tools)
        # A choice that is null lets the parser of calls read the answer, even if there are no tools.
        return {} if kind == "none" else {"tool_choice": None}
    if choice is not None and kind == "tool" and choice.name not in [each.name for each in tools]:
        raise ApiError(f"The tool with name {choice.name!r} is not found in the tools list.")
    requested: dict[str, Any] = {"tools": [_function(each) for each in tools], "tool_choice": chosen}
    if choice is not None and choice.disable_parallel_tool_use:
        requested["parallel_tool_calls"] = False
    return requested


def _chat_choice(choice: AnthropicToolChoice | None) -> Any:
    """Return a choice of tools as chat completions have it."""
    if choice is None:
        return "auto"
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def _function(tool: AnthropicTool) -> dict[str, Any]:
    schema = tool.input_schema
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    further = tool.model_dump(include={"description", "strict", "defer_loading"}, exclude_none=True)
    return {"type": "function", "function": {"name": tool.name, "parameters": parameters, **further}}


# Replies of Anthropic's Messages API, whole and as events, without null fields.

NewSignature = Callable[[], str]


@dataclass(frozen=True, slots=True)
class AnthropicReply:
    """Parts of a reply that exist before its first token. `new_signature` draws the signature of a thinking block."""

    id: str
    model: str
    new_signature: NewSignature


def message(reply: AnthropicReply, choice: Choice, usage: Usage) -> dict[str, Any]:
    """A whole reply."""
    generated = choice.content
    content: list[dict[str, Any]] = []
    if generated["reasoning"]:
        content.append({"type": "thinking", "thinking": generated["reasoning"], "signature": reply.new_signature()})
    if generated["content"]:
        content.append({"type": "text", "text": generated["content"]})
    calls = generated.get("tool_calls", ())
    content += [
        {
            "type": "tool_use",
            "id": each["id"],
            "name": each["function"]["name"],
            "input": _parsed(each["function"]["arguments"]),
        }
        for each in calls
    ]
    reason, sequence = _stop_reason(choice.ending, bool(calls), bool(calls))
    body = {**_head(reply), "content": content or [{"type": "text", "text": ""}], "model": reply.model}
    body |= {"stop_reason": reason, "stop_sequence": sequence}
    body |= {"usage": _usage(usage), "kv_transfer_params": choice.kv_transfer_params}
    return {name: value for name, value in body.items() if value is not None}


class AnthropicEvents:
    """Encodes a reply as Anthropic's events. Text after a tool call is held back until the call's block has ended."""

    def __init__(self, reply: AnthropicReply) -> None:
        self._reply = reply
        self._index = 0
        self._open: str | None = None
        self._call = -1
        self._arguments = ""
        self._pending_text = ""

    @property
    def starts_before_first_token(self) -> bool:
        return False

    @property
    def aborts_stream_when_refused(self) -> bool:
        return False

    def opening(self, usage: Usage) -> list[Event]:
        body = {**_head(self._reply), "content": [], "model": self._reply.model}
        body |= {"stop_reason": None, "stop_sequence": None, "usage": _usage(usage)}
        return [{"type": "message_start", "message": body}]

    def generated(self, piece: Piece) -> list[Event]:
        events: list[Event] = []
        delta = piece.delta
        if delta.get("reasoning"):
            events += self._in_block("thinking", "thinking_delta", "thinking", delta["reasoning"])
        if delta.get("content"):
            if self._open == "tool_use":
                self._pending_text += delta["content"]
            else:
                events += self._in_block("text", "text_delta", "text", delta["content"])
        for call in delta.get("tool_calls") or ():
            events += self._tool_call(call)
        return events

    def ended(self, ending: Ending, usage: Usage, _metrics: Mapping[str, Any] | None) -> list[Event]:
        uses_tool = self._call >= 0
        reason, sequence = _stop_reason(ending, uses_tool, uses_tool and _is_json(self._arguments))
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            *self._end_block(),
            {"type": "message_delta", "delta": delta, "usage": _usage(usage)},
            {"type": "message_stop"},
        ]

    def failed(self, error: ApiError) -> list[Event]:
        return [*self._end_block(), {**anthropic_error(error).body()}]

    def _in_block(self, block: str, kind: str, key: str, text: str) -> list[Event]:
        opened = [] if self._open == block else [*self._end_block(), self._begin({"type": block, key: ""})]
        return [*opened, self._delta({"type": kind, key: text})]

    def _tool_call(self, call: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        function = call["function"]
        if call.get("id") is not None:
            events += self._end_block()
            self._call, self._arguments = call["index"], ""
            events.append(self._begin({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}}))
        arguments = function.get("arguments")
        if arguments:
            self._arguments += arguments
            events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def _begin(self, block: dict[str, Any]) -> Event:
        self._open = block["type"]
        return {"type": "content_block_start", "content_block": block, "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "delta": delta, "index": self._index}

    def _end_block(self) -> list[Event]:
        """End the open block, and write a whole block for text that was held back."""
        events: list[Event] = []
        if self._open is not None:
            if self._open == "thinking":
                events.append(self._delta({"type": "signature_delta", "signature": self._reply.new_signature()}))
            events.append({"type": "content_block_stop", "index": self._index})
            self._open = None
            self._index += 1
        if self._pending_text:
            text, self._pending_text = self._pending_text, ""
            events += [*self._in_block("text", "text_delta", "text", text), *self._end_block()]
        return events


def _head(reply: AnthropicReply) -> dict[str, Any]:
    return {"id": reply.id, "type": "message", "role": "assistant"}


def _usage(usage: Usage) -> dict[str, Any]:
    """Return Anthropic's counts: input tokens exclude tokens of the cache."""
    found: dict[str, Any] = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
    details = usage.prompt_details
    if details is not None:
        created, read = details["created_cache_tokens"] or 0, details["cached_tokens"]
        found["input_tokens"] = max(0, usage.prompt_tokens - created - read)
        found |= {"cache_creation_input_tokens": created, "cache_read_input_tokens": read}
    return found


def _stop_reason(ending: Ending, uses_tool: bool, is_complete: bool) -> tuple[str | None, str | None]:
    """Return the stop reason and the stop string. A call that a stop string cut short must not be executed."""
    reason = ending.finish_reason
    if reason == "length":
        return "max_tokens", None
    if reason not in ("stop", "tool_calls"):
        return None, None
    if is_complete:
        return "tool_use", None
    if isinstance(ending.stop_reason, str):
        return "stop_sequence", ending.stop_reason
    return ("tool_use" if reason == "tool_calls" or uses_tool else "end_turn"), None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _parsed(arguments: str) -> Any:
    """Parse arguments. Raises JSONDecodeError for the arguments of a call that was cut short."""
    return json.loads(arguments) if arguments else {}
