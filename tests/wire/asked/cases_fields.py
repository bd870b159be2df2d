"""Requests about single fields: limits and defaults, beams, ids, vocabulary, embeddings, errors within streams."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.wire.asked.cases_prompts import CHAT, COUNT, USER
from tests.wire.asked.folders import VOCABULARY_SIZE
from tests.wire.asked.setups import Asked

TEXT, GENERATE, RESPONSES, MESSAGES = "/v1/completions", "/inference/v1/generate", "/v1/responses", "/v1/messages"
LAST_ID = VOCABULARY_SIZE - 1
THOUGHT = "<think>aaa</think>bbb"


def chat(**fields: Any) -> dict[str, Any]:
    """A chat of fixed length."""
    return {"model": "m", "messages": USER, "max_tokens": 3, "ignore_eos": True, **fields}


def text(**fields: Any) -> dict[str, Any]:
    """A completion of fixed length."""
    return {"model": "m", "prompt": "hi", "max_tokens": 3, "ignore_eos": True, **fields}


def tokens(stream: bool = False, **fields: Any) -> dict[str, Any]:
    """Tokens that go on from one token."""
    return {"model": "m", "token_ids": [5], "sampling_params": {"ignore_eos": True, **fields}, "stream": stream}


def limit_cases() -> Sequence[Asked]:
    """Limits of output tokens and sampling fields that are left open."""
    open_chat = {"model": "m", "messages": USER, "ignore_eos": True}
    response = {"model": "m", "input": "hi", "ignore_eos": True}
    return [
        Asked("chat without a limit", CHAT, open_chat),
        Asked("chat with a limit", CHAT, {**open_chat, "max_tokens": 20}),
        Asked("chat with a limit beyond the context", CHAT, {**open_chat, "max_tokens": 5000}),
        Asked("text without a limit", TEXT, {"model": "m", "prompt": "hi", "ignore_eos": True}),
        Asked("text with a limit", TEXT, text(max_tokens=20)),
        Asked("response without a limit", RESPONSES, response),
        Asked("response with a limit", RESPONSES, {**response, "max_output_tokens": 20}),
        Asked(
            "response with sampling", RESPONSES, {**response, "max_output_tokens": 2, "temperature": 0.9, "top_p": 1}
        ),
        Asked("render", f"{CHAT}/render", {"model": "m", "messages": USER}),
        Asked("render with sampling", f"{CHAT}/render", {"model": "m", "messages": USER, "temperature": 0, "top_k": 9}),
        Asked("render text", f"{TEXT}/render", {"model": "m", "prompt": "hi"}),
        Asked("tokens without a limit", GENERATE, tokens()),
        Asked("tokens with a limit", GENERATE, tokens(max_tokens=20)),
    ]


def field_cases() -> Sequence[Asked]:
    """Everything that a server without parsers answers."""
    both = [each for stream in (False, True) for each in _streamable(stream)]
    thinking: tuple[dict[str, Any], ...] = (
        {"type": "enabled", "budget_tokens": 1024},
        {"type": "disabled"},
        {"type": "adaptive"},
    )
    counts = [Asked(f"count {each}", COUNT, {"model": "m", "messages": USER, "thinking": each}) for each in thinking]
    pause = [
        Asked("pause", "/pause"),
        *(each for stream in (False, True) for each in _while_paused(stream)),
        Asked("resume", "/resume"),
    ]
    return [*both, *counts, *pause]


def _streamable(stream: bool) -> Iterator[Asked]:
    def asked(name: str, path: str, body: dict[str, Any]) -> Asked:
        return Asked(f"{name}, {'stream' if stream else 'whole'}", path, {**body, "stream": stream})

    yield asked("budget, chat", CHAT, chat(thinking_token_budget=5))
    yield asked("no budget, chat", CHAT, chat(thinking_token_budget=-1))
    yield asked("budget, text", TEXT, text(thinking_token_budget=5))
    yield asked("budget, message", MESSAGES, {"model": "m", "messages": USER, "max_tokens": 2000, **_THINKS})
    for name, given in (("last", LAST_ID), ("too large", LAST_ID + 1), ("negative", -1)):
        yield asked(f"stop token, {name}", CHAT, chat(stop_token_ids=[given]))
        yield asked(f"stop token, {name}, text", TEXT, text(stop_token_ids=[given]))
        yield asked(f"biased token, {name}", CHAT, chat(logit_bias={str(given): 1}))
        if given != LAST_ID:  # which is allowed, and then said or not
            yield asked(f"allowed token, {name}", TEXT, text(allowed_token_ids=[given, 5]))
        yield asked(f"prompt token, {name}", TEXT, text(prompt=[5, given]))
        yield asked(f"stop token, {name}, generate", GENERATE, tokens(stream, stop_token_ids=[given], max_tokens=3))
    yield from (asked(*each) for each in _echoes())
    for own_id in ("", "abc", None):
        yield asked(f"id {own_id!r}, chat", CHAT, chat(request_id=own_id))
        yield asked(f"id {own_id!r}, text", TEXT, text(request_id=own_id))
        response = {"model": "m", "input": "hi", "max_output_tokens": 2, "ignore_eos": True}
        yield asked(f"id {own_id!r}, response", RESPONSES, {**response, "request_id": own_id})
        yield asked(f"id {own_id!r}, tokens", GENERATE, {**tokens(stream, max_tokens=2), "request_id": own_id})
    yield from (asked(*each) for each in _embeddings())


_THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


def _echoes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    last: tuple[dict[str, Any], ...] = (
        {"role": "assistant", "content": "well, "},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "u"},
    )
    for each in last:
        yield f"echo of {each}", CHAT, chat(messages=[*USER, each], echo=True, add_generation_prompt=False)
    yield "echo of text", TEXT, text(echo=True)
    yield "echo alone", TEXT, text(echo=True, max_tokens=0)


def _embeddings() -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "embeddings", TEXT, {"model": "m", "prompt_embeds": "AAAA", "max_tokens": 2}
    yield "embeddings and text", TEXT, text(prompt_embeds=["AAAA"])
    yield "empty embeddings", TEXT, text(prompt_embeds="")
    yield "no embeddings", TEXT, text(prompt_embeds=[])
    yield "echo of embeddings", TEXT, {"model": "m", "prompt_embeds": "AAAA", "echo": True}
    for part in ({"type": "prompt_embeds", "data": "AAAA"}, {"type": "prompt_embeds"}):
        parts = [{"type": "text", "text": "a"}, part]
        yield f"part {part}", CHAT, chat(messages=[{"role": "user", "content": parts}])


def beam_cases() -> Sequence[Asked]:
    """Beam search, which passes few fields on."""
    return [
        Asked(f"{name}, {'stream' if stream else 'whole'}", path, {**body, "stream": stream})
        for stream in (False, True)
        for name, path, body in _beams()
    ]


def _beams() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for fields in (
        {},
        {"stop": ["a"]},
        {"max_tokens": 0},
        {"n": 0},
        {"n": 1},
        {"n": 11, "max_tokens": 1},
        {"temperature": 3},
        {"top_p": 3},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"response_format": {"type": "json_object"}},
        {"thinking_token_budget": 5},
        {"prompt_logprobs": 1},
        {"echo": True},
        {"max_tokens": 0, "echo": True},
        {"return_token_ids": True},
    ):
        given: dict[str, Any] = {"use_beam_search": True, "n": 2, **fields}
        if "prompt_logprobs" not in given:
            yield f"beams {fields}", CHAT, chat(**given)
        yield f"beams of text {fields}", TEXT, text(**given)
    yield "beams with log-probabilities", CHAT, chat(use_beam_search=True, n=2, logprobs=True, top_logprobs=1)


def _while_paused(stream: bool) -> Iterator[Asked]:
    for name, path, body in (
        ("chat", CHAT, chat()),
        ("text", TEXT, text()),
        ("tokens", GENERATE, tokens()),
        ("message", MESSAGES, {"model": "m", "messages": USER, "max_tokens": 2}),
        ("response", RESPONSES, {"model": "m", "input": "hi", "max_output_tokens": 2}),
    ):
        # A paused server closes the connection of a response that streams, after an error of its own.
        if not (stream and name == "response"):
            yield Asked(f"paused: {name}, {'stream' if stream else 'whole'}", path, {**body, "stream": stream})


def thinking_cases() -> Sequence[Asked]:
    """A parser of reasoning that only reads it where the request switches it on."""
    found = []
    for stream in (False, True):
        kind = "stream" if stream else "whole"
        body = {**chat(max_tokens=8), "stream": stream}
        found.append(Asked(f"no arguments, {kind}", CHAT, body))
        found.append(Asked(f"thinking false, {kind}", CHAT, {**body, "chat_template_kwargs": {"thinking": False}}))
        for switch in ("thinking", "enable_thinking"):
            switched = {**body, "chat_template_kwargs": {switch: True}}
            found.append(Asked(f"{switch}, {kind}", CHAT, switched, said=THOUGHT))
        found.append(Asked(f"effort, {kind}", CHAT, {**body, "reasoning_effort": "high"}, said=THOUGHT))
    return found
