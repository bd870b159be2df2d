"""Requested form of an answer, and jobs that write such answers, in place or in a worker."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple, TypeAlias, TypeVar

from blis_sim.options.option import json_object
from mockserve.executor.worker import Job
from mockserve.generation.answer import Answer, Kind, Segment, Thinking, read_thinking
from mockserve.generation.structured_outputs.backends import resolve_backend
from mockserve.generation.structured_outputs.demand import Demand, demand_of
from mockserve.generation.structured_outputs.kinds import (
    Constraint,
    DeferredForm,
    build_deferred_constraint,
    constrained_text,
    requested_constraint,
    xgrammar_accepts,
)
from mockserve.generation.tool_calls import (
    Function,
    ToolUse,
    call_script,
    read_tool_use,
    tool_constraint_of,
    tool_demand,
)
from mockserve.options.content import AUTO, ContentOptions, StructuredOutputsConfig
from mockserve.options.parsers import call_parsers_with
from mockserve.protocol.chat_messages import effort_arguments, read_messages
from mockserve.protocol.errors import ApiError, mark_late
from mockserve.protocol.json_text import compact_json

ONE_CALL_PARSERS = call_parsers_with("one-call")
"""Parsers of models that make one call at a time: vLLM treats a second call as content, or refuses the answer."""


class OutputSpec(NamedTuple):
    """Requested form of an answer. `asked` are the texts to look up: the last user message or the prompt, then the
    whole prompt.

    `is_parsed`: the server has a parser for tool calls or reasoning, which reads all chat answers.
    """

    constraint: Constraint | None = None
    structured_outputs: StructuredOutputsConfig = AUTO
    tools: ToolUse | None = None
    thinking: Thinking | None = None
    asked: tuple[str, ...] = ()
    is_parsed: bool = False
    natural_tokens: int | None = None
    """Length of an answer that ends by itself, where the request sets it."""
    continues_word: bool = False
    """Whether the answer directly follows a word of the prompt, as in completions."""


PLAIN = OutputSpec()


class AnswerSettings(NamedTuple):
    """The server's settings of answers, and values derived from them for every request."""

    options: ContentOptions
    structured_outputs: StructuredOutputsConfig
    calls_tools: bool
    parses_answers: bool


def answer_settings(options: ContentOptions) -> AnswerSettings:
    """Derive the settings once for all requests."""
    return AnswerSettings(options, options.structured_outputs.config, options.tools.calls_tools, options.parses_answers)


def completion_output_spec(body: Mapping[str, Any], prompt: str | None, settings: AnswerSettings) -> OutputSpec:
    """Return the form of an answer to POST /v1/completions; `prompt` is None for token ids.

    Raises ApiError for an invalid constraint.
    """
    return OutputSpec(
        constraint=_read_constraint(body, settings.structured_outputs, lambda: [prompt or ""]),
        asked=() if prompt is None else (prompt,),
        continues_word=prompt is not None and prompt[-1:].strip() != "",
    )


def chat_output_spec(
    body: Mapping[str, Any], prompt: str, settings: AnswerSettings, uses_prompt_text: bool
) -> OutputSpec:
    """Return the form of an answer in a conversation; `prompt` is the whole rendered prompt.

    The texts of the conversation are included only with `uses_prompt_text`.

    Raises ApiError for an invalid constraint.
    """
    config = settings.structured_outputs
    tools = _tool_use_of(body, settings.options) if settings.calls_tools else None
    constraint = _read_constraint(
        body, config, lambda: [each.content for each in read_messages(body.get("messages") or [])]
    )
    # What holds forced calls replaces any other form; a structural tag is read first, and refused if it is none.
    is_replaced = tools is not None and tools.overrides_constraint and not _is_tag(body)
    return OutputSpec(
        constraint=None if is_replaced else constraint,
        structured_outputs=config,
        tools=tools,
        thinking=_thinking_of(body, settings.options),
        asked=(_last_user_message(body), prompt) if uses_prompt_text else (),
        is_parsed=settings.parses_answers,
    )


def _read_constraint(
    body: Mapping[str, Any], config: StructuredOutputsConfig, texts: Callable[[], Sequence[str]]
) -> Constraint | None:
    """Return the constraint of the answer, if there is one. `texts` returns the texts of the prompt."""
    if body.get("structured_outputs") is None and body.get("response_format") is None:
        return None
    return requested_constraint(body, config, texts)


def _is_tag(body: Mapping[str, Any]) -> bool:
    """Whether the constraint of a body is a structural tag."""
    demand = demand_of(body)
    return demand is not None and demand.kind == "structural_tag"


def _tool_use_of(body: Mapping[str, Any], options: ContentOptions) -> ToolUse | None:
    tools = options.tools
    found = read_tool_use(
        body, tools.tool_call_probability, tools.tool_call_extra_probability, tools.arguments.argument_ranges
    )
    if found is None:
        return None
    found = replace(found, tool_constraint=tool_constraint_of(tools.tool_call_parser, body))
    is_single = not found.is_forced and tools.tool_call_parser in ONE_CALL_PARSERS
    return replace(found, is_parallel=False) if is_single else found


