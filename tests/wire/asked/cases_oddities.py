"""Requests whose replies differ from vLLM's; the expected differences give the reasons."""

from collections.abc import Sequence
from typing import Any

from tests.wire.asked.cases_prompts import CHAT, PARAMETERS, TOKENIZE, USER
from tests.wire.asked.cases_responses import RENDER, RESPONSES
from tests.wire.asked.setups import Asked

GENERATE = "/inference/v1/generate"
LOOP: dict[str, Any] = {"$ref": "#"}
INNER_LOOP: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a"}},
    "$defs": {"a": {"$ref": "#/$defs/a"}},
}
SCHEMAS: dict[str, Any] = {
    "loop among definitions": INNER_LOOP,
    "negative length": {"type": "string", "minLength": -1},
}
FUNCTION: dict[str, Any] = {"name": "look", "parameters": PARAMETERS}
NO_TAG = {"structural_tag": "x"}


def chat(**fields: Any) -> dict[str, Any]:
    """A chat of one token."""
    return {"model": "m", "messages": USER, "max_tokens": 1, **fields}


def _strict(parameters: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "look", "parameters": parameters, "strict": True}}]


def oddity_cases() -> Sequence[Asked]:
    """Cases of a server with its usual backend of structured outputs."""
    part = {"role": "user", "content": [{"type": "smell", "smell": "x"}]}
    tool = {"type": "function", **FUNCTION}
    response = {"model": "m", "input": "a"}
    tagless_tokens = {"token_ids": [5], "sampling_params": {"structured_outputs": NO_TAG}}
    return [
        *(Asked(f"schema: {name}", CHAT, chat(structured_outputs={"json": each})) for name, each in SCHEMAS.items()),
        Asked("strict function with a loop", CHAT, chat(tools=_strict(LOOP), ignore_eos=True)),
        Asked("template argument self", CHAT, chat(chat_template_kwargs={"self": 1})),
        Asked("template with an unknown filter", CHAT, chat(chat_template="{{ 'a'|nosuch }}")),
        Asked("integer beyond 64 bits in a list", "/detokenize", {"model": "m", "tokens": [2**64]}),
        Asked("half a character as a key", CHAT, {"\ud800": 1}),
        Asked("unknown part", CHAT, chat(messages=[part])),
        Asked("unknown part, tokenized", TOKENIZE, {"model": "m", "messages": [part]}),
        Asked("no structural tag, tokens", GENERATE, tagless_tokens),
        Asked("no structural tag, response", RESPONSES, {**response, "structured_outputs": NO_TAG}),
        Asked("strict function rendered", f"{CHAT}/render", chat(tools=_strict(PARAMETERS))),
        Asked("strict function of a response rendered", RENDER, {**response, "tools": [{**tool, "strict": True}]}),
        Asked("forced function rendered", RENDER, {**response, "tools": [tool], "tool_choice": "required"}),
    ]


def guidance_cases() -> Sequence[Asked]:
    """Cases of a server whose backend of structured outputs is guidance."""
    nameless = [{"type": "function", "function": {"name": ""}}]
    return [
        Asked("long repetition", CHAT, chat(structured_outputs={"regex": "a{1000000}"})),
        Asked("function without a name", CHAT, chat(tools=nameless, tool_choice="required")),
    ]
