"""Chat templates: a model's own, rendered by Jinja in a sandbox as `transformers` does, and ChatML without one."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blis_sim.options import OptionError
from mockserve.content.chat_templates.turns import Turn, marked, open_ended, without_developers
from mockserve.protocol.errors import ApiError


class TemplateRequest(NamedTuple):
    """What a request says about the form of its prompt. `arguments` are variables for the template.

    `tools` and `documents` may be anything: `chat_template_kwargs` can replace them.
    """

    tools: Any = None
    documents: Any = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: Mapping[str, Any] = MappingProxyType({})


class ChatTemplate(Protocol):
    """Turns a conversation into the text of a prompt."""

    @property
    def takes_parts(self) -> bool:
        """Whether `content` is a list of parts in the template's eyes, rather than one text."""
        ...

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        """The prompt. Raises ApiError for a conversation that the template refuses."""
        ...


def check_conversation(turns: Sequence[Turn]) -> None:
    """Raise ApiError for a conversation without messages."""
    if not turns:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")


class ChatMLTemplate:
    """ChatML, with tools in the system turn as Hermes and Qwen have them.

    With the built-in tokenizer a message costs 5 tokens besides its content (two markers, the role and two line ends),
    and the prompt for the answer 4 more.
    """

    takes_parts = False

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        check_conversation(turns)
        texts = [_turn(each) for each in turns]
        if isinstance(request.tools, list) and request.tools:
            texts.insert(0, f"<|im_start|>system\n{_tool_instructions(request.tools)}<|im_end|>\n")
        prompt = "".join(texts)
        if request.continue_final_message:
            return prompt.removesuffix("<|im_end|>\n")
        return f"{prompt}<|im_start|>assistant\n" if request.add_generation_prompt else prompt


def _turn(turn: Turn) -> str:
    calls = "".join(f"\n<tool_call>\n{_called(each)}\n</tool_call>" for each in turn.get("tool_calls") or ())
    text = f"{turn.get('content') or ''}{calls}".lstrip("\n")
    return f"<|im_start|>{turn['role']}\n{text}<|im_end|>\n"


def _called(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(function, Mapping):
        function = {key: function[key] for key in ("name", *function) if key in function}
    return json.dumps(function, ensure_ascii=False, default=str)


def _tool_instructions(tools: Sequence[Any]) -> str:
    signatures = "\n".join(json.dumps(each, ensure_ascii=False, default=str) for each in tools)
    return (
        "You may call functions. Their signatures are within <tools></tools>:\n"
        f"<tools>\n{signatures}\n</tools>\n"
        'For each call, say {"name": <function>, "arguments": <object>} within <tool_call></tool_call>.'
    )


class MissingTemplate:
    """Refuses every conversation, in the words of vLLM."""

    takes_parts = False

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        raise ApiError(
            "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template "
            "if the tokenizer does not define one."
        )


LIBRARY_ARGUMENTS = frozenset(
    {
        *("chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs"),
    }
)
"""Arguments of the library's own function, which no template sees."""
TAKEN_ARGUMENTS = ("model_config", "tokenizer", "conversation")
"""Names that vLLM's call of the library has itself."""


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
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
            raise OptionError(f"--chat-template: not a Jinja template: {error}") from error
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._knows_developers = '"developer"' in source or "'developer'" in source
        self.takes_parts = _iterates_over_content(tree) if takes_parts is None else takes_parts

    def render(self, turns: Sequence[Turn], request: TemplateRequest) -> str:
        check_conversation(turns)
        if not self._knows_developers:
            turns = without_developers(turns)
        try:
            _check(request)
            if not request.continue_final_message:
                return self._rendered(turns, request)
            turns, final_text = marked(turns, self._source)
            return open_ended(self._rendered(turns, request), final_text)
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
    """What the library refuses before it renders."""
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
