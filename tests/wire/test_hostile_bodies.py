"""Hostile bodies get the status and message of a genuine vLLM server.

Errors of status 500 stand here where vLLM fails, too: a client that relies on the words of one server gets the words of
the other.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fakes import TestLatency
from tests.patience import PATIENCE_S, wait_until
from tests.wire.plain_http import call, open_request, read_until
from tests.wire.serving import TestServer, running_server

DIGITS, DEEP_LIST = b"1" * 5000, b"[" * 100_000
DEEP_OBJECT = b'{"a":' * 2000 + b"1" + b"}" * 2000
HALF_PAIR, HALF_PAIR_KEY = rb'"\ud800"', rb'{"\ud800": 1}'
TOO_MANY_DIGITS = (
    "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; "
    "use sys.set_int_max_str_digits() to increase the limit"
)
TOO_DEEP_LIST = "maximum recursion depth exceeded while decoding a JSON array from a unicode string"
TOO_DEEP_OBJECT = "maximum recursion depth exceeded while decoding a JSON object from a unicode string"
NO_TEXT = "Input should be a valid string, unable to parse raw data as a unicode string"
TOO_LARGE = "Unable to parse input string as an integer, exceeded maximum size"
USER = b'"messages":[{"role":"user","content":"hi"}]'
ROUTES = {
    "/v1/completions": b'"model":"m","prompt":"hi"',
    "/v1/chat/completions": b'"model":"m",' + USER,
    "/v1/chat/completions/batch": b'"model":"m","messages":[[{"role":"user","content":"hi"}]]',
    "/v1/responses": b'"model":"m","input":"hi"',
    "/v1/messages": b'"model":"m","max_tokens":2,' + USER,
    "/v1/messages/count_tokens": b'"model":"m",' + USER,
    "/tokenize": b'"model":"m","prompt":"hi"',
    "/detokenize": b'"model":"m","tokens":[5]',
    "/v1/chat/completions/render": b'"model":"m",' + USER,
    "/v1/completions/render": b'"model":"m","prompt":"hi"',
    "/v1/messages/render": b'"model":"m","max_tokens":2,' + USER,
    "/v1/responses/render": b'"model":"m","input":"hi"',
    "/inference/v1/generate": b'"model":"m","token_ids":[5],"sampling_params":{"max_tokens":2}',
    "/v1/chat/completions/derender": b'"model":"m","generate_response":{"choices":[{"index":0,"token_ids":[5]}]}',
    "/v1/completions/derender": b'"model":"m","generate_responses":[{"choices":[{"index":0,"token_ids":[5]}]}]',
    "/v1/load_lora_adapter": b'"lora_name":"a","lora_path":"/a"',
    "/v1/unload_lora_adapter": b'"lora_name":"a"',
}
"""Routes that the web framework reads the body of, with the fields of a valid one."""
READ_BY_ROUTE = ("/invocations", "/scale_elastic_ep", "/inference/v1/abort_requests", "/collective_rpc")
"""Routes that read their body by themselves."""


@pytest.fixture(scope="module")
def server() -> Iterator[TestServer]:
    """A server that has every generating route."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
        with running_server(enable_scale_out=True, enable_lora=True) as running:
            yield running


def envelope(status: int, message: str, param: str | None = None, kind: str = "") -> tuple[int, Any]:
    kind = kind or ("InternalServerError" if status == 500 else "BadRequestError")
    return status, {"error": {"message": message, "type": kind, "param": param, "code": status}}


def wrong_field(kind: str, location: str, message: str, shown: str) -> tuple[int, Any]:
    described = {"type": kind, "loc": location, "msg": message, "input": shown}
    return envelope(400, f"1 validation error:\n  {described}", location, "Bad Request")


def answer(server: TestServer, path: str, body: bytes) -> tuple[int, Any]:
    reply = call(server, "POST", path, body)
    return reply.status, reply.json


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [each for each in caplog.records if each.exc_info]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("value", [DIGITS, DEEP_LIST, DEEP_OBJECT, b'"\xff"'], ids=["digits", "list", "object", "utf8"])
def test_refuses_what_the_web_framework_cannot_read(server: TestServer, path: str, value: bytes) -> None:
    body = b"{" + ROUTES[path] + b',"unknown":' + value + b"}"
    assert answer(server, path, body) == (400, {"detail": "There was an error parsing the body"})


@pytest.mark.parametrize("path", READ_BY_ROUTE)
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (DIGITS, envelope(400, TOO_MANY_DIGITS)),
        (DEEP_LIST, envelope(500, TOO_DEEP_LIST)),
        (DEEP_OBJECT, envelope(500, TOO_DEEP_OBJECT)),
        (b"\xff", envelope(400, "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte")),
    ],
    ids=["digits", "list", "object", "utf8"],
)
def test_words_what_a_route_cannot_read_as_python_does(
    server: TestServer, path: str, body: bytes, expected: tuple[int, Any]
) -> None:
    assert answer(server, path, body) == expected


