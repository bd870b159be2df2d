"""The requests of the search that go through parsers."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from workshop.vllm_oracle.wire_search.said import Parsers

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
USER: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
LOOK = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "far": {"type": "integer"}},
    "required": ["at", "far"],
}
WAIT = {"type": "object", "properties": {"s": {"type": "number"}, "why": {"type": "string"}}, "required": ["s", "why"]}
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
FUNCTIONS = {"look": LOOK, "wait": WAIT}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "x", "far": 1}'}}
RESULT: list[dict[str, Any]] = [
    *USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "r"},
]


CALL_SHAPES = ("auto, seed 0", "required", "named", "after a result", "no arguments")
THOUGHT_SHAPES = ("usual", "hidden", "enable_thinking True", "enable_thinking False", "thinking False", "effort none")
PAIR_SHAPES = ("auto, seed 1", "after a result", "none", "usual with tools", "hidden with tools")
"""Questions for parsers of both kinds together."""
OTHER_SHAPES = ("auto, seed 1", "required", "usual")
"""Questions for other interfaces, too."""


class SearchRequest(NamedTuple):
    """One request; `known_by` is the chat request whose answer it has, for other interfaces."""

    name: str
    path: str
    body: Mapping[str, Any]
    chat: Mapping[str, Any]

    @property
    def choice(self) -> Any:
        """The choice of a tool."""
        return self.chat.get("tool_choice")

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar limits the number of calls that are up to the model."""
        return self.choice in (None, "auto") and self.chat.get("parallel_tool_calls") is False


def tools(functions: Mapping[str, Any] = FUNCTIONS) -> list[dict[str, Any]]:
    """Tools as chats have them."""
    return [{"type": "function", "function": {"name": n, "parameters": p}} for n, p in functions.items()]


def chat(**fields: Any) -> dict[str, Any]:
    """A chat that gives the same answer whenever it is asked."""
    return {"model": "m", "messages": USER, "seed": 1, "max_tokens": 600, **fields}


def questions(parsers: Parsers, seed: int = 0) -> Iterator[SearchRequest]:
    """All requests for one pair of parsers; another seed gives other answers."""
    bodies = {name: {**body, "seed": body["seed"] + seed} for name, body in _bodies(parsers)}
    for name, body in bodies.items():
        for stream in (False, True):
            kind = "stream" if stream else "whole"
            yield SearchRequest(f"{name}, {kind}", CHAT, {**body, "stream": stream}, body)
            yield from _others(name, kind, body, stream)


def shape_questions(parsers: Parsers) -> Iterator[SearchRequest]:
    """A few requests, most of them for streams, that show all of what a parser does."""
    bodies = dict(_bodies(parsers))
    if all(parsers):
        yield from (SearchRequest(name, CHAT, {**bodies[name], "stream": True}, bodies[name]) for name in PAIR_SHAPES)
        return
    for name in CALL_SHAPES if parsers.tool else THOUGHT_SHAPES:
        yield SearchRequest(name, CHAT, {**bodies[name], "stream": True}, bodies[name])
    for name in OTHER_SHAPES:
        if name in bodies:
            yield from _others(name, "stream", bodies[name], stream=True)
            if parsers.tool:
                yield from _others(name, "whole", bodies[name], stream=False)


def _bodies(parsers: Parsers) -> Iterator[tuple[str, dict[str, Any]]]:
    if parsers.tool:
        yield from _calls()
    if not parsers.tool:
        yield from _thoughts()
    elif parsers.reasoning:
        yield from ((f"{name} with tools", {**body, "tools": tools()}) for name, body in _thoughts())


def _calls() -> Iterator[tuple[str, dict[str, Any]]]:
    offered = {"tools": tools()}
    for seed in range(4):
        yield f"auto, seed {seed}", chat(**offered, seed=seed)
    yield "required", chat(**offered, tool_choice="required", seed=2)
    yield "named", chat(**offered, tool_choice={"type": "function", "function": {"name": "wait"}})
    yield "none", chat(**offered, tool_choice="none")
    yield "one at a time", chat(**offered, parallel_tool_calls=False, seed=3)
    yield "after a result", chat(**offered, messages=RESULT)
    yield "no arguments", chat(tools=tools({"stop": NO_ARGUMENTS}))
    yield "no tools", chat()
    yield "with usage", chat(**offered, stream_options={"include_usage": True, "continuous_usage_stats": True})


def _thoughts() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "usual", chat()
    yield "hidden", chat(include_reasoning=False)
    for name, value in (("enable_thinking", True), ("enable_thinking", False), ("thinking", True), ("thinking", False)):
        yield f"{name} {value}", chat(chat_template_kwargs={name: value})
    for effort in ("none", "low", "high"):
        yield f"effort {effort}", chat(reasoning_effort=effort)
    yield "with usage", chat(stream_options={"include_usage": True, "continuous_usage_stats": True})
    yield "no budget", chat(thinking_token_budget=-1)


def _others(name: str, kind: str, body: Mapping[str, Any], stream: bool) -> Iterator[SearchRequest]:
    """Return the question for the interfaces of other makers, where they can put it."""
    if name in ("auto, seed 1", "auto, seed 2", "usual", "no tools"):
        known = {**body, "add_special_tokens": True}
        asked: dict[str, Any] = {"model": "m", "input": "hi", "seed": body["seed"], "max_output_tokens": 600}
        functions = [
            {"type": "function", "name": each["function"]["name"], "parameters": each["function"]["parameters"]}
            for each in body.get("tools") or ()
        ]
        yield SearchRequest(
            f"response {name}, {kind}", RESPONSES, {**asked, "tools": functions, "stream": stream}, known
        )
    if name in ("auto, seed 1", "required", "usual", "no tools"):
        yield from _message(name, kind, body, stream)


def _message(name: str, kind: str, body: Mapping[str, Any], stream: bool) -> Iterator[SearchRequest]:
    # A message has no seed, so that its answer is repeatable only without temperature.
    known = {**body, "temperature": 0, "max_completion_tokens": 600}
    known.pop("seed")
    asked: dict[str, Any] = {"model": "m", "messages": USER, "max_tokens": 600, "temperature": 0, "stream": stream}
    if "tools" in body:
        asked["tools"] = [
            {"name": each["function"]["name"], "input_schema": each["function"]["parameters"]} for each in body["tools"]
        ]
    if name == "required":
        asked["tool_choice"] = {"type": "any"}
    yield SearchRequest(f"message {name}, {kind}", MESSAGES, asked, known)
