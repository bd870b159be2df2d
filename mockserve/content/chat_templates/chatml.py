"""ChatML, the chat template of a model without one, and what stands for a tokenizer's missing template."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from mockserve.content.chat_templates.turns import Turn
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