@pytest.mark.parametrize("path", ["/scale_elastic_ep", "/inference/v1/abort_requests"])
@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"null", "NoneType"),
        (b"3", "int"),
        (b"1e400", "float"),
        (b"true", "bool"),
        (HALF_PAIR, "str"),
        (b"[{}]", "list"),
    ],
)
def test_fails_on_a_body_without_fields(server: TestServer, path: str, body: bytes, name: str) -> None:
    assert answer(server, path, body) == envelope(500, f"'{name}' object has no attribute 'get'")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"null", "argument of type 'NoneType' is not iterable"),
        (b"1.5", "argument of type 'float' is not iterable"),
        (b'"x"', "'str' object does not support item assignment"),
        (b"[]", "list indices must be integers or slices, not str"),
    ],
)
def test_refuses_an_invocation_without_fields(server: TestServer, body: bytes, message: str) -> None:
    assert answer(server, "/invocations", body) == envelope(400, message)


def test_takes_an_invocation_for_the_first_request_type_that_it_is_valid_for(server: TestServer) -> None:
    needs_prompt = envelope(
        400, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"
    )
    assert answer(server, "/invocations", b"{" + USER + b',"seed":"x"}') == needs_prompt
    unsuitable = (
        "Cannot find suitable handler for request. Expected one of: ['ChatCompletionRequest', 'CompletionRequest']"
    )
    assert answer(server, "/invocations", b'{"prompt":"hi","seed":"x"}') == envelope(400, unsuitable)


def test_invokes_the_served_model_whatever_the_body_names(server: TestServer) -> None:
    status, reply = answer(server, "/invocations", b'{"prompt":"hi","max_tokens":1,"model":["\\ud800"]}')
    assert (status, reply["model"]) == (200, "m")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/completions/render"])
@pytest.mark.parametrize(
    ("value", "name"), [(b'"x"', "str"), (b"[]", "list"), (b"1e400", "float"), (b"true", "bool"), (b"-1", "int")]
)
def test_fails_on_constraints_that_are_no_object(server: TestServer, path: str, value: bytes, name: str) -> None:
    body = b"{" + ROUTES[path] + b',"structured_outputs":' + value + b"}"
    assert answer(server, path, body) == envelope(500, f"'{name}' object has no attribute 'get'")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", HALF_PAIR), ("stop", b"[" + HALF_PAIR + b"]"), ("bad_words", b"[" + HALF_PAIR + b"]"),
        ("request_id", HALF_PAIR), ("vllm_xargs", HALF_PAIR_KEY), ("kv_transfer_params", HALF_PAIR_KEY),
        ("top_k", b"1" + b"0" * 30),
    ],
)  # fmt: skip
def test_fails_on_what_the_engine_cannot_be_sent(server: TestServer, path: str, field: str, value: bytes) -> None:
    body = b"{" + ROUTES[path] + b',"max_tokens":2,"' + field.encode() + b'":' + value + b"}"
    assert answer(server, path, body) == envelope(500, "")


def test_fails_within_a_stream_on_what_the_engine_cannot_be_sent(server: TestServer) -> None:
    body = b"{" + ROUTES["/v1/completions"] + b',"max_tokens":2,"stream":true,"stop":' + HALF_PAIR + b"}"
    reply = call(server, "POST", "/v1/completions", body)
    assert reply.status == 200
    event = reply.body.partition(b"\n")[0].removeprefix(b"data: ")
    assert json.loads(event) == envelope(500, "")[1]


@pytest.mark.parametrize(
    ("path", "position"),
    [
        ("/tokenize", 32), ("/detokenize", 32), ("/v1/completions", 32), ("/v1/chat/completions", 32),
        ("/v1/chat/completions/batch", 32), ("/v1/responses", 32), ("/v1/messages", 72),
        ("/v1/messages/count_tokens", 72), ("/v1/chat/completions/render", 32), ("/inference/v1/generate", 32),
        ("/v1/completions/derender", 32),
    ],
)  # fmt: skip
def test_refuses_to_repeat_half_a_surrogate_pair(server: TestServer, path: str, position: int) -> None:
    body = b"{" + ROUTES[path].replace(b'"model":"m"', b'"model":' + HALF_PAIR) + b"}"
    reason = f"'utf-8' codec can't encode character '\\ud800' in position {position}: surrogates not allowed"
    assert answer(server, path, body) == envelope(400, reason)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/completions", "max_tokens"), ("/v1/chat/completions", "temperature"), ("/v1/responses", "stream"),
        ("/v1/messages", "top_p"), ("/v1/chat/completions", "reasoning_effort"), ("/v1/completions", "cache_salt"),
    ],
)  # fmt: skip
def test_refuses_half_a_surrogate_pair_where_text_is_read(server: TestServer, path: str, field: str) -> None:
    body = b"{" + ROUTES[path] + b',"' + field.encode() + b'":' + HALF_PAIR + b"}"
    assert answer(server, path, body) == wrong_field("string_unicode", f"body.{field}", NO_TEXT, "\ud800")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/detokenize"])
