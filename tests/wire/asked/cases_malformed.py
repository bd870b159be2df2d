"""Requests with mistakes in places that are looked at late: calls in messages, budgets of tokens, calls of workers."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.wire.asked.cases_prompts import CHAT, TOKENIZE, USER
from tests.wire.asked.setups import Asked

TEXT, GENERATE, WORKERS = "/v1/completions", "/inference/v1/generate", "/collective_rpc"
HALF = "\ud800"
CALL: dict[str, Any] = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS: tuple[Any, ...] = (
    *("x", 7, True, 1.5, None, {"a": 1}, [7], [{}], [None], [[]], [CALL], [{**CALL, "function": {}}], [{"id": "a"}]),
    *([{**CALL, "function": each}] for each in (None, "x", {"name": "f"}, {"name": 7, "arguments": 7})),
    [{"type": "custom", "custom": {"name": "a", "input": "b"}, "id": "x"}],
    [CALL, {**CALL, "id": "a value that is longer than fifty characters, so that it is cut", "type": 7}],
)
WORKER_CALLS: tuple[dict[str, Any], ...] = (
    {"method": HALF},
    {"method": "x", "args": [HALF]},
    {"method": "x", "kwargs": {HALF: 1}},
    {"method": "x", "timeout": HALF},
    {"method": "x", "other": HALF},
    {"method": "x", "args": ["a"], "kwargs": {"b": 1}},
)


def malformed_cases() -> Sequence[Asked]:
    """All of them."""
    return [*_calls(), *_budgets(), *_suffixes(), *(Asked(f"workers {each}", WORKERS, each) for each in WORKER_CALLS)]


def _calls() -> Iterator[Asked]:
    for calls in CALLS:
        messages = [*USER, {"role": "assistant", "content": "x", "tool_calls": calls}]
        body = {"model": "m", "messages": messages, "max_tokens": 1, "ignore_eos": True}
        yield Asked(f"calls {calls}", CHAT, body)
        yield Asked(f"rendered calls {calls}", f"{CHAT}/render", body)
        yield Asked(f"calls of a batch {calls}", f"{CHAT}/batch", {**body, "messages": [messages]})
        yield Asked(f"tokenized calls {calls}", TOKENIZE, {"model": "m", "messages": messages})


def _budgets() -> Iterator[Asked]:
    for budget in (None, 0, 1, -1, -2, 2**31, "3", True):
        for stream in (False, True):
            given = {"max_tokens": 2, "ignore_eos": True, "thinking_token_budget": budget}
            body = {"model": "m", "token_ids": [5], "sampling_params": given, "stream": stream}
            yield Asked(f"budget {budget!r}, {'stream' if stream else 'whole'}", GENERATE, body)


def _suffixes() -> Iterator[Asked]:
    for echo in (False, True):
        yield Asked(f"suffix, echo {echo}", TEXT, {"model": "m", "prompt": "hi", "suffix": "x", "echo": echo})
