"""A model's own chat template, rendered as the `transformers` library does: Jinja in a sandbox."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blis_options import OptionError
from mockserve.content.chat_templates.chatml import TemplateRequest, Turn
from mockserve.content.chat_templates.system_turns import without_developers
from mockserve.protocol.errors import ApiError

RESERVED_ARGUMENTS = frozenset({"chat_template", "tokenize"})


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: marks what a model said, for training; here its content alone matters."""

    tags = {"generation"}  # noqa: RUF012  (the library's own attribute, and its type)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class JinjaTemplate:
    """A compiled template with the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], takes_parts: bool | None = None) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise OptionError(f"--chat-template: not a Jinja template: {error}") from error
        self._special_tokens = dict(special_tokens)
        self._knows_developers = '"developer"' in source or "'developer'" in source
        self.takes_parts = _iterates_over_content(tree) if takes_parts is None else takes_parts

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        unexpected = RESERVED_ARGUMENTS & request.arguments.keys()
        if unexpected:
            raise ApiError(f"Found unexpected chat template kwargs from request: {unexpected}")
        if not self._knows_developers:
            turns = without_developers(turns)
        try:
            prompt = self._template.render(
                messages=turns,
                tools=list(request.tools) or None,
                documents=list(request.documents) or None,
                **{
                    **self._special_tokens,
                    "add_generation_prompt": request.add_generation_prompt,
                    "continue_final_message": request.continue_final_message,
                    **request.arguments,
                },
            )
        except Exception as error:  # noqa: BLE001  (a template may fail in any way the client's data makes it)
            raise ApiError(str(error)) from None
        return _open_ended(prompt, turns[-1]) if request.continue_final_message else prompt


def _open_ended(prompt: str, last: Turn) -> str:
    """The prompt up to the end of the last message, so that the answer goes on from there."""
    content = last.get("content") or ""
    text = content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)
    at = prompt.rfind(text.strip())
    if at < 0:
        raise ApiError(
            "continue_final_message is set but the final message does not appear in the chat after applying the "
            "chat template! This can happen if the chat template deletes portions of the final message."
        )
    return prompt[: at + len(text.strip())]


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
    """Whether a loop runs over a message's content, as templates do that expect a list of parts."""
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