def _thinking_of(body: Mapping[str, Any], options: ContentOptions) -> Thinking | None:
    parser = options.reasoning.reasoning_parser
    if parser is None:
        return None
    given = body.get("chat_template_kwargs")
    given = given if isinstance(given, Mapping) else {}
    variables = json_object("--default-chat-template-kwargs", options.default_chat_template_kwargs)
    variables |= {**given, **effort_arguments(body.get("reasoning_effort"), given)}
    return read_thinking(body, variables, options.reasoning.default_reasoning_tokens, parser)


def _last_user_message(body: Mapping[str, Any]) -> str:
    """Return the last message of the user; the last message of any role if there is none of the user."""
    messages = read_messages(body.get("messages") or [])
    return next((each.content for each in reversed(messages) if each.role == "user"), messages[-1].content)


MOST_TEXT_CHARS = 1_000_000
"""Longest text that is written whole. A longer text is cut to the length of the answer, and refused for an answer that
is longer still."""

Script: TypeAlias = list[Segment]
Write: TypeAlias = Callable[[Random, int], Script]
ScriptResult: TypeAlias = tuple[Script, Random]
"""A script, and the state of the random numbers after it."""

Steps: TypeAlias = Generator[Job[ScriptResult], ScriptResult | None, Answer]
"""Generator of an answer: it yields a job for each script, receives the written script, and returns the answer."""

Result = TypeVar("Result")


def constrained_script(constraint: Constraint, random: Random, verbosity: int) -> Script:
    """A text of the form, as an answer's content."""
    return [Segment(Kind.CONTENT, constrained_text(constraint, random, verbosity))]


def content_job(constraint: Constraint, random: Random, verbosity: int, most_chars: int) -> Job[ScriptResult]:
    """Return the job that writes a text of the form; a long text is cut to `most_chars` characters."""
    is_small = not isinstance(constraint, DeferredForm)
    return Job(_run_writer, (constrained_script, (constraint,), random, verbosity, most_chars), is_small)


def calls_job(
    use: ToolUse, functions: Sequence[Function], random: Random, verbosity: int, most_chars: int
) -> Job[ScriptResult]:
    """Return the job that writes calls of `functions`."""
    is_small = all(each.is_small(use.argument_ranges) for each in functions)
    called = replace(use, functions=())  # those that are not called need not go to a worker
    return Job(_run_writer, (call_script, (called, functions), random, verbosity, most_chars), is_small)


def constraint_check_jobs(form: OutputSpec) -> Iterator[Job[str | None]]:
    """Yield the jobs that find the structured-output backend of an answer. The last backend found counts.

    A job raises ApiError if the constraint cannot be met. A constraint that is already parsed needs no job.
    """
    tools, constraint = form.tools, form.constraint
    demand = None if tools is None else tool_demand(tools, form.structured_outputs)
    if tools is None or demand is None:
        if isinstance(constraint, DeferredForm):
            yield Job(deferred_backend, (constraint,), is_small=False)
        return
    held = (demand.kind, compact_json(demand.value), demand.config)
    if isinstance(constraint, DeferredForm):
        yield Job(either_backend, (constraint, *held), is_small=False)
        return
    is_small = all(
        each.is_small(tools.argument_ranges) for each in tools.functions if each.is_strict or demand.kind == "json"
    )
    yield Job(tool_backend, held, is_small)


def deferred_backend(form: DeferredForm) -> str | None:
    """Return the backend of a deferred constraint. Raises ApiError if the constraint cannot be met."""
    return build_deferred_constraint(form).backend


def either_backend(form: DeferredForm, kind: str, value: bytes, config: StructuredOutputsConfig) -> str | None:
    """Return the backend of an answer that is calls or text of a form.

    vLLM allows calls and the form if xgrammar accepts the form, whichever backend is configured; else only the form.
    Raises ApiError where there is no backend.
    """
    if xgrammar_accepts(form):
        return tool_backend(kind, value, config)
    return deferred_backend(form)


def tool_backend(kind: str, value: bytes, config: StructuredOutputsConfig) -> str:
    """Return the backend of the structural tag or the schema, as JSON, that constrains calls.

    Raises ApiError when there is none.
    """
    try:
        return resolve_backend(Demand(kind, json.loads(value), config))
    except ApiError as error:
        raise mark_late(error) from None


def _run_writer(
    write: Callable[..., Script], arguments: tuple[object, ...], random: Random, verbosity: int, most_chars: int
) -> ScriptResult:
    script = write(*arguments, random, verbosity)
    num_chars = sum(len(each.text) for each in script)
    if num_chars <= MOST_TEXT_CHARS:
        return script, random
    if most_chars > MOST_TEXT_CHARS:
        raise grammar_too_big()
    return _first_chars(script, most_chars), random


def _first_chars(script: Script, most_chars: int) -> Script:
    kept: Script = []
    for each in script:
        if len(each.text) >= most_chars:
            return [*kept, Segment(each.kind, each.text[:most_chars], each.call)]
        kept.append(each)
        most_chars -= len(each.text)
    return kept


def grammar_too_big() -> ApiError:
    """Return the error of a constraint beyond the limits, with the message of vLLM's grammar compiler."""
    return mark_late(
        ApiError("Grammar error: initial lexer configuration (grammar) too big (limit for this grammar: 1000000)")
    )
