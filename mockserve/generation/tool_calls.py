"""Calls of the functions in a request: their constraint and arguments, and their parsing from a model's text."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from random import Random
from typing import Any, TypeAlias

from mockserve.generation.answer import END, START, CutCalls, Delta, Kind, Segment
from mockserve.generation.structured_outputs.checks import is_small_schema
from mockserve.generation.structured_outputs.demand import Demand
from mockserve.generation.structured_outputs.kinds import JsonForm, constrained_text
from mockserve.options.content import ANY, ArgumentRanges, StructuredOutputsConfig
from mockserve.options.parsers import FORCED_AS_JSON, TOOL_CALL_PARSERS, call_parsers_with
from mockserve.protocol.errors import ApiError, bad_value, mark_late
from mockserve.protocol.forms import flag_or
from mockserve.protocol.json_text import compact_json

# Parses a model's text as vLLM's parsers do: reasoning, content and calls, complete, partial, or cut short.

CALL, CALL_END = "<tool_call>", "</tool_call>"

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"(?:arguments|parameters)"\s*:\s*')
_BRACKETS_OR_TEXT = re.compile(r'[{}\[\]]|"(?:[^"\\]|\\.)*"?')


def read_answer(text: str, has_reasoning: bool, has_calls: bool, is_whole: bool) -> list[Delta]:
    """Return the parts of a text in order. A longer text only adds parts; a mark of reasoning is a single token.

    All text is reasoning if the mark that ends reasoning is missing. A whole text has no calls if one of them is
    invalid JSON: then the calls are content.
    """
    found: list[Delta] = []
    if has_reasoning:
        thought, mark, text = text.partition(END)
        thought = thought.removeprefix(START)
        if thought:
            found.append(Delta(Kind.REASONING, thought))
        if not mark:
            return found
    if not has_calls or (is_whole and not _has_whole_calls(text)):
        return [*found, Delta(Kind.CONTENT, text)] if text else found
    return [*found, *_words_and_calls(text)]


def new_parts(before: list[Delta], after: list[Delta]) -> list[Delta]:
    """Return the parts of a longer text that are missing from a shorter one."""
    new = after[len(before) :]
    if before and len(after[len(before) - 1].text) > len(before[-1].text):
        last = after[len(before) - 1]
        new = [Delta(last.kind, last.text[len(before[-1].text) :], last.call), *new]
    return new


def _words_and_calls(text: str) -> Iterator[Delta]:
    call = 0
    while text:
        words, mark, text = text.partition(CALL)
        if not mark:
            words = without_beginning_of(CALL, words)
        if words and (call == 0 or words.strip()):
            yield Delta(Kind.CONTENT, words)
        if mark:
            inside, _, text = text.partition(CALL_END)
            yield from _call_deltas(inside, call)
            call += 1


def _call_deltas(inside: str, call: int) -> Iterator[Delta]:
    name = _NAME.match(inside)
    if name is None:
        return
    yield Delta(Kind.TOOL_NAME, str(json.loads(name[1])), call)
    rest = inside[name.end() :]
    opening = _ARGUMENTS.match(rest)
    arguments = "" if opening is None else _first_value(rest[opening.end() :])
    if arguments:
        yield Delta(Kind.TOOL_ARGUMENTS, arguments, call)


def _first_value(text: str) -> str:
    """Return the JSON object at the beginning of a text; the object may be incomplete."""
    depth = 0
    for match in _BRACKETS_OR_TEXT.finditer(text):
        if match[0] in "{[":
            depth += 1
        elif match[0] in "}]":
            depth -= 1
            if depth <= 0:
                return text[: match.end() if depth == 0 else match.start()]
    return text


def _has_whole_calls(text: str) -> bool:
    """Whether each call of a text is complete."""
    for part in text.split(CALL)[1:]:
        try:
            json.loads(part.partition(CALL_END)[0])
        except ValueError:
            return False
    return True


def without_beginning_of(mark: str, text: str) -> str:
    """Return `text` without an incomplete mark at its end."""
    for length in range(len(mark) - 1, 0, -1):
        if text.endswith(mark[:length]):
            return text[:-length]
    return text


NameAndArguments: TypeAlias = tuple[str, str]
"""Name of a function, and its arguments as JSON, possibly incomplete."""


class CutForm(Enum):
    """How a parser returns calls that were cut short."""

    TEXT = "all that was said is text"
    LEFT_OUT = "nothing is shown"
    TAGGED = "complete calls where no other has begun, else text"
    COMPLETE = "complete calls"
    COMPLETE_OR_TEXT = "complete calls, or text where there is none"
    MEMBERS = "begun calls with the arguments that are complete"
    RAW = "begun calls with what there is of their arguments"


CUT_FORMS: Mapping[str, CutForm] = {
    name: CutForm[parser.cut.upper()] for name, parser in TOOL_CALL_PARSERS.items() if parser.cut
}
"""Forms by the name of the parser. All other parsers return such calls as text."""
ENDS_AT_NAMES = call_parsers_with("ends-at-names")
"""Parsers whose streams have no arguments where they are cut at a name. Streams of other parsers have an empty
object."""


def calls_in_reply(
    form: CutForm, begun: Sequence[NameAndArguments], cut: CutCalls
) -> Sequence[NameAndArguments] | None:
    """Return the calls in a whole reply out of the `begun` ones; None if the whole text is content."""
    complete = begun[: cut.num_complete]
    if form is CutForm.TEXT or (form is CutForm.TAGGED and (cut.is_within_call or not complete)):
        return None
    if form is CutForm.COMPLETE_OR_TEXT and not complete:
        return None
    if form is CutForm.LEFT_OUT:
        return ()
    if form is CutForm.MEMBERS:
        return [(name, complete_members(arguments)) for name, arguments in begun]
    if form is CutForm.RAW:
        return [(name, arguments or "{}") for name, arguments in begun]
    return complete


def complete_members(text: str) -> str:
    """Return the object at the beginning of `text`, with only its complete members."""
    decoder = json.JSONDecoder()
    end = 0
    at = 1
    try:
        while at < len(text) and text[at] != "}":
            _, at = decoder.raw_decode(text, _after_space(text, at))
            at = _after_space(text, at)
            if text[at : at + 1] != ":":
                break
            start = _after_space(text, at + 1)
            _, at = decoder.raw_decode(text, start)
            if at == len(text) and text[at - 1] not in '"}]':
                break  # a number may go on
            end, at = at, _after_space(text, at)
            if text[at : at + 1] != ",":
                break
            at += 1
    except ValueError:
        pass
    return f"{text[:end]}}}" if end else "{}"


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


# Calls of the functions in a request: the constraint that vLLM puts on them, and their arguments.

DEFINITIONS = "$defs"
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def forced_schema(tools: Sequence[Any], choice: Any, parallel: bool | None) -> dict[str, Any] | None:
    """Return the schema of the calls that a chat's choice of tools forces; None where no call is forced.

    Raises ApiError if tools define one name differently.
    """
    functions = [each["function"] for each in tools]
    if isinstance(choice, Mapping):
        name = (choice.get("function") or {}).get("name")
        named = [each for each in functions if each.get("name") == name]
        return dict(named[-1].get("parameters") or NO_PARAMETERS) if named else None
    if choice != "required":
        return None
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"type": "object", "anyOf": [_call_schema(each) for each in functions]},
    }
    if not flag_or(parallel, True):
        schema["maxItems"] = 1
    definitions = _all_definitions(functions)
    return {**schema, DEFINITIONS: definitions} if definitions else schema


def shown_tools(tools: Sequence[Any], schema: Mapping[str, Any]) -> list[Any]:
    """Return tools as a reply repeats them whose calls are constrained by `schema`.

    The schema of a list of calls contains the definitions of all functions: vLLM repeats the parameters without
    definitions.
    """
    return [_without_definitions(each) for each in tools] if schema.get("type") == "array" else list(tools)


def _without_definitions(tool: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(tool.get("function"), Mapping):
        return {**tool, "function": _without_definitions(tool["function"])}
    parameters = tool.get("parameters")
    if not isinstance(parameters, Mapping):
        return dict(tool)
    return {**tool, "parameters": _without_definitions_of(parameters)}


def _without_definitions_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != DEFINITIONS}


def _call_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters") or NO_PARAMETERS
    return {
        "properties": {
            "name": {"type": "string", "enum": [function["name"]]},
            "parameters": _without_definitions_of(parameters),
        },
        "required": ["name", "parameters"],
    }


def _all_definitions(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The definitions of all functions, which stand at the top of the schema."""
    found: dict[str, Any] = {}
    for function in functions:
        own = (function.get("parameters") or {}).get(DEFINITIONS, {})
        if not isinstance(own, dict):
            message = (
                f"`$defs` in the parameters of tool '{function['name']}' must be an object, got {type(own).__name__}."
            )
            raise bad_value(message, "tools")
        for name, schema in own.items():
            if found.setdefault(name, schema) != schema:
                raise bad_value(f"Tool definition '{name}' has multiple schemas, which is not supported.", "tools")
    return found


