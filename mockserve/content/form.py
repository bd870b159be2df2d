"""What a request asks of its answer besides sampling: how it may end, which form it must have, what it answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from mockserve.content.constraints.kinds import Constraint, DeferredForm, demanded_form
from mockserve.content.thinking import Thinking, read_thinking
from mockserve.content.tool_calls import ToolUse, read_tool_use
from mockserve.options.content import ONE_CALL_PARSERS, ContentOptions, json_object
from mockserve.options.structured_outputs import AUTO, StructuredOutputsConfig
from mockserve.protocol.completions.messages import read_messages
from mockserve.protocol.completions.template_arguments import effort_arguments


class AnswerForm(NamedTuple):
    """`asked` is what the answer replies to: the last user message or the prompt, then the whole prompt.

    `is_parsed`: the server has a parser for tool calls or reasoning, which all chat answers go through.
    """

    constraint: Constraint | None = None
    structured_outputs: StructuredOutputsConfig = AUTO
    tools: ToolUse | None = None
    thinking: Thinking | None = None
    asked: tuple[str, ...] = ()
    is_parsed: bool = False
    natural_tokens: int | None = None
    """Length of an answer that ends by itself, where what is asked sets it."""
    goes_on: bool = False
    """Whether it stands right behind a word of the prompt, as completions do."""

    @property
    def is_plain(self) -> bool:
        """Whether nothing is demanded of the answer that a worker might have to write."""
        return self.tools is None and not isinstance(self.constraint, DeferredForm)


PLAIN = AnswerForm()


def completion_form(body: Mapping[str, Any], prompt: str | None, options: ContentOptions) -> AnswerForm:
    """The form of an answer to POST /v1/completions; `prompt` is None for token ids.

    Raises ApiError for a form that is none.
    """
    return AnswerForm(
        constraint=demanded_form(body, options.structured_outputs.config, lambda: [prompt or ""]),
        asked=() if prompt is None else (prompt,),
        goes_on=prompt is not None and prompt[-1:].strip() != "",
    )


def chat_form(body: Mapping[str, Any], prompt: str, options: ContentOptions, quotes: bool) -> AnswerForm:
    """The form of an answer in a conversation; `prompt` is the whole of it as the template put it.

    Only a server that `quotes` looks at what is asked.

    Raises ApiError for a form that is none.
    """
    config = options.structured_outputs.config
    return AnswerForm(
        constraint=demanded_form(body, config, lambda: _texts(body)),
        structured_outputs=config,
        tools=_tools(body, options),
        thinking=_thinking(body, options),
        asked=(_last_words(body), prompt) if quotes else (),
        is_parsed=options.parses_answers,
    )


def _tools(body: Mapping[str, Any], options: ContentOptions) -> ToolUse | None:
    tools = options.tools
    if not tools.calls_tools:
        return None
    found = read_tool_use(body, tools.tool_call_probability, tools.tool_call_extra_probability, tools.arguments.taste)
    if found is not None and not found.is_forced and tools.tool_call_parser in ONE_CALL_PARSERS:
        return replace(found, is_parallel=False)
    return found


def _thinking(body: Mapping[str, Any], options: ContentOptions) -> Thinking | None:
    parser = options.reasoning.reasoning_parser
    if parser is None:
        return None
    given = body.get("chat_template_kwargs")
    given = given if isinstance(given, Mapping) else {}
    variables = json_object("--default-chat-template-kwargs", options.default_chat_template_kwargs)
    variables |= {**given, **effort_arguments(body.get("reasoning_effort"), given)}
    return read_thinking(body, variables, options.reasoning.default_reasoning_tokens, parser)


def _last_words(body: Mapping[str, Any]) -> str:
    """What the user said last; what anyone said last if no user did."""
    messages = read_messages(body.get("messages") or [])
    return next((each.content for each in reversed(messages) if each.role == "user"), messages[-1].content)


def _texts(body: Mapping[str, Any]) -> list[str]:
    """The texts of all messages."""
    return [each.content for each in read_messages(body.get("messages") or [])]
