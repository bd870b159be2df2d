"""What answers say, as a client reads it."""

import json
from pathlib import Path
from typing import Any

from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server


def chat(server: TestServer, text: str, **fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": text}], **fields}
    reply = call(server, "POST", "/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    choice: dict[str, Any] = reply.json["choices"][0]
    return {**choice, "num_tokens": reply.json["usage"]["completion_tokens"]}


def complete(server: TestServer, prompt: Any, **fields: Any) -> dict[str, Any]:
    reply = call(server, "POST", "/v1/completions", {"prompt": prompt, **fields})
    assert reply.status == 200, reply.body
    choice: dict[str, Any] = reply.json["choices"][0]
    return {**choice, "num_tokens": reply.json["usage"]["completion_tokens"]}


def test_an_echo_repeats_what_the_user_said() -> None:
    with running_server(mode="echo") as server:
        reply = chat(server, "one two three")
        assert (reply["message"]["content"], reply["finish_reason"], reply["num_tokens"]) == (
            "one two three",
            "stop",
            4,
        )
        reply = complete(server, "one two three", max_tokens=2)
        assert (reply["text"], reply["finish_reason"], reply["num_tokens"]) == ("one two", "length", 2)
        reply = complete(server, "one two", max_tokens=5, ignore_eos=True)
        assert (reply["text"], reply["finish_reason"]) == ("one two one two one", "length")
        ids = server.service.planner.tokenizer.encode("by ids")
        assert complete(server, ids)["text"] == "by ids"


def test_known_prompts_get_their_answers_and_others_prose(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"prompt": "why", "answer": "because of that"}))
    with running_server(dataset_path=str(file)) as server:
        assert chat(server, "why")["message"]["content"] == "because of that"
        assert complete(server, "why", stop="of")["text"] == "because "
        assert len(complete(server, "who", max_tokens=20, ignore_eos=True)["text"]) > 30


def test_a_stop_token_ends_an_answer(server: TestServer) -> None:
    fields: dict[str, Any] = {"seed": 3, "max_tokens": 40, "ignore_eos": True}
    text = complete(server, "hello", **fields)["text"]
    ids = server.service.planner.tokenizer.encode(text)
    reply = complete(server, "hello", **fields, stop_token_ids=[ids[7]])
    first = ids.index(ids[7])
    assert (reply["finish_reason"], reply["stop_reason"], reply["num_tokens"]) == ("stop", ids[7], first + 1)
    assert text.startswith(reply["text"])
    assert server.service.planner.tokenizer.count(reply["text"]) == first


def test_text_has_as_many_tokens_as_reported(shared: Path) -> None:
    folder = str(shared / "oracle/model2")
    with running_server(tokenizer=folder) as server:
        tokenizer = server.service.planner.tokenizer
        for num_tokens in (1, 2, 3, 17, 100):
            reply = chat(server, "hello", max_tokens=num_tokens, ignore_eos=True)
            assert tokenizer.count(reply["message"]["content"]) == reply["num_tokens"] == num_tokens
        reply = chat(server, "hello", max_tokens=1000)
        assert reply["finish_reason"] == "stop"
        assert tokenizer.count(reply["message"]["content"]) == reply["num_tokens"] - 1
