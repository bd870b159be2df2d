"""Requests as programs of users send them, drawn by a seed, each with what the model says to it."""

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, NamedTuple

from workshop.vllm_oracle.equal_words.texts import ARGUMENTS, PLAIN

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
MOST_TOKENS = 600
_CUTS = ("stop", "stop_sequences", "include_stop_str_in_output", "min_tokens")
STOPS = (["\n\n"], ["Europe", "water"], ["."], ["million con"], ["```"], ["🌤️"], ["zzz"], ["</b>", "a"])


class SaidRequest(NamedTuple):
    """One request. Its last user message is `asked`, which no other request has, and the model says `said`.

    `said` is None where our server has to answer first, with calls or reasoning, and the other says the same.
    """

    client: str
    path: str
    body: Mapping[str, Any]
    asked: str
    said: str | None
    headers: Mapping[str, str] = {}

    @property
    def mark(self) -> str:
        """The key of the answer in the prompt."""
        return self.asked.partition("]]")[0].removeprefix("[[")


Body = dict[str, Any]


def _schema(name: str) -> Body:
    kinds = {str: "string", int: "integer", bool: "boolean", list: "array", dict: "object"}
    properties = {key: {"type": kinds.get(type(value), "null")} for key, value in ARGUMENTS[name].items()}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _functions(random: Random) -> list[str]:
    return sorted(ARGUMENTS) if random.random() < 0.7 else ["weather"]


def _tools(random: Random) -> list[Body]:
    return [
        {"type": "function", "function": {"name": name, "description": name, "parameters": _schema(name)}}
        for name in _functions(random)
    ]


def _sampling(random: Random, is_text: bool = False) -> Body:
    """Return settings that programs send, few at a time."""
    choices: list[Body] = [
        {},
        {"temperature": 0},
        {"temperature": 0.7, "top_p": 0.9},
        {"presence_penalty": 0, "frequency_penalty": 0, "user": "u1"},
        {"stop": random.choice(STOPS)},
        {"stop": random.choice(STOPS), "include_stop_str_in_output": True},
        {"max_tokens": random.choice((1, 3, 8, 40))},
        {"min_tokens": 2},
        {"seed": 7, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1},
        {"logprobs": 2} if is_text else {"logprobs": True, "top_logprobs": random.choice((0, 3))},
        {"return_token_ids": True},
        {"stream_interval": random.choice((2, 5))},
    ]
    return {"max_tokens": 200} | random.choice(choices) | (random.choice(choices) if random.random() < 0.3 else {})


def _stream(random: Random) -> Body:
    options: tuple[Body, ...] = (
        {},
        {"stream": False},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    )
    return random.choice(options)


def _turns(random: Random, asked: str) -> list[Body]:
    system: list[Body] = [{"role": "system", "content": "You are a helpful assistant."}]
    earlier: list[Body] = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi, what is it?"}]
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    used: list[Body] = [
        {"role": "user", "content": "Bern?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    content: Any = asked if random.random() < 0.7 else [{"type": "text", "text": asked}]
    before = random.choice(([], system, [*system, *earlier], [*system, *used]))
    return [*before, {"role": "user", "content": content}]


def _chat(random: Random, asked: str) -> Body:
    return {"model": "m", "messages": _turns(random, asked), **_sampling(random), **_stream(random)}


def _agent(random: Random, asked: str) -> Body:
    body = {"model": "m", "messages": _turns(random, asked), "tools": _tools(random), "max_tokens": 400}
    settings: list[Body] = [{}, {"parallel_tool_calls": True}, {"tool_choice": "auto"}, {"temperature": 0}]
    return {**body, **random.choice(settings), **_stream(random)}


def _text(random: Random, asked: str) -> Body:
    return {"model": "m", "prompt": asked, **_sampling(random, is_text=True), **_stream(random)}


def _response(random: Random, asked: str) -> Body:
    content = [{"type": "input_text", "text": asked}]
    given: Any = random.choice((asked, [{"role": "user", "content": asked}], [{"role": "user", "content": content}]))
    settings: list[Body] = [
        {},
        {"instructions": "Be brief."},
        {"store": False, "parallel_tool_calls": False, "include": [], "reasoning": None},
        {"max_output_tokens": random.choice((2, 9))},
        {"temperature": 0.2, "metadata": {"a": "b"}, "truncation": "auto"},
        {"stop": random.choice(STOPS)},
        {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    ]
    return {"model": "m", "input": given, **random.choice(settings), "stream": random.random() < 0.6}


def _response_agent(random: Random, asked: str) -> Body:
    tools = [{"type": "function", "name": name, "parameters": _schema(name)} for name in _functions(random)]
    return {"model": "m", "input": asked, "tools": tools, "stream": random.random() < 0.6}


def _message(random: Random, asked: str) -> Body:
    block = {"type": "text", "text": asked, "cache_control": {"type": "ephemeral"}}
    content: Any = asked if random.random() < 0.5 else [block]
    settings: list[Body] = [
        {},
        {"system": "You are Ada."},
        {"system": [{"type": "text", "text": "You are Ada."}], "metadata": {"user_id": "u"}, "temperature": 1},
        {"stop_sequences": random.choice(STOPS)},
        {"max_tokens": random.choice((1, 6))},
    ]
    body = {"model": "m", "max_tokens": 300, "messages": [{"role": "user", "content": content}]}
    return {**body, **random.choice(settings), "stream": random.random() < 0.6}


def _message_agent(random: Random, asked: str) -> Body:
    tools = [{"name": name, "description": name, "input_schema": _schema(name)} for name in _functions(random)]
    return {**_message(random, asked), "max_tokens": 400, "tools": tools}


_ANTHROPIC = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
_OPENAI = {"authorization": "Bearer k", "user-agent": "OpenAI/Python 2.0", "x-stainless-lang": "python"}
CLIENTS: Mapping[str, tuple[str, Callable[[Random, str], Body], Mapping[str, str]]] = {
    "chat window": (CHAT, _chat, {}),
    "library": (CHAT, _chat, _OPENAI),
    "agent": (CHAT, _agent, _OPENAI),
    "editor": (TEXT, _text, {}),
    "response": (RESPONSES, _response, _OPENAI),
    "agent of responses": (RESPONSES, _response_agent, _OPENAI),
    "message": (MESSAGES, _message, _ANTHROPIC),
    "agent of messages": (MESSAGES, _message_agent, _ANTHROPIC),
}
"""Kinds of clients: where they ask, what, and with which headers."""


def drawn_requests(seed: int, count: int, reasons: bool = False, offers_tools: bool = True) -> Iterator[SaidRequest]:
    """Yield `count` requests; equal seeds give equal ones. With `reasons` our server answers all chats first."""
    random = Random(seed)
    clients = [each for each in sorted(CLIENTS) if offers_tools or not each.startswith("agent")]
    for number in range(count):
        client = random.choice(clients)
        path, body_of, headers = CLIENTS[client]
        asked = f"[[q{seed}x{number}]] Tell me about it."
        body = body_of(random, asked)
        calls = client.startswith("agent") and random.random() < 0.7
        answers_first = calls or (reasons and path != TEXT)
        if answers_first:  # our server gives the same answer twice, and all of it
            kept = {name: value for name, value in body.items() if name not in _CUTS}
            limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
            body = {**kept, "temperature": 0, limit: MOST_TOKENS}
        said = None if answers_first else PLAIN[random.choice(sorted(PLAIN))]
        yield SaidRequest(client, path, body, asked, said, headers)
