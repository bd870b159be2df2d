"""The Responses API: bodies, tools and input items of requests, output items, and a response as object and events."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, cast

from pydantic import AfterValidator, Field, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, SchemaValidator, core_schema

from mockserve.protocol.bodies import (
    Ending,
    Entries,
    Event,
    Items,
    OpenObject,
    Piece,
    Usage,
    bounded,
    read_as,
    unreadable_as,
    with_numbers,
    within,
)
from mockserve.protocol.chat_messages import Message
from mockserve.protocol.completions import Effort, ExtraArguments, FreeObject, Ids, Int64, MediaArguments, Salt, Stop
from mockserve.protocol.errors import ApiError, bad_value, unhandled_error
from mockserve.protocol.json_text import EncodedItems, JsonArray, JsonBlocks, json_array
from mockserve.protocol.sampling import (
    SamplingParams,
    StructuredOutputsParams,
    refuse_bad_salt,
    refuse_media_arguments,
)

# Tools of a response, and the equivalent tools of a chat request.

CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
NAMESPACE_SEPARATOR = "__"
FUNCTION_FIELDS = ("name", "description", "parameters", "strict", "defer_loading")

_PARTIAL_INPUT = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"((?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{{4}}))*)')


@dataclass(frozen=True, slots=True)
class ToolNames:
    """Names of the functions of a chat that are custom tools, and of those in a namespace (with another name there)."""

    custom: frozenset[str] = frozenset()
    namespaced: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, Any]]) -> "ToolNames":
        """The names of checked tools."""
        custom = frozenset(each["name"] for each in tools if each["type"] == "custom")
        namespaced = {
            flat_name(each["name"], inner["name"]): (each["name"], inner["name"])
            for each in tools
            if each["type"] == "namespace"
            for inner in each["tools"]
            if inner.get("type") == "function"
        }
        return cls(custom, namespaced)

    def of_call(self, name: str) -> tuple[str | None, str]:
        """The namespace and the name of a called function."""
        return self.namespaced.get(name, (None, name))


def flat_name(namespace: str, name: str) -> str:
    """The name by which a model calls a function of a namespace."""
    return f"{namespace}{NAMESPACE_SEPARATOR}{name}"


def function_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The checked tools that a model can call, as a chat request has them."""
    return [
        {"type": "function", "function": {name: each[name] for name in FUNCTION_FIELDS if each.get(name) is not None}}
        for each in _functions(tools)
    ]


