"""Anthropic's client reads whole messages and every event of streams."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.lazy import LazyModule
from tests.wire.serving import running_server

pytestmark = pytest.mark.skipif(find_spec("anthropic") is None, reason="Anthropic's client is not installed")
anthropic: Any = LazyModule("anthropic")

MESSAGES = [{"role": "user", "content": "hello there"}]
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        running_server(
            enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="deepseek_r1"
        ) as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as found,
    ):
        yield found


def test_the_client_gets_a_message(client: Any) -> None:
    message = client.messages.create(model="m", max_tokens=300, system="be brief", messages=MESSAGES)
    assert [each.type for each in message.content] == ["thinking", "text"]
    assert (message.role, message.stop_reason in ("end_turn", "max_tokens")) == ("assistant", True)


def test_the_client_puts_a_stream_together(client: Any) -> None:
    with client.messages.stream(model="m", max_tokens=300, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert [each.type for each in message.content] == ["thinking", "text"]
    assert message.content[1].text == text
    assert message.usage.output_tokens > 10


def test_the_client_calls_a_tool_and_answers_with_its_result(client: Any) -> None:
    asked = {"model": "m", "max_tokens": 500, "tools": [TOOL]}
    message = client.messages.create(**asked, tool_choice={"type": "any"}, messages=MESSAGES)
    assert message.stop_reason == "tool_use"
    call = next(each for each in message.content if each.type == "tool_use")
    assert isinstance(call.input["x"], int)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "42"}
    turns = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    assert client.messages.create(**asked, messages=turns).content[-1].type == "text"


def test_the_client_streams_the_input_of_a_tool(client: Any) -> None:
    with client.messages.stream(
        model="m", max_tokens=500, tools=[TOOL], tool_choice={"type": "any"}, messages=MESSAGES
    ) as stream:
        message = stream.get_final_message()
    assert isinstance(next(each for each in message.content if each.type == "tool_use").input["x"], int)


def test_the_client_counts_tokens(client: Any) -> None:
    counted = client.messages.count_tokens(model="m", messages=MESSAGES).input_tokens
    assert client.messages.create(model="m", max_tokens=5, messages=MESSAGES).usage.input_tokens == counted


def test_the_client_raises_its_own_errors(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="The model `nope` does not exist"):
        client.messages.create(model="nope", max_tokens=5, messages=MESSAGES)
    with pytest.raises(anthropic.BadRequestError, match="must be positive"):
        client.messages.create(model="m", max_tokens=-1, messages=MESSAGES)