UNCONSTRAINED_PARSERS = call_parsers_with("unconstrained")
"""Parsers for which vLLM has no grammar of calls: a forced call is not constrained."""
ALWAYS_TAGGED_PARSERS = call_parsers_with("always-tagged")
"""Parsers whose default `--tool-strict-level` is `function`: every request with tools has a structural tag."""
TAGGED_IF_FORCED_PARSERS = call_parsers_with("tagged-if-forced")
"""Parsers without a structural tag for calls with `tool_choice` auto."""
IGNORES_PARALLEL_CALLS_PARSERS = call_parsers_with("ignores-parallel")
"""Parsers with special rules, which `parallel_tool_calls` does not change."""
LIST_PARSERS = call_parsers_with("listed")
"""Parsers that read forced calls as a list."""


class ToolConstraint(Enum):
    """The grammar of an answer with tools."""

    NOTHING = auto()
    TAG = auto()
    """Calls in the markup of the parser; calls and text with `tool_choice` auto."""
    SCHEMA = auto()
    """The JSON schema of `forced_schema`, which vLLM reads without the parser."""
    LIST = auto()
    """The JSON schema of `listed_schema`, which the parser reads."""


def tool_constraint_of(parser: str | None, body: Mapping[str, Any]) -> ToolConstraint:
    """Return the constraint that the tools of a chat put on its answer."""
    choice = body.get("tool_choice", "auto")
    if not body.get("tools") or choice in (None, "none") or parser in UNCONSTRAINED_PARSERS:
        return ToolConstraint.NOTHING
    is_forced = choice != "auto"
    if parser in FORCED_AS_JSON:
        return ToolConstraint.SCHEMA if is_forced else ToolConstraint.NOTHING
    if parser in LIST_PARSERS:
        return ToolConstraint.LIST if is_forced and not _keeps_constraint(body) else ToolConstraint.NOTHING
    return ToolConstraint.TAG if is_forced or _is_tagged(parser, body) else ToolConstraint.NOTHING


