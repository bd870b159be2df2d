"""Requests about what a response is made from: items of every kind, right and wrong, and tools of every kind."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.wire.asked.cases_prompts import PARAMETERS
from tests.wire.asked.setups import Asked

RESPONSES = "/v1/responses"
RENDER = f"{RESPONSES}/render"
SAID: dict[str, Any] = {"role": "user", "content": "a"}
ANSWER: dict[str, Any] = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed"}
TEXT: dict[str, Any] = {"type": "output_text", "text": "x"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
CUSTOM_CALL: dict[str, Any] = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'é"x'}
RESULT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "r"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "summary": []}

CONTENTS: tuple[Any, ...] = (7, None, [], [{}], [7], [{"type": "input_text"}], [{"type": "x"}])
SUMMARIES: tuple[Any, ...] = ("user", [[]], [{"type": "summary_text"}])
ITEMS: tuple[Any, ...] = (
    *(
        7,
        None,
        "x",
        [],
        {},
        {"type": "zzz"},
        {"type": 7},
        {"id": "x"},
        {"role": "tool", "content": "x"},
        {"role": "user"},
    ),
    *({**SAID, "content": each} for each in CONTENTS),
    {**SAID, "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]},
    {**SAID, "content": [{"type": "input_image", "image_url": "data:x"}]},
    {**SAID, "content": [{"type": "input_file", "file_id": "f"}]},
    {**SAID, "role": "system", "content": [{"type": "input_text", "text": "x"}]},
    {**SAID, "phase": "x"},
    *({**ANSWER, "content": each} for each in ("", [TEXT], [TEXT, TEXT], [], [{"type": "refusal", "refusal": "n"}])),
    *(
        {**ANSWER, "content": each}
        for each in ("hello", [None], [{"refusal": "s"}], [{**TEXT, "annotations": 7}], [TEXT, 7])
    ),
    {**ANSWER, "content": [TEXT], "status": "incomplete"},
    {"role": "assistant", "content": "x"},
    {"role": "assistant", "content": [TEXT]},
    {"role": "assistant", "content": [{"type": "output_text"}]},
    {"type": "message", "role": "assistant", "content": [TEXT]},
    *(CALL, {**CALL, "namespace": "n"}, {**CALL, "arguments": 7}, {"type": "function_call", "name": "x"}),
    *(CUSTOM_CALL, {**CUSTOM_CALL, "input": None}),
    *({**RESULT, "output": each} for each in (7, [], [{"type": "input_text", "text": "r"}] * 2, [{"type": "x"}])),
    *({"type": "function_call_output", "output": "x"}, {**RESULT, "type": "custom_tool_call_output"}),
    *(THOUGHT, {"type": "reasoning"}, {**THOUGHT, "encrypted_content": "x"}, {**THOUGHT, "content": 7}),
    {**THOUGHT, "summary": [{"type": "summary_text", "text": "why"}]},
    {**THOUGHT, "content": [{"type": "reasoning_text", "text": "t"}]},
    *({**THOUGHT, "id": "r", "summary": each} for each in SUMMARIES),
    *({"type": "item_reference"}, {"type": "item_reference", "id": "x"}),
    {"type": "additional_tools", "role": "developer", "tools": []},
    *(
        {"type": each}
        for each in (
            *("computer_call", "computer_call_output", "web_search_call", "file_search_call", "image_generation_call"),
            *("code_interpreter_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_call", "compaction"),
            *("mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "tool_search_call"),
        )
    ),
    {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
    {"type": "image_generation_call", "id": "i", "result": None, "status": "completed"},
)

FUNCTION: dict[str, Any] = {"type": "function", "name": "look", "parameters": PARAMETERS}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "patch", "description": "d"}
SPACE: dict[str, Any] = {
    "type": "namespace",
    "name": "n",
    "description": "d",
    "tools": [{"type": "function", "name": "q", "parameters": PARAMETERS}, {"type": "custom", "name": "z"}],
}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
TOOLS: dict[str, tuple[Any, ...]] = {
    "function": (FUNCTION,),
    "not strict": ({**FUNCTION, "strict": False, "defer_loading": True, "description": "d"},),
    "custom": (CUSTOM,),
    "custom with a format": ({**CUSTOM, "format": {"type": "text"}},),
    "grammar": ({**CUSTOM, "format": GRAMMAR},),
    "bad format": ({**CUSTOM, "format": 7},),
    "namespace": (SPACE,),
    "namespace without tools": ({**SPACE, "tools": 7},),
    "namespace of nameless tools": ({**SPACE, "tools": [{"type": "function"}]},),
    "web search": ({"type": "web_search"},),
    "all": (CUSTOM, SPACE, FUNCTION, {"type": "web_search"}),
}
CHOICES: tuple[tuple[Any, tuple[Any, ...]], ...] = (
    ({"type": "function", "name": "zz"}, (SPACE,)),
    ({"type": "function", "name": "q"}, (SPACE, {**SPACE, "name": "o"})),
    ({"type": "custom", "name": "z"}, (SPACE,)),
    ({"type": "function", "name": ""}, (FUNCTION,)),
    ("required", ({"type": "web_search"},)),
    ({"type": "function", "name": "a"}, ({"type": "web_search"},)),
    ({"type": "function", "name": "q"}, ({**SPACE, "tools": [{"type": "web"}]},)),
)
"""Choices that are refused."""


def response_cases() -> Sequence[Asked]:
    """All of them."""
    return [*_items(), *_tools()]


def _items() -> Iterator[Asked]:
    for number, item in enumerate(ITEMS):
        yield Asked(f"item {number}: {item}", RENDER, {"model": "m", "input": [SAID, item]})
    yield Asked("a wrong item first", RENDER, {"model": "m", "input": [7, SAID]})
    body = {"model": "m", "max_output_tokens": 2, "ignore_eos": True}
    yield Asked("a wrong item of a response", RESPONSES, {**body, "input": [{"type": "zzz"}]})
    yield Asked("a wrong item of a stream", RESPONSES, {**body, "input": [{"type": "zzz"}], "stream": True})


def _tools() -> Iterator[Asked]:
    for name, tools in TOOLS.items():
        asked = {"model": "m", "input": "hi", "tools": tools}
        yield Asked(f"tools: {name}", RENDER, asked)
        shown = {**asked, "max_output_tokens": 2, "ignore_eos": True, "tool_choice": "none", "cache_salt": name}
        yield Asked(f"tools of a response: {name}", RESPONSES, shown)
    for choice, tools in CHOICES:
        body = {"model": "m", "input": "hi", "tools": tools, "tool_choice": choice, "max_output_tokens": 2}
        yield Asked(f"choice {choice} of {len(tools)}", RESPONSES, body)
