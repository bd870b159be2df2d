"""Columns and keys that have no place in a trace are named with their number of values, by every importer."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from tests.traces.importers.test_formats import bench_results, imported, left_out
from tests.wings.trace_formats.test_agents import dag_turn, lines, sglang_turn, span, weka_call
from tests.wings.trace_formats.test_recordings import aiperf_record, genai_request

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens,pd_ratio,Session\n0,1,2,,x\n1,1,2,,y\n"
SHAREGPT = [{"id": "a", "system": "be kind", "conversations": [
    {"from": "human", "value": "abcd"}, {"from": "gpt", "value": "abcd", "score": 3},
]}]  # fmt: skip
REPLY = '{"choices": [{"text": "word"}]}'


def genai(**inputs: Any) -> str:
    request = genai_request(1000, [(1010, REPLY)], prompt="abcd")
    request["request_inputs"] |= inputs
    return json.dumps({"experiments": [{"requests": [request]}]})


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("vidur", VIDUR, "Session (2)"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens,Region\n2023-11-16,1,2,eu\n", "Region (1)"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens,User\n1,1,2,\n2,1,2,u\n", "User (1)"),
        ("mooncake", lines([{"timestamp": 1, "input_length": 1, "output_length": 1, "group_id": 4}]), "group_id (1)"),
        ("sharegpt", json.dumps(SHAREGPT), "system (1), turn score (1)"),
        (
            "weka",
            json.dumps({"id": "s", "block_size": 64, "requests": [weka_call(0, 1, 9, 9, [], stop="end_turn")]}),
            "model (1), stop (1)",
        ),
        ("aiperf-dag", lines([{"session_id": "a", "turns": [dag_turn(1, extra={"x": 1})]}]), "turn extra (1)"),
        (
            "sglang-agentic",
            json.dumps({"conversations": [[sglang_turn("abcd") | {"tools": [1]}]]}),
            "turn tools (1)",
        ),
        ("otel", json.dumps({"spans": [span("x", "", 0, 9, (1, 1), **{"a.b": "1"})]}), "gen_ai.a.b (1)"),
        ("vllm-bench", json.dumps(bench_results() | {"generated_texts": ["a", "b", ""]}), "generated_texts (2)"),
        ("aiperf", lines([aiperf_record(1, worker_id="w")]), "metadata worker_id (1)"),
        ("genai-perf", genai(priority=3), "request_inputs priority (1)"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_named(kind: str, text: str, named: str, tmp_path: Path) -> None:
    more = {"rate": 1.0} if kind == "sharegpt" else {}
    found = imported(kind, tmp_path / "source.json", text, **more)
    assert found.notes[-1] == f"values left out, by key or column: {named}"


def test_images_of_azure_are_counted(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15 00:00:00.009930+00:00,1,2162,5\n2024-10-15 00:00:00.017335+00:00,0,2399,6\n"
        "2024-10-15 00:00:00.023314+00:00,3,4076,15\n"
    )
    found = imported("azure", tmp_path / "t.csv", text)
    assert left_out(found) == {"images (NumImages): the file does not say which of ContextTokens are theirs": 4}
    assert [row.arrival_time_us for row in found.rows] == [0, 7_405, 13_384]


def test_rounds_of_recorded_conversations_keep_their_session(tmp_path: Path) -> None:
    records = [aiperf_record(n, x_correlation_id="c", turn_index=n) for n in range(2)]
    records.append(aiperf_record(2, x_correlation_id="d", turn_index=0))
    found = imported("aiperf", tmp_path / "t.jsonl", lines(records))
    assert [(row.session_id, row.round_index) for row in found.rows] == [("c", 0), ("c", 1), ("", 0)]


def test_a_file_of_many_unknown_keys_gives_one_line(tmp_path: Path) -> None:
    row = {"timestamp": 1, "input_length": 1, "output_length": 1, **{f"key-{number}": 1 for number in range(1000)}}
    found = imported("mooncake", tmp_path / "t.jsonl", lines([row]))
    assert found.notes[-1].endswith("key-39 (1), 960 more")


def test_guidellm_says_what_the_report_says_about_requests(tmp_path: Path) -> None:
    totals = {"metrics": {"request_totals": {"successful": 60, "total": 60}}}
    empty: dict[str, Any] = {"requests": {"successful": [], "errored": [], "incomplete": [], "total": None}}
    full = {"requests": {"successful": [{
        "prompt_tokens": 10, "output_tokens": 1, "start_time": 5.0, "first_token_time": 5.25, "end_time": 6.0,
        "input_metrics": {"text_tokens": 3, "image_tokens": 7, "audio_tokens": None},
    }]}}  # fmt: skip
    found = imported("guidellm", tmp_path / "t.json", json.dumps({"benchmarks": [empty | totals, full]}))
    assert left_out(found) == {"requests that the report counts and does not list": 60}
    assert (found.rows[0].text_tokens, found.rows[0].image_tokens) == (3, 7)
    for benchmark, cause in (
        (empty | totals, "got none: the report counts 60 and was saved without them"),
        (empty, "got none"),
        ({"requests": None} | totals, "got none: the report counts 60 and was saved without them"),
        ({"requests": {"done": []}}, "key requests: the key successful is missing, found done"),
        ({"requests": {"successful": [], "incomplete": [{"prompt_tokens": 3}]}}, "got none that was sent"),
    ):
        with pytest.raises(BlisError, match=f"{cause}$"):
            imported("guidellm", tmp_path / "t.json", json.dumps({"benchmarks": [benchmark]}))
