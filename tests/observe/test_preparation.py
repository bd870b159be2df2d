from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from observe.body import RequestStyle
from observe.client import Client
from observe.errors import RunError
from observe.http import parse_server
from observe.requests import TokenScale
from observe.server import ServerQueries

Answering = Callable[..., Any]


@pytest.fixture
def answering(aiohttp_server: Callable[..., Any]) -> Answering:
    """Makes a preparation for a server that gives these answers, one after the other, to whatever is asked."""

    async def prepared(*answers: web.Response) -> ServerQueries:
        left = list(answers)

        async def answer(_: web.Request) -> web.Response:
            return left.pop(0)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        server = await aiohttp_server(app)
        client = Client(parse_server(str(server.make_url("/"))), timeout_s=5, num_spare=1)
        return ServerQueries(client, {})

    return prepared


def counted(prompt_tokens: int) -> web.Response:
    return web.json_response({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": 1}})


async def test_the_first_listed_model_is_found(answering: Answering) -> None:
    preparation = await answering(web.json_response({"data": [{"id": "a"}, {"id": "b"}]}))
    assert await preparation.first_model() == "a"
    await preparation.client.close()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"text": '{"data": [{"id": "a", "max_model_len": 10}, {"id": "b", "max_model_len": 20}]}'}, 20),
        ({"text": '{"data": [{"id": "a", "max_model_len": 10}, {"id": "b"}]}'}, None),
        ({"text": '{"data": [{"id": "a", "max_model_len": 10}]}'}, None),
        ({"text": '{"data": {"b": 3}}'}, None),
        ({"status": 404, "text": "not here"}, None),
    ],
)
async def test_the_context_of_a_model_is_what_the_server_lists(
    answer: dict[str, Any], found: int | None, answering: Answering
) -> None:
    preparation = await answering(web.Response(**answer))
    assert await preparation.context_tokens("b") == found
    await preparation.client.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"status": 404, "text": "not here"}, "HTTP 404: not here"),
        ({"text": '{"data": []}'}, "no model is listed there"),
        ({"text": "[1]"}, "malformed answer: expected a JSON object as the answer"),
    ],
)
async def test_without_a_list_of_models_the_model_must_be_given(
    answer: dict[str, Any], reason: str, answering: Answering
) -> None:
    preparation = await answering(web.Response(**answer))
    with pytest.raises(RunError, match=r"/v1/models for the model, give --model: ") as error:
        await preparation.first_model()
    assert str(error.value).endswith(reason)
    await preparation.client.close()


async def test_tokens_around_the_words_are_separated_from_the_words(answering: Answering) -> None:
    preparation = await answering(counted(130), counted(250))
    assert await preparation.token_scale(RequestStyle(model="m")) == TokenScale(1.2, 10)
    await preparation.client.close()


async def test_an_unbelievable_count_is_a_warning(answering: Answering, capsys: pytest.CaptureFixture[str]) -> None:
    preparation = await answering(counted(5), counted(5))
    assert await preparation.token_scale(RequestStyle(model="m")) == TokenScale()
    assert capsys.readouterr().err == (
        "warning: prompts have one word per token, as the server gave 5 tokens for 100 words\n"
    )
    await preparation.client.close()


@pytest.mark.parametrize("status", [401, 404])
async def test_a_server_that_refuses_on_principle_ends_the_run(status: int, answering: Answering) -> None:
    preparation = await answering(web.Response(status=status, text="no\nmodel m"))
    with pytest.raises(RunError, match=rf"/v1/completions answered HTTP {status}: no model m$"):
        await preparation.token_scale(RequestStyle(model="m"))
    await preparation.client.close()


async def test_the_round_trip_is_the_shortest_of_ten_whatever_is_answered(answering: Answering) -> None:
    preparation = await answering(*(web.Response(status=404) for _ in range(10)))
    assert 0 < await preparation.round_trip_ms() < 100
    await preparation.client.close()
