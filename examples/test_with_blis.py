"""Tests of one's own client against `blis serve`, by the fixture of the pytest plugin. The tests take a few seconds.

pip install . pytest openai
pytest examples/test_with_blis.py
"""

from typing import Any

import openai
import pytest

from blis_sim.testing import Server


def client(server: Server, fault: str = "") -> openai.OpenAI:
    headers = {"X-Blis-Fault": fault} if fault else {}
    return openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, default_headers=headers)


def test_the_answer_has_the_length_that_was_asked_for(blis_server: Server) -> None:
    reply = client(blis_server).chat.completions.create(
        model="qwen/qwen3-14b", messages=[{"role": "user", "content": "Why?"}], max_tokens=20
    )
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens <= 20


def test_a_stream_has_its_usage_in_the_last_chunk(blis_server: Server) -> None:
    stream = client(blis_server).completions.create(
        model="qwen/qwen3-14b", prompt="The sky is", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    *_, last = stream
    assert last.usage is not None
    assert last.usage.completion_tokens == 5


def test_a_rate_limit_is_an_error_with_the_time_to_come_back(blis_server: Server) -> None:
    asking = client(blis_server, fault="rate_limit; retry_after_s=7")
    with pytest.raises(openai.RateLimitError) as error:
        asking.completions.create(model="qwen/qwen3-14b", prompt="Hi")
    assert error.value.response.headers["Retry-After"] == "7"


def test_the_client_calls_a_tool_and_passes_its_result_on(blis_server: Server) -> None:
    blis_server.reply("It is sunny in Paris.", tool_result="22 C")
    blis_server.reply(tool_calls=[{"name": "weather", "arguments": {"city": "Paris"}}], times=1)
    messages: list[Any] = [{"role": "user", "content": "Weather in Paris?"}]
    asked = client(blis_server).chat.completions.create(model="qwen/qwen3-14b", messages=messages)
    message = asked.choices[0].message
    assert message.tool_calls is not None
    call: Any = message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("weather", '{"city":"Paris"}')
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "22 C"}]
    told = client(blis_server).chat.completions.create(model="qwen/qwen3-14b", messages=messages)
    assert told.choices[0].message.content == "It is sunny in Paris."
    assert [each.last_user for each in blis_server.requests] == ["Weather in Paris?"] * 2


def test_a_stream_that_breaks_off_is_an_error(blis_server: Server) -> None:
    blis_server.reply("one two three four five six", fault="disconnect; after_events=3")
    stream = client(blis_server).completions.create(model="qwen/qwen3-14b", prompt="Count.", stream=True)
    assert [next(stream).choices[0].text for _ in range(3)] == ["one", " two", " three"]
    with pytest.raises(openai.APIConnectionError):
        next(stream)


def test_a_client_that_retries_gets_through_an_overloaded_server(blis_server: Server) -> None:
    blis_server.set_faults(rates={"overloaded": 0.5}, retry_after_s=0)
    retrying = client(blis_server).with_options(max_retries=20)
    reply = retrying.completions.create(model="qwen/qwen3-14b", prompt="Hi", max_tokens=3)
    assert reply.usage is not None
    assert blis_server.count("vllm:request_success_total") == 1