def test_refuses_names_of_fields_that_are_no_text(server: TestServer, path: str) -> None:
    body = b"{" + ROUTES[path] + b',"\\ud800":1}'
    assert answer(server, path, body) == wrong_field("string_unicode", "body", NO_TEXT, "\ud800")


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/v1/messages"])
def test_ignores_unknown_fields_of_messages(server: TestServer, path: str) -> None:
    assert answer(server, path, b"{" + ROUTES[path] + b',"\\ud800":1}')[0] == 200


@pytest.mark.parametrize(("value", "shown"), [(b'"' + DIGITS + b'"', "1" * 200 + "...[truncated]"), (b"1e30", "1e+30")])
def test_refuses_an_integer_of_too_many_digits(server: TestServer, value: bytes, shown: str) -> None:
    body = b"{" + ROUTES["/v1/completions"] + b',"top_k":' + value + b"}"
    assert answer(server, "/v1/completions", body) == wrong_field("int_parsing_size", "body.top_k", TOO_LARGE, shown)


@pytest.mark.parametrize(
    ("arguments", "expected"), [(DIGITS, envelope(400, TOO_MANY_DIGITS)), (DEEP_LIST, envelope(500, TOO_DEEP_LIST))]
)
def test_words_arguments_that_cannot_be_read_as_python_does(
    server: TestServer, arguments: bytes, expected: tuple[int, Any]
) -> None:
    called = b'{"type":"function","id":"c","function":{"name":"f","arguments":"' + arguments + b'"}}'
    turn = b'{"role":"assistant","content":null,"tool_calls":[' + called + b"]}"
    assert answer(server, "/v1/chat/completions", b'{"messages":[' + turn + b"]}") == expected
    responses = b'{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"' + arguments + b'"}]}'
    assert answer(server, "/v1/responses", responses) == expected


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_refuses_a_json_schema_with_a_deep_value(server: TestServer, path: str) -> None:
    value = b"[" * 900 + b"]" * 900
    body = b"{" + ROUTES[path] + b',"structured_outputs":{"json":{"type":"integer","minimum":' + value + b"}}}"
    message = "The JSON schema is nested too deeply: objects and arrays may nest at most 64 levels"
    assert answer(server, path, body) == envelope(400, message)


def test_derenders_integers_that_were_sent_as_strings_or_floats(server: TestServer) -> None:
    generated = b'{"choices":[{"index":0,"token_ids":["5",6.0]}]}'
    body = b'{"generate_response":' + generated + b',"prompt_token_ids":[5.0],"prompt_tokens":"3"}'
    status, reply = answer(server, "/v1/chat/completions/derender", body)
    assert (status, reply["usage"]["total_tokens"]) == (200, 5)


def test_refuses_token_ids_that_no_tokenizer_has_room_for(server: TestServer) -> None:
    path = "/v1/chat/completions/derender"
    body = b"{" + ROUTES[path] + b',"prompt_token_ids":[9223372036854775808]}'
    assert answer(server, path, body) == envelope(400, "Python int too large to convert to C long")


def test_refuses_to_derender_for_a_request_that_is_none(server: TestServer) -> None:
    path = "/v1/completions/derender"
    body = b"{" + ROUTES[path] + b',"completion_request":{}}'
    missing = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
    assert answer(server, path, body) == envelope(400, missing, "prompt")


def test_refuses_to_render_a_continued_response(server: TestServer) -> None:
    body = b"{" + ROUTES["/v1/responses/render"] + b',"previous_response_id":"x"}'
    message = "previous_response_id is not supported by the stateless render endpoint."
    expected = envelope(400, message, "previous_response_id", "invalid_request_error")
    assert answer(server, "/v1/responses/render", body) == expected


@pytest.mark.parametrize(("named", "name"), [("1.5", "float"), ("7", "int"), ("true", "bool")])
def test_fails_to_abort_what_is_no_list(server: TestServer, named: str, name: str) -> None:
    reported = {"error": f"Failed to abort requests: '{name}' object is not iterable"}
    assert answer(server, "/abort_requests", b'{"request_ids":%b}' % named.encode()) == (500, reported)


@pytest.mark.parametrize("field", ["lora_name", "lora_path"])
def test_fails_to_load_an_adapter_whose_name_is_no_text(server: TestServer, field: str) -> None:
    body = json.dumps({"lora_name": "odd", "lora_path": "/odd", field: "\ud800"}).encode()
    reason = "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"
    assert answer(server, "/v1/load_lora_adapter", body) == envelope(500, reason)
    assert "\ud800" not in server.service.model.adapters