def _functions(tools: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for tool in tools:
        if tool["type"] == "function":
            yield tool
        elif tool["type"] == "custom":
            yield {"name": tool["name"], "description": tool.get("description"), "parameters": CUSTOM_PARAMETERS}
        elif tool["type"] == "namespace":
            for inner in tool["tools"]:
                if inner.get("type") == "function":
                    yield {**inner, "name": flat_name(tool["name"], inner["name"])}


def custom_input(arguments: str) -> str:
    """Return the input text of a custom tool; arguments of another form are the text themselves."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    text = found.get(CUSTOM_INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


def partial_custom_input(arguments: str) -> str:
    """Return the input of a custom tool in incomplete arguments, without an incomplete character at the end."""
    begun = _PARTIAL_INPUT.match(arguments)
    if begun is None:
        return ""
    text: str = json.loads(f'"{begun[1]}"', strict=False)
    return text[:-1] if text and "\ud800" <= text[-1] <= "\udbff" else text


def arguments_of(text: str) -> str:
    """Return the arguments for the input of a custom tool."""
    return json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)


# Output items of a response: messages, reasoning and calls, in vLLM's order of keys.

OutputItem = dict[str, Any]
NewId = Callable[[], str]

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"


def text_part(text: str, logprobs: Sequence[Mapping[str, Any]] | JsonBlocks | None) -> dict[str, Any]:
    """Return the text part of a message."""
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def reasoning_part(text: str) -> dict[str, Any]:
    """Return the text part of reasoning."""
    return {"text": text, "type": "reasoning_text"}


def message_item(item_id: str, parts: Sequence[Mapping[str, Any]], status: str) -> OutputItem:
    return {
        "id": item_id,
        "content": list(parts),
        "role": "assistant",
        "status": status,
        "type": "message",
        "phase": None,
    }


def reasoning_item(item_id: str, parts: Sequence[Mapping[str, Any]] | None, status: str | None) -> OutputItem:
    return {
        "id": item_id,
        "summary": [],
        "type": "reasoning",
        "content": parts,
        "encrypted_content": None,
        "status": status,
    }


def call_item(
    item_id: str, call_id: str, name: str, arguments: str, status: str, namespace: str | None = None
) -> OutputItem:
    return {
        "arguments": arguments,
        "call_id": call_id,
        "name": name,
        "type": "function_call",
        "id": item_id,
        "async": None,
        "caller": None,
        "namespace": namespace,
        "status": status,
    }


def custom_call_item(item_id: str, call_id: str, name: str, text: str) -> OutputItem:
    return {
        "call_id": call_id,
        "input": text,
        "name": name,
        "type": "custom_tool_call",
        "id": item_id,
        "async": None,
        "caller": None,
        "namespace": None,
    }


def output_items(
    message: Mapping[str, Any],
    logprobs: Mapping[str, Any] | None,
    is_cut: bool,
    has_parser: bool,
    new_id: NewId,
    names: ToolNames,
) -> list[OutputItem]:
    """Return the items of a whole response from the equivalent chat message. Only the last item can be incomplete.

    Without a parser there is a message item even if it is empty.
    """
    items: list[OutputItem] = []
    last_status = INCOMPLETE if is_cut else COMPLETED
    calls, content = message.get("tool_calls", ()), message["content"]
    if message["reasoning"]:
        items.append(reasoning_item(f"rs_{new_id()}", [reasoning_part(message["reasoning"])], None))
    if content or not has_parser:
        parts = [text_part(content, None if logprobs is None else full_logprobs(logprobs))] if content else []
        items.append(message_item(f"msg_{new_id()}", parts, COMPLETED if calls else last_status))
    for number, call in enumerate(calls):
        status = last_status if number == len(calls) - 1 else COMPLETED
        items.append(_called(call, status, new_id, names))
    return items


def _called(call: Mapping[str, Any], status: str, new_id: NewId, names: ToolNames) -> OutputItem:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    if name in names.custom:
        return custom_call_item(f"ctc_{new_id()}", call["id"], name, custom_input(arguments))
    namespace, local_name = names.of_call(name)
    return call_item(f"fc_{new_id()}", call["id"], local_name, arguments, status, namespace)


def full_logprobs(logprobs: Mapping[str, Any]) -> list[dict[str, Any]] | JsonArray:
    """Return log-probabilities of a chat choice in the format of finished items."""
    content = logprobs["content"]
    if isinstance(content, JsonArray):
        return json_array(lambda: map(_full_logprob, content.items()))
    return [_full_logprob(each) for each in content]


def _logprob_tokens(logprobs: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    content = () if logprobs is None else logprobs["content"]
    return content.items() if isinstance(content, JsonArray) else content


def _full_logprob(token: Mapping[str, Any]) -> dict[str, Any]:
    return {**_scored(token), "top_logprobs": [_scored(top) for top in token["top_logprobs"]]}


def _scored(token: Mapping[str, Any], has_bytes: bool = True) -> dict[str, Any]:
    name, logprob = token["token"], token["logprob"]
    # The bytes are those of the name, also of a token that is named by its id.
    shown = {"bytes": list(name.encode("utf-8", "replace"))} if has_bytes else {}
    return {"token": name, **shown, "logprob": logprob}


# Forms of items, tools, tool choices and formats from `item_forms.json`, and the conversion of items to chat messages.

FILE = Path(__file__).with_name("item_forms.json")
_PLAIN: Mapping[str, CoreSchema] = {
    "str": core_schema.str_schema(),
    "int": core_schema.int_schema(),
    "float": core_schema.float_schema(),
    "bool": core_schema.bool_schema(),
    "any": core_schema.any_schema(),
}


def _sequence(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, str):
        message = "'str' instances are not allowed as a Sequence value"
        raise PydanticCustomError("sequence_str", message, {"type_name": "str"})
    if not isinstance(value, list):
        raise PydanticKnownError("is_instance_of", {"class": "Sequence"})
    return validate(value)


class ItemForms:
    """All forms of objects by name, and the forms of each union in the order in which vLLM tries them."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table["forms"]
        self._unions = {union: forms for union, forms in table.items() if union != "forms"}
        self._validators: dict[str, SchemaValidator] = {}
        self._by_type: dict[tuple[str, str], list[str]] = {}
        for union, forms in self._unions.items():
            for name in _flat(forms):
                form = self._table[name[1:]]
                kinds = _literals(form["fields"].get("type"))
                for kind in [*kinds, *([""] if "type" not in form["required"] else [])]:
                    self._by_type.setdefault((union, kind), []).append(name)

    def check_item(self, value: Any) -> None:
        """Raise ValidationError with the errors for every form if a value is no item. The forms of its type come
        first."""
        kind = value.get("type", "") if isinstance(value, dict) else None
        likely = self._by_type.get(("items", kind)) if isinstance(kind, str) else None
        if likely is not None and self._fits(f"type {kind}", likely, value):
            return
        try:
            self._validator("items", self._unions["items"]).validate_python(value, from_attributes=True)
        except ValidationError as error:
            refused = bounded(error)
        else:
            return
        raise refused

    def schema(self, union: str) -> CoreSchema:
        """Return what pydantic makes a validator of a union of."""
        return self._schema(["union", *self._unions[union]])

    def shown(self, union: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a checked value with all fields of its form, as a response repeats it."""
        form = self._table[self._by_type[union, value["type"]][0][1:]]
        return {name: value.get(name) for name in form["fields"]} | dict(value)

    def fits(self, name: str, value: Any) -> bool:
        """Whether a value has the form of this name."""
        return self._fits(name, [f"#{name}"], value)

    def part_errors(self, value: Any, index: int) -> ValidationError | None:
        """Return the errors of a part of an answer."""
        try:
            parts = ["#ResponseOutputTextParam", "#ResponseOutputRefusalParam"]
            self._validator("parts", parts).validate_python(value, from_attributes=True)
        except ValidationError as error:
            return within(error, index)
        return None

    def _fits(self, name: str, forms: list[Any], value: Any) -> bool:
        return self._validator(name, forms).isinstance_python(value, from_attributes=True)

    def _validator(self, name: str, forms: list[Any]) -> SchemaValidator:
        """Return what validates one of `forms`; `name` is that of all of them together."""
        if name not in self._validators:
            self._validators[name] = SchemaValidator(self._schema(forms[0] if len(forms) == 1 else ["union", *forms]))
        return self._validators[name]

    def _schema(self, written: Any) -> CoreSchema:
        used: dict[str, CoreSchema] = {}
        schema = self._type(written, used)
        return core_schema.definitions_schema(schema, list(used.values()))

    def _type(self, written: Any, used: dict[str, CoreSchema]) -> CoreSchema:
        if isinstance(written, str):
            return self._reference(written[1:], used) if written.startswith("#") else _PLAIN[written]
        kind, *inner = written
        if kind == "literal":
            return core_schema.literal_schema(inner)
        if kind == "union":
            choices: list[Any] = [self._choice(each, used) for each in inner]
            return core_schema.union_schema(choices, mode="left_to_right")
        of = self._type(inner[0], used)
        if kind == "sequence":
            return core_schema.no_info_wrap_validator_function(_sequence, core_schema.list_schema(of))
        if kind == "dict":
            return core_schema.dict_schema(core_schema.str_schema(), of)
        makers = {"null": core_schema.nullable_schema, "list": core_schema.list_schema}
        return makers.get(kind, core_schema.generator_schema)(of)  # type: ignore[operator, no-any-return]

    def _choice(self, written: Any, used: dict[str, CoreSchema]) -> Any:
        found = self._type(written, used)
        return (found, self._table[written[1:]]["name"]) if isinstance(written, str) and written[0] == "#" else found

    def _reference(self, name: str, used: dict[str, CoreSchema]) -> CoreSchema:
        if name not in used:
            used[name] = core_schema.any_schema()  # stands for a form that refers to itself
            form = self._table[name]
            types = {field: self._type(each, used) for field, each in form["fields"].items()}
            needed = frozenset(form["required"])
            if form["is_model"]:
                fields = {
                    field: core_schema.model_field(
                        each if field in needed else core_schema.with_default_schema(each, default=None)
                    )
                    for field, each in types.items()
                }
                used[name] = core_schema.model_fields_schema(fields, extra_behavior="allow", ref=name)
            else:
                members = {
                    field: core_schema.typed_dict_field(each, required=field in needed) for field, each in types.items()
                }
                used[name] = core_schema.typed_dict_schema(members, extra_behavior="ignore", ref=name)
        return core_schema.definition_reference_schema(name)


@lru_cache(maxsize=1)
def item_forms() -> ItemForms:
    """Return vLLM's schemas."""
    return ItemForms(json.loads(FILE.read_text(encoding="utf-8")))


def _flat(items: list[Any]) -> list[str]:
    """Return the names of forms, including nested unions."""
    names = [name for each in items for name in ([each] if isinstance(each, str) else _flat(each[1:]))]
    return [name for name in names if name.startswith("#")]


def _literals(written: Any) -> list[str]:
    """The values of a type that is a literal or null."""
    if isinstance(written, list) and written[0] == "null":
        return _literals(written[1])
    return list(written[1:]) if isinstance(written, list) and written[0] == "literal" else []


NEW_ID = "new"


def _check_item(value: Any) -> Any:
    if isinstance(value, dict):
        kind, tried = value.get("type"), value
        if kind == "function_call" and is_call(value):
            return value
        if kind == "reasoning":
            tried = {"id": NEW_ID, **value}
            if is_reasoning(tried):
                return value
        if kind == "message" and value.get("role") == "assistant" and is_answer(value):
            return value
        item_forms().check_item(_with_detail(tried))
    else:
        item_forms().check_item(value)
    return value


class _OneOf:
    """A value that has a form of a union."""

    union: ClassVar[str]

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return item_forms().schema(cls.union)


class Tool(_OneOf):
    """A tool that the answer may use."""

    union = "tools"


class ToolChoice(_OneOf):
    """Which tool the answer uses."""

    union = "choices"


class Format(_OneOf):
    """The requested format of an answer."""

    union = "formats"


Item = Annotated[Any, AfterValidator(_check_item)]
"""An item of a response's input, with all its fields."""


def is_call(item: Mapping[str, Any]) -> bool:
    """Whether the type of an item is a function call in vLLM."""
    return item_forms().fits("ResponseFunctionToolCall", item)


def is_reasoning(item: Mapping[str, Any]) -> bool:
    """Whether the type of an item is reasoning in vLLM."""
    return item_forms().fits("ResponseReasoningItem", {"id": NEW_ID, **item})


def is_answer(item: Mapping[str, Any]) -> bool:
    """Whether vLLM treats an assistant's message as an earlier answer, to which it adds missing fields."""
    if not isinstance(item.get("content"), list):
        return False
    answered = {"id": NEW_ID, "status": "completed", **item, "content": _annotated(item["content"])}
    return item_forms().fits("ResponseOutputMessage", answered)


def answer_errors(content: Any) -> ValidationError | None:
    """Return the errors of the first part of an answer that is neither a text nor a refusal."""
    found = (item_forms().part_errors(part, index) for index, part in enumerate(content))
    return next((each for each in found if each is not None), None)


def _annotated(content: list[Any]) -> list[Any]:
    return [
        {"annotations": [], **part} if isinstance(part, dict) and part.get("type") == "output_text" else part
        for part in content
    ]


def _with_detail(value: Any) -> Any:
    """Return an item whose images have a `detail`."""
    content = value.get("content") if isinstance(value, Mapping) else None
    if not isinstance(content, list):
        return value
    detailed = [
        {"detail": "auto", **part} if isinstance(part, dict) and part.get("type") == "input_image" else part
        for part in content
    ]
    return {**value, "content": detailed}


CALL_RESULTS = ("function_call_output", "custom_tool_call_output")
UNFINISHED = ("in_progress", "incomplete")
ANSWER_STATUSES = (*UNFINISHED, "completed")


_PLAIN_KEYS = ("role", "content")


def chat_messages(
    instructions: str | None,
    given: str | Sequence[Mapping[str, Any]],
    earlier: Sequence[Mapping[str, Any]],
    earlier_output: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the conversation: instructions, the messages of the continued response, its output, the input.

    Instructions do not carry over from response to response. Raises ApiError for an unsupported item.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    messages += [dict(each) for each in earlier if each.get("role") != "system"]
    messages += [
        {"role": "assistant", "content": part["text"]}
        for item in earlier_output
        if item["type"] == "message"
        for part in item["content"]
    ]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    added: list[dict[str, Any]] = []
    for item in given:
        kind = item.get("type")
        if kind == "custom_tool_call" or (kind == "function_call" and is_call(item)):
            _add_call(added, item)
        elif kind == "reasoning" and is_reasoning(item):
            _add_part(added, "reasoning", _reasoning(item))
        elif kind in CALL_RESULTS:
            content = _content(item.get("output"))
            added.append({"role": "tool", "content": content, "tool_call_id": item.get("call_id")})
        elif "role" not in item:
            raise bad_value(f"Unsupported input item type: {kind}", "input")
        elif item["role"] == "assistant" and (said := _answer_text(item)) is not None:
            _add_part(added, "content", said)
        elif item["role"] == "user" and tuple(item) == _PLAIN_KEYS and isinstance(item["content"], str):
            added.append(item)  # type: ignore[arg-type]  # one object for both forms: there may be hundreds of thousands
        else:
            content = {"content": _content(item["content"])} if "content" in item else {}
            added.append({"role": item["role"], **content})
    return [*messages, *added]


def continues_last_item(given: str | Sequence[Mapping[str, Any]]) -> bool:
    """Whether the input ends with an unfinished answer, which is to be continued."""
    if isinstance(given, str) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in UNFINISHED


def _answer_text(item: Mapping[str, Any]) -> str | None:
    """Return the text of an answer; None if it is passed to the template unchanged. Raises ApiError where vLLM
    fails."""
    content = item["content"]
    if item.get("type") == "message" and is_answer(item):
        if not content:
            raise unhandled_error("list index out of range")
        if content[0]["type"] == "refusal":
            raise unhandled_error("'ResponseOutputRefusal' object has no attribute 'text'")
    elif item.get("type") == "message" and isinstance(item.get("id"), str) and item.get("status") in ANSWER_STATUSES:
        if errors := answer_errors(content):
            raise unreadable_as("ValidatorIterator", errors)
        return None
    if isinstance(content, str):
        return content
    text = content[0].get("text") if content else None
    return None if text is None else str(text)


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    if item["type"] == "custom_tool_call":
        arguments = arguments_of(item.get("input") or "")
    else:
        arguments = item.get("arguments", "")
    name = item.get("name", "")
    if item.get("namespace") and item["type"] == "function_call":
        name = flat_name(item["namespace"], name)
    function = {"name": name, "arguments": arguments}
    call = {"id": item.get("call_id", ""), "type": "function", "function": function}
    last = _last_of_assistant(messages)
    if last is None:
        messages.append({"role": "assistant", "tool_calls": [call]})
    else:
        last.setdefault("tool_calls", []).append(call)


def _add_part(messages: list[dict[str, Any]], name: str, text: str) -> None:
    last = _last_of_assistant(messages)
    if last is None or last.get(name) is not None:
        messages.append({"role": "assistant", name: text})
    else:
        last[name] = text


def _last_of_assistant(messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    return messages[-1] if messages and messages[-1]["role"] == "assistant" else None


def _reasoning(item: Mapping[str, Any]) -> str:
    if item.get("encrypted_content"):
        raise bad_value("Encrypted content is not supported.", "input")
    parts = item.get("content") or item.get("summary") or [{"text": ""}]
    return str(parts[0].get("text", ""))


def _content(content: Any) -> Any:
    """Return content with the part types of chat."""
    if not isinstance(content, list):
        return content
    return [_part(each) if isinstance(each, Mapping) else each for each in content]


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url") or ""}}
    return dict(part)


# Bodies of POST /v1/responses, their fields in the order of vLLM's errors, and the equivalent chat requests.

LOGPROBS_INCLUDED = "message.output_text.logprobs"


class Reasoning(OpenObject):
    """How an answer is thought about."""

    context: Literal["auto", "current_turn", "all_turns"] | None = None
    effort: Effort = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    mode: str | Literal["standard", "pro"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseTextConfig(OpenObject):
    """The format of an answer."""

    format: Format | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class PromptCacheOptionsParam(OpenObject):
    """How a prompt is kept."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m"] = "30m"
    comparison_response_id: str | None = None
    prewarm: bool | None = None


_Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)] | None


class ResponsesRequest(OpenObject):
    """The body of POST /v1/responses. Names and order of fields are vLLM's."""

    background: bool | None = False
    include: Items[Literal[
        "code_interpreter_call.outputs", "computer_call_output.output.image_url", "file_search_call.results",
        "message.input_image.image_url", "message.output_text.logprobs", "reasoning.encrypted_content",
    ]] | None = None  # fmt: skip
    input: str | Items[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    logit_bias: Entries[float] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    store: bool | None = True
    stream: bool | None = False
    temperature: float | None = None
    text: ResponseTextConfig | None = None
    tool_choice: ToolChoice = cast(Any, "auto")
    tools: Items[Tool] = Field(default_factory=list)
    top_logprobs: int | None = 0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    presence_penalty: _Penalty = None
    frequency_penalty: _Penalty = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptionsParam | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    safety_identifier: str | None = None
    watermarking: bool | None = None
    request_id: str = Field(default_factory=str)
    session_id: str | None = None
    media_io_kwargs: MediaArguments = None
    mm_processor_kwargs: FreeObject = None
    priority: Int64 = 0
    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None
    cache_salt: Salt = None
    enable_response_messages: bool = False
    previous_input_messages: Items[Message | dict[str, Any]] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    repetition_penalty: float | None = None
    seed: Int64 | None = None
    stop: Stop = None
    stop_token_ids: Ids = None
    ignore_eos: bool = False
    vllm_xargs: ExtraArguments = None
    kv_transfer_params: FreeObject = None
    ec_transfer_params: FreeObject = None
    chat_template_kwargs: FreeObject = None


COPIED_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "vllm_xargs",
    "watermarking",
    "kv_transfer_params",
    "ec_transfer_params",
    "chat_template_kwargs",
    "include_reasoning",
    "parallel_tool_calls",
    "priority",
    "cache_salt",
    "structured_outputs",
)
"""Fields with an equal meaning in a chat request."""

NAMED_TOOLS = ("function", "custom")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseRequest:
    """A checked request. `body` is unchanged, except for a tool choice without tools and for texts of numbers."""

    body: Mapping[str, Any]
    model: str
    streams: bool
    in_background: bool
    stores: bool
    includes_logprobs: bool
    shows_messages: bool


def parse_response(body: Mapping[str, Any]) -> ResponseRequest:
    """Parse the body. Raises ApiError for a request that vLLM refuses before it looks up the model."""
    body = _checked_tools(body)
    _refuse_grammars(body.get("tools"))
    if body.get("prompt") is not None:
        raise bad_value("prompt template is not supported", "prompt")
    if body.get("background") and not body.get("store", True):
        raise bad_value("background can only be used when `store` is true", "background")
    refuse_bad_salt(body.get("cache_salt"))
    if isinstance(body.get("input"), dict):
        body = {**body, "input": list(body["input"])}  # vLLM makes a list of whatever can be iterated
    found = read_as(ResponsesRequest, body)
    refuse_media_arguments(dict(body))
    return ResponseRequest(
        body=with_numbers(body, found),
        model=found.model or "",
        streams=bool(found.stream),
        in_background=bool(found.background),
        stores=found.store is not False,
        includes_logprobs=LOGPROBS_INCLUDED in (body.get("include") or ()),
        shows_messages=found.enable_response_messages,
    )


def chat_body(api_request: ResponseRequest, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the equivalent chat request. Raises ApiError for contradictory constraints on the answer."""
    body = api_request.body
    requested: dict[str, Any] = {"model": api_request.model, "messages": messages, "add_special_tokens": True}
    requested |= {name: body[name] for name in COPIED_FIELDS if body.get(name) is not None}
    if requested.get("stop") == "":
        del requested["stop"]  # vLLM takes a stop string that is empty for none at all
    if body.get("max_output_tokens") is not None:
        requested["max_completion_tokens"] = body["max_output_tokens"]
    if api_request.includes_logprobs:
        requested |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    if api_request.streams:
        requested["stream"] = True
    if body.get("truncation", "disabled") != "disabled":
        requested["truncate_prompt_tokens"] = -1
    if continues_last_item(body["input"]):
        requested |= {"continue_final_message": True, "add_generation_prompt": False}
    effort = (body.get("reasoning") or {}).get("effort")
    if effort is not None:
        requested["reasoning_effort"] = effort
    return requested | _form(body) | _tools(body)


def _checked_tools(body: Mapping[str, Any]) -> Mapping[str, Any]:
    tools, choice = body.get("tools"), body.get("tool_choice", "auto")
    if isinstance(tools, int | float):
        raise ApiError(f"object of type '{type(tools).__name__}' has no len()")
    names_one = isinstance(choice, dict) and choice.get("type") in NAMED_TOOLS
    if not tools:
        if choice == "required":
            raise bad_value("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
        if names_one:
            raise _unknown_tool()
        return {**body, "tool_choice": "none"} if choice in ("auto", "none") else body
    if names_one and isinstance(tools, list | str | dict):
        name = choice.get("name")
        if not name:
            raise _unknown_tool()
        resolved = _resolved(name, tools if isinstance(tools, list) else [])
        return body if resolved == name else {**body, "tool_choice": {**choice, "name": resolved}}
    return body


def _refuse_grammars(tools: Any) -> None:
    for tool in tools if isinstance(tools, list) else ():
        form = tool.get("format") if isinstance(tool, dict) and tool.get("type") == "custom" else None
        if isinstance(form, dict) and form.get("type") == "grammar":
            message = "Custom tools with a grammar format are not supported; only free-form text custom tools are "
            raise bad_value(f"{message}accepted.", "tools")


def _resolved(name: Any, tools: list[Any]) -> Any:
    """Return the full name of the chosen tool, which may be in a namespace."""
    exact: set[str] = set()
    candidates: list[str] = []
    for tool in tools:
        found = tool if isinstance(tool, dict) else {}
        if found.get("type") == "namespace":
            inner, namespace = found.get("tools"), found.get("name")
            if not isinstance(inner, list) or not isinstance(namespace, str):
                return name
            names = [each.get("name") for each in inner if isinstance(each, dict)]
            flat = [(each, flat_name(namespace, each)) for each in names if isinstance(each, str)]
            exact |= {full for _, full in flat}
            candidates += [full for local, full in flat if local == name]
        elif isinstance(found.get("name"), str):
            exact.add(found["name"])
    if name in exact:
        return name
    if not candidates:
        raise _unknown_tool()
    if len(candidates) > 1:
        message = (
            f"Tool choice '{name}' is ambiguous: it is defined in more than one namespace ({', '.join(candidates)}). "
            "Select it by its full '<namespace>__<name>' name."
        )
        raise bad_value(message, "tool_choice")
    return candidates[0]


def _unknown_tool() -> ApiError:
    return bad_value("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")


def _form(body: Mapping[str, Any]) -> dict[str, Any]:
    requested = (body.get("text") or {}).get("format")
    if requested is None:
        return {}
    if body.get("structured_outputs") is not None:
        raise bad_value("Cannot specify both structured_outputs and text.format", "structured_outputs")
    if requested["type"] == "json_schema" and requested.get("schema") is not None:
        schema = {"name": requested.get("name") or "schema", "schema": requested["schema"]}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"response_format": {"type": "json_object"}} if requested["type"] == "json_object" else {}


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    functions = function_tools(body.get("tools") or ())
    choice = body.get("tool_choice", "auto")
    names_one = isinstance(choice, Mapping) and choice.get("type") in NAMED_TOOLS
    if not functions:
        if names_one or choice == "required":
            message = "tool_choice requires a function call, but tools contains no function tool the model can call."
            raise bad_value(message, "tool_choice")
        return {}
    if names_one:
        name = choice["name"]
        if not any(each["function"]["name"] == name for each in functions):
            raise ApiError(f"The tool with name '{name}' is not found in the tools list.")
        choice = {"type": "function", "function": {"name": name}}
    elif isinstance(choice, Mapping):
        # vLLM looks for calls in a stream then, but not in a whole answer.
        choice = "auto" if body.get("stream") else "none"
    return {"tools": functions, "tool_choice": choice}


# A response as an object in vLLM's order of keys, and as numbered events of its items.


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseObject:
    """Parts of a response that exist before its first token."""

    id: str
    created: int
    model: str
    api_request: ResponseRequest
    sampling: SamplingParams
    budget: int
    """Maximum number of output tokens."""
    kv_transfer_params: Mapping[str, Any] | None = None
    """Parameters with which a later server fetches the blocks of the response."""

    @property
    def tool_names(self) -> ToolNames:
        """Names of calls of the response's tools."""
        return ToolNames.of(self.api_request.body.get("tools") or ())

    def body(
        self,
        status: str,
        output: Sequence[OutputItem] = (),
        usage: Usage | None = None,
        metrics: Mapping[str, Any] | None = None,
        raw: tuple[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the whole object. `raw` are the model's input and output, if they are requested."""
        api_request = self.api_request.body
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": api_request.get("instructions"),
            "metadata": api_request.get("metadata"),
            "model": self.model,
            "object": "response",
            "output": list(output),
            **self._choices(),
            **self._settings(status),
            "usage": None if usage is None else response_usage(usage),
            "user": api_request.get("user"),
            **({} if metrics is None else {"metrics": metrics}),
            "presence_penalty": self.sampling.presence_penalty,
            "frequency_penalty": self.sampling.frequency_penalty,
            "kv_transfer_params": None if usage is None else self.kv_transfer_params,
            "ec_transfer_params": None,
            "input_messages": None if raw is None else raw[0],
            "output_messages": None if raw is None else raw[1],
        }

    def _choices(self) -> dict[str, Any]:
        """Return the choice of tools, and the tools themselves."""
        api_request, sampling = self.api_request.body, self.sampling
        parallel = api_request.get("parallel_tool_calls")
        choice = api_request.get("tool_choice", "auto")
        return {
            "parallel_tool_calls": True if parallel is None else parallel,
            "temperature": sampling.temperature,
            "tool_choice": item_forms().shown("choices", choice) if isinstance(choice, Mapping) else choice,
            "tools": [_shown_tool(each) for each in api_request.get("tools") or ()],
            "top_p": 1.0 if sampling.is_greedy else sampling.top_p,
        }

    def _settings(self, status: str) -> dict[str, Any]:
        api_request = self.api_request.body
        cache = api_request.get("prompt_cache_options")
        reasoning = api_request.get("reasoning")
        return {
            "background": self.api_request.in_background,
            "max_output_tokens": self.budget,
            "max_tool_calls": api_request.get("max_tool_calls"),
            "previous_response_id": api_request.get("previous_response_id"),
            "prompt": None,
            "prompt_cache_options": None
            if cache is None
            else {
                "mode": cache.get("mode", "implicit"),
                "ttl": cache.get("ttl", "30m"),
                "comparison_response_id": cache.get("comparison_response_id"),
            },
            "prompt_cache_key": api_request.get("prompt_cache_key"),
            "prompt_cache_retention": api_request.get("prompt_cache_retention"),
            "reasoning": None if reasoning is None else {**dict.fromkeys(Reasoning.model_fields), **reasoning},
            "safety_identifier": api_request.get("safety_identifier"),
            "service_tier": api_request.get("service_tier", "auto"),
            "status": status,
            "text": _echoed_text(api_request.get("text")),
            "top_logprobs": (api_request.get("top_logprobs") or 0) if self.api_request.includes_logprobs else None,
            "truncation": api_request.get("truncation") or "disabled",
        }


def response_usage(usage: Usage) -> dict[str, Any]:
    """Return the counts in the format of a response. Counts per turn apply only to tools that the server itself
    calls."""
    details = usage.prompt_details or {}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": details.get("cached_tokens") or 0,
            "cache_write_tokens": details.get("created_cache_tokens") or 0,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": usage.num_reasoning_tokens or 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def raw_message(text: str, token_ids: Sequence[int]) -> dict[str, Any]:
    """Return the model's text with its tokens."""
    return {"message": text, "tokens": list(token_ids), "type": "raw_message_tokens"}


def _echoed_text(text: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the text format with the defaults of its members; unknown members are kept unchanged."""
    if text is None:
        return None
    requested = text.get("format")
    shown = {} if requested is None else {"format": item_forms().shown("formats", requested)}
    return {"format": None, "verbosity": None, **text, **shown}


def _shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    shown = item_forms().shown("tools", tool)
    if tool["type"] == "namespace":
        shown["tools"] = [item_forms().shown("namespaced", each) for each in tool["tools"]]
    return shown


CALLS = ("call", "custom call")


@dataclass(slots=True)
class _OpenItem:
    """The output item that is open in a stream."""

    kind: str
    id: str
    text: str = ""
    name: str = ""
    call_id: str = ""
    namespace: str | None = None
    shown_input: str = ""
    """Part of a custom tool's input that has been sent."""
    logprobs: EncodedItems | None = None


@dataclass(slots=True)
class ResponseEvents:
    """Encodes a response as events. `raw` are the model's input and output, if they are requested."""

    response: ResponseObject
    new_id: NewId
    raw: tuple[Any, Any] | None = None
    output: list[OutputItem] = field(default_factory=list)
    final: dict[str, Any] | None = None
    """The response object of the last event."""
    _number: int = 0
    _open: _OpenItem | None = None
    _names: ToolNames | None = None

    @property
    def starts_before_first_token(self) -> bool:
        return True

    @property
    def aborts_stream_when_refused(self) -> bool:
        # vLLM's response streams have no event for an error of the engine.
        return True

    def opening(self, _usage: Usage) -> list[Event]:
        body = self.response.body(IN_PROGRESS)
        return [self._event("response.created", response=body), self._event("response.in_progress", response=body)]

    def generated(self, piece: Piece) -> list[Event]:
        events: list[Event] = []
        delta = piece.delta
        if delta.get("reasoning") is not None:
            events += self._reasoning(delta["reasoning"])
        if delta.get("content"):
            events += self._content(delta["content"], piece.logprobs)
        for call in delta.get("tool_calls") or ():
            events += self._call(call)
        return events

    def ended(self, ending: Ending, usage: Usage, metrics: Mapping[str, Any] | None) -> list[Event]:
        status = INCOMPLETE if ending.finish_reason == "length" else COMPLETED
        events = self._end_item(status)
        self.final = self.response.body(status, self.output, usage, metrics, self.raw)
        return [*events, self._event(f"response.{status}", response=self.final)]

    def failed(self, error: ApiError) -> list[Event]:
        self.final = self.response.body("failed", self.output)
        return [{"type": "error", **error.body()}]

    def _reasoning(self, text: str) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != "reasoning":
            events += self._begin(_OpenItem("reasoning", f"rs_{self.new_id()}"))
        return [*events, self._delta_event(text, "response.reasoning_text.delta", content_index=0)]

    def _content(self, text: str, logprobs: Mapping[str, Any] | None) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.kind != "message":
            events += self._begin(_OpenItem("message", f"msg_{self.new_id()}"))
        if logprobs is not None and self._open is not None:
            self._open.logprobs = self._open.logprobs or EncodedItems()
            self._open.logprobs.add(full_logprobs(logprobs))
        shown = [
            {**_scored(each, False), "top_logprobs": [_scored(top, False) for top in each["top_logprobs"]]}
            for each in _logprob_tokens(logprobs)
        ]
        return [*events, self._delta_event(text, "response.output_text.delta", content_index=0, logprobs=shown)]

    def _call(self, call: Mapping[str, Any]) -> list[Event]:
        events: list[Event] = []
        function = call["function"]
        if call.get("id") is not None:
            events += self._begin(self._new_call(function["name"], call["id"]))
        arguments, item = function.get("arguments"), self._open
        if arguments and item is not None and item.kind == "custom call":
            item.text += arguments
            events += self._custom_input(item, partial_custom_input(item.text))
        elif arguments:
            events.append(self._delta_event(arguments, "response.function_call_arguments.delta"))
        return events

    def _new_call(self, name: str, call_id: str) -> _OpenItem:
        names = self._names = self._names or self.response.tool_names
        if name in names.custom:
            return _OpenItem("custom call", f"ctc_{self.new_id()}", name=name, call_id=call_id)
        namespace, local_name = names.of_call(name)
        return _OpenItem("call", f"fc_{self.new_id()}", name=local_name, call_id=call_id, namespace=namespace)

    def _custom_input(self, item: _OpenItem, text: str) -> list[Event]:
        """Return the event with the new part of the input; the whole input if it does not continue the part that was
        sent."""
        shown, item.shown_input = item.shown_input, text
        if text == shown:
            return []
        delta = text.removeprefix(shown)
        where: dict[str, Any] = {"item_id": item.id, "output_index": len(self.output)}
        return [self._event("response.custom_tool_call_input.delta", delta=delta, **where)]

    def _begin(self, item: _OpenItem) -> list[Event]:
        events = self._end_item(COMPLETED)
        self._open = item
        events.append(self._item_event("response.output_item.added", _shown_item(item, IN_PROGRESS)))
        if item.kind not in CALLS:
            events.append(self._part_event("response.content_part.added", item, _content_part(item, EncodedItems())))
        return events

    def _delta_event(self, text: str, kind: str, **more: Any) -> Event:
        item = self._open
        assert item is not None
        item.text += text
        return self._event(kind, delta=text, item_id=item.id, output_index=len(self.output), **more)

    def _end_item(self, status: str) -> list[Event]:
        item = self._open
        if item is None:
            return []
        self._open = None
        events = self._end_text(item)
        if item.kind not in CALLS:
            events.append(self._part_event("response.content_part.done", item, _content_part(item, item.logprobs)))
        done = _shown_item(item, status)
        events.append(self._item_event("response.output_item.done", done))
        self.output.append(done)
        return events

    def _end_text(self, item: _OpenItem) -> list[Event]:
        where: dict[str, Any] = {"item_id": item.id, "output_index": len(self.output)}
        if item.kind == "call":
            done = self._event("response.function_call_arguments.done", arguments=item.text, **where)
            return [{**done, "name": item.name}]
        if item.kind == "custom call":
            text = custom_input(item.text)
            grown = self._custom_input(item, text)
            return [*grown, self._event("response.custom_tool_call_input.done", input=text, **where)]
        if item.kind == "reasoning":
            return [self._event("response.reasoning_text.done", content_index=0, text=item.text, **where)]
        return [self._event("response.output_text.done", content_index=0, logprobs=[], text=item.text, **where)]

    def _item_event(self, kind: str, item: OutputItem) -> Event:
        return self._event(kind, item=item, output_index=len(self.output))

    def _part_event(self, kind: str, item: _OpenItem, part: dict[str, Any]) -> Event:
        return self._event(kind, content_index=0, item_id=item.id, output_index=len(self.output), part=part)

    def _event(self, kind: str, **fields: Any) -> Event:
        """Return the next event, with its keys in alphabetical order."""
        event = {**fields, "sequence_number": self._number}
        self._number += 1
        return {**{name: event[name] for name in sorted(event)}, "type": kind}


def _content_part(item: _OpenItem, logprobs: EncodedItems | None) -> dict[str, Any]:
    if item.kind == "reasoning":
        return reasoning_part(item.text)
    return text_part(item.text, None if logprobs is None else logprobs.array())


def _shown_item(item: _OpenItem, status: str) -> OutputItem:
    """Return an item that begins, which has no parts, or one that has ended."""
    if item.kind == "call":
        return call_item(item.id, item.call_id, item.name, item.text, status, item.namespace)
    if item.kind == "custom call":
        return custom_call_item(item.id, item.call_id, item.name, custom_input(item.text))
    parts = [] if status == IN_PROGRESS else [_content_part(item, item.logprobs)]
    if item.kind == "reasoning":
        return reasoning_item(item.id, parts or None, status)
    return message_item(item.id, parts, status)
