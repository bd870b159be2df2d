import json
from pathlib import Path
from typing import Any

import pytest

from observe.drift import DriftOptions, differences, run, shape_of


def compared(recorded: Any, seen: Any) -> list[str]:
    def shape(value: Any) -> Any:
        return shape_of(200, "application/json", json.dumps(value).encode())

    return differences(shape(recorded), shape(seen))


def test_values_do_not_matter() -> None:
    assert compared({"id": "a", "n": 1, "list": [{"x": 1.5}]}, {"id": "b", "n": 2, "list": [{"x": 1}, {"x": 3}]}) == []


def test_members_that_are_missing_new_or_of_another_type_are_named_once() -> None:
    recorded = {"usage": {"tokens": 1, "more": 2}, "id": "a", "gone": {"x": 1}}
    seen = {"usage": {"tokens": "1", "more": 2}, "id": "a", "fresh": {"y": {"z": 1}}}
    assert compared(recorded, seen) == [
        "body.fresh is new, object",
        "body.gone is missing, recorded as object",
        "body.usage.tokens is text, recorded as number",
    ]


def test_a_null_fits_anything() -> None:
    assert compared({"logprobs": None, "a": {"b": 1}}, {"logprobs": {"x": 1}, "a": None}) == []


def test_events_of_a_stream_have_one_shape_together() -> None:
    def stream(*events: Any) -> Any:
        data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events) + b"data: [DONE]\n\n"
        return shape_of(200, "text/event-stream; charset=utf-8", data)

    assert differences(stream({"a": 1}, {"b": 2}), stream({"b": 3, "a": 1}, {"a": 1})) == []
    assert differences(stream({"a": 1}), stream({"c": 1})) == [
        "event.a is missing, recorded as number",
        "event.c is new, number",
    ]
    assert differences(stream({"a": 1}), shape_of(404, "application/json", b"{}"))[:2] == [
        "body is new, object",
        "content type is application/json, recorded as text/event-stream",
    ]


def test_each_difference_is_a_row_of_the_answer(
    server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps({"model": "m", "prompt": "Once", "max_tokens": 1, "stream": False})
    reply = {"after_us": 1, "text": json.dumps({"choices": "none"})}
    exchange = {"path": "/v1/completions", "body": body, "status": 200, "reply": [reply]}
    exchange["reply_headers"] = [["content-type", "application/json"]]
    recording = tmp_path / "one.content.jsonl"
    recording.write_text(f'{{"blis_content": 1}}\n{json.dumps(exchange)}\n')
    assert run(DriftOptions(recording=str(recording), url=server_url, json=True)) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["num_checked"], answer["num_different"]) == (1, 1)
    row = {"request": 0, "path": "/v1/completions", "difference": "body.choices is list, recorded as text"}
    assert row in answer["differences"]