def has_output_constraint(body: Mapping[str, Any]) -> bool:
    """Whether a body constrains the form of the answer."""
    return body.get("structured_outputs") is not None or _format_type(body) not in (None, "text")


def listed_schema(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the list that a Mistral model writes where a call is forced."""
    choice = body.get("tool_choice")
    name = (choice.get("function") or {}).get("name") if isinstance(choice, Mapping) else None
    functions = [each["function"] for each in body["tools"]]
    calls = [_listed_call(each) for each in functions if name is None or each.get("name") == name]
    most = {} if name is None else {"maxItems": 1}
    return {"type": "array", "minItems": 1, **most, "items": {"type": "object", "anyOf": calls}}


def _listed_call(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("parameters") or {"type": NO_PARAMETERS["type"]}
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [function["name"]]}, "arguments": arguments},
        "required": ["name", "arguments"],
    }


def _is_tagged(parser: str | None, body: Mapping[str, Any]) -> bool:
    """Whether calls with `tool_choice` auto have a structural tag: for a strict function, or a limit of one call."""
    is_strict = any(flag_or(_function_of(each).get("strict"), False) for each in body["tools"])
    if parser in TAGGED_IF_FORCED_PARSERS:
        return is_strict and has_output_constraint(body)
    if is_strict or parser in ALWAYS_TAGGED_PARSERS:
        return True
    return (
        not flag_or(body.get("parallel_tool_calls"), True)
        and not has_output_constraint(body)
        and parser not in IGNORES_PARALLEL_CALLS_PARSERS
    )


def _keeps_constraint(body: Mapping[str, Any]) -> bool:
    """Whether the constraint of a body applies beside the forced call of a Mistral model."""
    return body.get("structured_outputs") is not None or _format_type(body) == "structural_tag"


def _format_type(body: Mapping[str, Any]) -> Any:
    requested = body.get("response_format")
    return requested.get("type") if isinstance(requested, Mapping) else None


def _function_of(tool: Any) -> Mapping[str, Any]:
    found = tool.get("function") if isinstance(tool, Mapping) else None
    return found if isinstance(found, Mapping) else {}


MOST_CALLS = 8
RESULT_ROLES = ("tool", "function")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called. `schema` describes the object of its arguments, strictly or as a hint."""

    name: str
    schema: Any
    is_strict: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The JSON text of a schema unpickles in a tenth of the time of its objects.
        return _unpacked_function, (self.name, compact_json(self.schema), self.is_strict)

    def is_small(self, argument_ranges: ArgumentRanges) -> bool:
        """Whether writing the arguments takes only a few milliseconds for any seed."""
        return is_small_schema(self.schema, argument_ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Functions that may be called, and the conditions of calls. `probability` is the chance of a first call,
    `extra_probability` of each further one.

    Neither probability applies to a forced call; `extra_probability` does not apply without parallel calls.
    """

    functions: tuple[Function, ...]
    is_forced: bool = False
    is_named: bool = False
    is_parallel: bool = True
    tool_constraint: ToolConstraint = ToolConstraint.NOTHING
    probability: float = 1.0
    extra_probability: float = 0.0
    argument_ranges: ArgumentRanges = ANY

    @property
    def is_json(self) -> bool:
        """Whether calls are bare JSON: a list of them, or the arguments of a named function."""
        return self.tool_constraint is ToolConstraint.SCHEMA

    @property
    def overrides_constraint(self) -> bool:
        """Whether the answer is calls in place of any constraint of the request."""
        return self.is_forced and self.tool_constraint is not ToolConstraint.NOTHING

    def num_calls(self, random: Random) -> int:
        """Return the number of calls to make; 0 for an answer of text."""
        if not self.is_forced and random.random() >= self.probability:
            return 0
        count = 1
        while self._may_call_again(count) and random.random() < self.extra_probability:
            count += 1
        return count

    def _may_call_again(self, count: int) -> bool:
        return self.is_parallel and not self.is_named and count < MOST_CALLS


def read_tool_use(
    body: Mapping[str, Any], probability: float, extra_probability: float, argument_ranges: ArgumentRanges = ANY
) -> ToolUse | None:
    """Return the calls that a body forces or allows; None for no calls.

    With `tool_choice` auto the answer has no calls once the conversation has a tool result, so that agent loops end.
    Raises ApiError for a named function that is defined more than once.
    """
    functions = tuple(found for each in _list_or_empty(body.get("tools")) if (found := _function(each)) is not None)
    choice = body.get("tool_choice", "auto")
    if not functions or choice in (None, "none"):
        return None
    if isinstance(choice, Mapping):
        name = _mapping_or_empty(choice.get("function")).get("name")
        functions = tuple(each for each in functions if each.name == name) or functions
        if sum(each.name == name for each in functions) > 1:
            raise ApiError("Forced tool choice must resolve to exactly one tool.")
    messages = _list_or_empty(body.get("messages"))
    has_result = bool(messages) and _mapping_or_empty(messages[-1]).get("role") in RESULT_ROLES
    return ToolUse(
        functions=functions,
        is_forced=choice != "auto",
        is_named=isinstance(choice, Mapping),
        is_parallel=flag_or(body.get("parallel_tool_calls"), True),
        probability=0.0 if has_result else probability,
        extra_probability=extra_probability,
        argument_ranges=argument_ranges,
    )


def call_script(use: ToolUse, functions: Sequence[Function], random: Random, verbosity: int) -> list[Segment]:
    """Return the script of calls of `functions`, in the markup of Hermes models or as the constrained JSON."""
    arguments = [_arguments_json(use, function, random, verbosity) for function in functions]
    if use.is_json:
        return _json_calls(use, functions, arguments)
    names = [each.name for each in functions]
    return marked_calls(list(zip(names, arguments, strict=True)), use.is_forced)


def marked_calls(calls: Sequence[tuple[str, str]], is_forced: bool = False) -> list[Segment]:
    """Return calls in the markup of Hermes models, each given by the function's name and its arguments as JSON."""
    script: list[Segment] = []
    for call, (name, given) in enumerate(calls):
        # Models put calls on lines of their own; vLLM's grammar for calls that are forced has nothing between them.
        opening = "<tool_call>\n" if call == 0 or is_forced else "\n<tool_call>\n"
        script += [
            Segment(Kind.MARKUP, f'{opening}{{"name": "'),
            # The name is known to be complete with the quotation mark after it.
            Segment(Kind.TOOL_NAME, f'{name}"', call, shown=name),
            Segment(Kind.MARKUP, ', "arguments": '),
            Segment(Kind.TOOL_ARGUMENTS, given, call),
            Segment(Kind.MARKUP, "}\n</tool_call>"),
        ]
    return script


def _json_calls(use: ToolUse, functions: Sequence[Function], arguments: Sequence[str]) -> list[Segment]:
    """Return a list of calls. A function named by the client has its arguments only, and its name takes no token."""
    if use.is_named:
        name = functions[0].name
        return [Segment(Kind.TOOL_NAME, "", shown=name), Segment(Kind.TOOL_ARGUMENTS, arguments[0])]
    script: list[Segment] = []
    for call, (function, given) in enumerate(zip(functions, arguments, strict=True)):
        script += [
            Segment(Kind.MARKUP, '[{"name": "' if call == 0 else '}, {"name": "'),
            Segment(Kind.TOOL_NAME, f'{function.name}"', call, shown=function.name),
            Segment(Kind.MARKUP, ', "parameters": '),
            Segment(Kind.TOOL_ARGUMENTS, given, call),
        ]
    return [*script, Segment(Kind.MARKUP, "}]")]


def _unpacked_function(name: str, schema: bytes, is_strict: bool) -> Function:
    return Function(name, json.loads(schema), is_strict)


def tool_demand(use: ToolUse, config: StructuredOutputsConfig) -> Demand | None:
    """Return the structural tag or the JSON schema with which vLLM constrains calls; None for unconstrained calls.

    Raises ApiError for forced calls whose functions have conflicting definitions.
    """
    if use.tool_constraint is ToolConstraint.NOTHING:
        return None
    if use.tool_constraint is ToolConstraint.TAG:
        schemas = [each.schema if each.is_strict else True for each in use.functions]
        elements = [{"type": "json_schema", "json_schema": schema} for schema in schemas]
        tag = {"type": "structural_tag", "format": {"type": "or", "elements": elements}}
        return Demand("structural_tag", tag, config)
    tools = [{"function": {"name": each.name, "parameters": each.schema}} for each in use.functions]
    choice = {"function": {"name": use.functions[0].name}} if use.is_named else "required"
    if use.tool_constraint is ToolConstraint.LIST:
        return Demand("json", listed_schema({"tools": tools, "tool_choice": choice}), config)
    return Demand("json", forced_schema(tools, choice, use.is_parallel), config)


def _arguments_json(use: ToolUse, function: Function, random: Random, verbosity: int) -> str:
    """Return the arguments as JSON. A reference that leads back to itself is an error only for a constrained call."""
    is_strict = function.is_strict and use.tool_constraint is ToolConstraint.TAG
    is_constrained = is_strict or use.tool_constraint in (ToolConstraint.SCHEMA, ToolConstraint.LIST)
    form = JsonForm(function.schema, use.argument_ranges, "xgrammar" if is_constrained else None)
    try:
        return constrained_text(form, random, verbosity)
    except ApiError as error:
        if is_strict or (use.is_json and use.is_named):
            raise mark_late(error) from None
        return "{}"


def _function(tool: Any) -> Function | None:
    found = _mapping_or_empty(_mapping_or_empty(tool).get("function"))
    name = found.get("name")
    if not isinstance(name, str) or not name:
        return None
    parameters = found.get("parameters")
    schema = parameters if isinstance(parameters, Mapping) and parameters else _NO_ARGUMENTS
    return Function(name, schema, flag_or(found.get("strict"), False))


_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def _list_or_empty(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