def test_refuses_to_unload_an_adapter_whose_name_is_no_text(server: TestServer) -> None:
    reason = "'utf-8' codec can't encode character '\\ud800' in position 39: surrogates not allowed"
    assert answer(server, "/v1/unload_lora_adapter", b'{"lora_name":' + HALF_PAIR + b"}") == envelope(400, reason)


def test_answers_a_pause_that_another_client_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that waits for running requests is over once generation goes on."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    with (
        running_server(latency=TestLatency(step_us=20_000), speed=1.0) as paused,
        open_request(paused, stream=True, max_tokens=2000, ignore_eos=True) as streaming,
        ThreadPoolExecutor(1) as pool,
    ):
        read_until(streaming, b"data: ")
        waiting = pool.submit(call, paused, "POST", "/pause?mode=wait")
        wait_until(lambda: call(paused, "GET", "/is_paused").json["is_paused"])
        assert call(paused, "POST", "/resume").status == 200
        assert waiting.result(PATIENCE_S).status == 200


@pytest.fixture(scope="module")
def pooling() -> Iterator[TestServer]:
    """A server of a model that embeds and scores."""
    with running_server(runner="pooling", convert="embed", max_model_len=512) as running:
        yield running


POOLING_ROUTES = {
    "/v1/embeddings": b'"input":"hi"',
    "/pooling": b'"input":"hi"',
    "/score": b'"text_1":"a","text_2":"b"',
    "/rerank": b'"query":"a","documents":["b"]',
}


@pytest.mark.parametrize("path", POOLING_ROUTES)
def test_fails_on_pooling_requests_that_the_engine_cannot_be_sent(pooling: TestServer, path: str) -> None:
    body = b"{" + POOLING_ROUTES[path] + b',"request_id":' + HALF_PAIR + b"}"
    assert answer(pooling, path, body) == envelope(500, "")


@pytest.mark.parametrize("path", POOLING_ROUTES)
@pytest.mark.parametrize("value", [DIGITS, DEEP_LIST, b'"\xff"'], ids=["digits", "list", "utf8"])
def test_refuses_pooling_bodies_that_the_web_framework_cannot_read(
    pooling: TestServer, path: str, value: bytes
) -> None:
    body = b"{" + POOLING_ROUTES[path] + b',"unknown":' + value + b"}"
    assert answer(pooling, path, body) == (400, {"detail": "There was an error parsing the body"})


@pytest.mark.parametrize("given", [HALF_PAIR, b"[" + HALF_PAIR + b"]"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling", "/invocations"])
def test_refuses_to_pool_what_is_no_text(pooling: TestServer, path: str, given: bytes) -> None:
    message = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
    assert answer(pooling, path, b'{"input":' + given + b"}") == envelope(400, message)


def test_refuses_deep_inputs(pooling: TestServer) -> None:
    status, reply = answer(pooling, "/v1/embeddings", b'{"input":' + b"[" * 500 + b"]" * 500 + b"}")
    assert (status, reply["error"]["type"]) == (400, "Bad Request")


def test_pools_token_ids_that_were_sent_as_strings_or_floats(pooling: TestServer) -> None:
    status, reply = answer(pooling, "/pooling", b'{"input":[["5",6.0],[7]]}')
    assert (status, reply["usage"]["prompt_tokens"]) == (200, 3)


@pytest.mark.parametrize("path", ["/score", "/rerank"])
def test_refuses_to_score_with_an_unsafe_salt(pooling: TestServer, path: str) -> None:
    reason = "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL."
    body = b"{" + POOLING_ROUTES[path] + b',"cache_salt":"a\\u0000b"}'
    assert answer(pooling, path, body) == envelope(400, f"{reason} (parameter=cache_salt)", "cache_salt")


@pytest.mark.parametrize("name", ["max_tokens_per_query", "max_tokens_per_doc"])
def test_refuses_to_score_with_more_tokens_than_the_context_has(pooling: TestServer, name: str) -> None:
    body = b"{" + POOLING_ROUTES["/score"] + f',"{name}":512}}'.encode()
    assert answer(pooling, "/score", body) == envelope(400, f"{name} (512) must be less than max_model_len (512).")


@pytest.mark.parametrize(("num_conversations", "status"), [(50_000, 413), (2, 400)])
def test_refuses_a_batch_that_would_take_hundreds_of_megabytes(
    server: TestServer, num_conversations: int, status: int
) -> None:
    body = json.dumps({"model": "m", "messages": [[]] * num_conversations}).encode()
    assert call(server, "POST", "/v1/chat/completions/batch", body).status == status
