"""Bodies that differ in their prompt only: what is made of them is the same as if each were read by itself."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mockserve.protocol.completions import (
    MAX_CACHED,
    chat_body_cache,
    completion_body_cache,
    parse_chat,
    parse_completion,
)
from mockserve.protocol.errors import ApiError

VALUES = st.sampled_from(
    [None, True, False, 0, 1, 2, -1, 1.0, 0.5, float("nan"), 10**30, "1", "x", [], [1], {}, {"include_usage": True}]
)
FIELDS = st.dictionaries(
    st.sampled_from(["model", "max_tokens", "n", "seed", "stream", "stream_options", "temperature", "echo", "stop",
                     "logprobs", "top_logprobs", "add_generation_prompt", "continue_final_message", "unknown"]),
    VALUES,
    max_size=3,
)  # fmt: skip
PROMPTS = st.sampled_from(["hi", "there", "", "\ud800", None, [1, 2], ["a", "b"], 5, []])
CONTENTS = st.sampled_from(["hi", "there", None, 3, [{"type": "text", "text": "x"}], [{"type": "odd"}]])
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "x", 4]), "content": CONTENTS},
    optional={"name": st.just("n")},
)
MESSAGES = st.one_of(st.lists(st.one_of(MESSAGE, st.just("no object")), max_size=2), st.none(), st.just("hi"))


def outcome(parse: Callable[[dict[str, Any]], Any], body: dict[str, Any]) -> Any:
    """Return a parsed body as text, because a NaN does not equal itself."""
    try:
        return repr(parse(body))
    except ApiError as error:
        return repr(error.body())
    except AttributeError as error:  # of bodies that are refused elsewhere
        return repr(error)


@given(st.lists(st.tuples(FIELDS, PROMPTS), min_size=2, max_size=6))
def test_cached_completions_equal_parsed_ones(bodies: list[tuple[dict[str, Any], Any]]) -> None:
    known = completion_body_cache()
    for fields, prompt in [*bodies, *bodies]:
        body = {**fields, "prompt": prompt}
        assert outcome(known.parse, body) == outcome(parse_completion, body)


@given(st.lists(st.tuples(FIELDS, MESSAGES), min_size=2, max_size=6))
def test_cached_chats_equal_parsed_ones(bodies: list[tuple[dict[str, Any], Any]]) -> None:
    known = chat_body_cache(lambda body: None)
    for fields, messages in [*bodies, *bodies]:
        body = {**fields, "messages": messages}
        assert outcome(known.parse, body) == outcome(parse_chat, body)


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0, False), ("1", 1)])
def test_equal_values_of_different_types_are_different_bodies(one: object, other: object) -> None:
    known = completion_body_cache()
    for value in (one, other):
        body = {"prompt": "a", "stream": value, "max_tokens": value}
        assert outcome(known.parse, body) == outcome(parse_completion, body)


def test_cached_bodies_are_shared_and_bounded() -> None:
    known = completion_body_cache()
    first = known.parse({"prompt": "a", "max_tokens": 1})
    assert known.parse({"prompt": "b", "max_tokens": 1}).sampling is first.sampling
    for seed in range(2 * MAX_CACHED):
        assert known.parse({"prompt": "a", "seed": seed}).sampling.seed == seed
        assert len(known._cache) <= MAX_CACHED


class Body(dict[str, Any]):
    """A body that can be watched."""


def test_no_text_of_a_client_is_kept() -> None:
    messages = [{"role": "user", "content": "secret"}]
    known = chat_body_cache(lambda body: None)
    bodies = [Body(model="m", messages=messages), Body(model="m", messages=messages)]
    kept = [weakref.ref(each) for each in bodies]
    assert [known.parse(each).messages for each in bodies] == [messages, messages]
    del bodies
    gc.collect()
    assert [each() for each in kept] == [None, None]
