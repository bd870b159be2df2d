"""A model's own chat template, rendered as the `transformers` library does: Jinja in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blis_sim.options import OptionError
from mockserve.generation.chat_turns import (
    TemplateRequest,
    Turn,
    check_conversation,
    cut_at_end_mark,
    free,
    merge_developer_turns,
    with_end_mark,
)
from mockserve.protocol.errors import ApiError

LIBRARY_ARGUMENTS = frozenset(
    {
        *("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs"),
    }
)
"""Arguments of the library's own function, which are hidden from templates."""
TAKEN_ARGUMENTS = ("model_config", "tokenizer", "conversation")
"""Argument names that vLLM itself passes to the library."""


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: marks the model's text for training. Only the content of the block is rendered here."""

    tags = {"generation"}  # noqa: RUF012  (the library's own attribute, and its type)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class JinjaTemplate:
    """A compiled template with the special tokens that it may use."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], takes_parts: bool | None = None) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except (jinja2.TemplateError, SyntaxError, ValueError, RecursionError) as error:  # of too many digits
            raise OptionError(f"--chat-template: not a Jinja template: {error}") from error
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._supports_developer_role = '"developer"' in source or "'developer'" in source
        self.takes_parts = _iterates_over_content(tree) if takes_parts is None else takes_parts

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        check_conversation(turns)
        made = list(turns)  # templates may do with them whatever lists can do
        try:
            return self._render(made, request)
        finally:
            free(made)

    def _render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        if not self._supports_developer_role:
            turns = merge_developer_turns(turns)
        try:
            _check(request)
            if not request.continue_final_message:
                return self._rendered(turns, request)
            turns, final_text = with_end_mark(turns, self._source)
            return cut_at_end_mark(self._rendered(turns, request), final_text)
        except Exception as error:  # noqa: BLE001  (a template may fail in any way the client's data makes it)
            raise ApiError(str(error)) from None

    def _rendered(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        variables = {key: value for key, value in request.arguments.items() if key not in LIBRARY_ARGUMENTS}
        return self._template.render(
            messages=turns,
            tools=request.tools,
            documents=request.documents,
            add_generation_prompt=request.add_generation_prompt,
            **{**self._special_tokens, **variables},
        )


def _check(request: TemplateRequest) -> None:
    """Raise an error for arguments that the library refuses before it renders."""
    arguments = request.arguments
    taken = next((each for each in TAKEN_ARGUMENTS if each in arguments), None)
    if taken is not None:
        raise TypeError(f"safe_apply_chat_template() got multiple values for argument {taken!r}")
    if arguments.get("return_assistant_tokens_mask"):
        raise ValueError("`return_assistant_tokens_mask=True` requires `return_dict=True` and `tokenize=True`")
    if request.continue_final_message and request.add_generation_prompt:
        raise ValueError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    if arguments.get("sanitize_control_tokens") and not arguments.get("tokenize"):
        raise ValueError(
            "`sanitize_control_tokens=True` requires `tokenize=True` and is not compatible with "
            "`return_assistant_tokens_mask=True`."
        )
    if request.tools is not None and not all(isinstance(each, dict) for each in request.tools):
        raise ValueError(
            "Tools should either be a JSON schema, or a callable function with type hints "
            "and a docstring suitable for auto-conversion to a schema."
        )
    if request.documents is not None and not all(isinstance(each, dict) for each in request.documents):
        raise TypeError("Documents should be a list of dicts with 'title' and 'text' keys!")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _iterates_over_content(tree: jinja2.nodes.Template) -> bool:
    """Whether a loop iterates over a message's content: such templates need a list of parts."""
    for loop in tree.find_all(jinja2.nodes.For):
        over = loop.iter
        if isinstance(over, jinja2.nodes.Filter) and over.node is not None:
            over = over.node
        if isinstance(over, jinja2.nodes.Getattr) and over.attr == "content":
            return True
        if isinstance(over, jinja2.nodes.Getitem) and isinstance(over.arg, jinja2.nodes.Const):
            if over.arg.value == "content":
                return True
        elif isinstance(over, jinja2.nodes.Name) and over.name == "content":
            return True
    return False
