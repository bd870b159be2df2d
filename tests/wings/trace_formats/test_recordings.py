"""Records of AIPerf, genai-perf and SGLang."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from tests.traces.importers.test_formats import imported, left_out, requests


def aiperf_record(number: int, **about: Any) -> dict[str, Any]:
    start_ns = 1_700_000_000_000_000_000 + number * 10**9
    metadata: dict[str, Any] = {"request_start_ns": start_ns + 2_000_000, "request_end_ns": start_ns + 90_000_000}
    metadata |= {"benchmark_phase": "profiling", "credit_issued_ns": start_ns, "x_request_id": f"r{number}", **about}
    metrics = {
        "input_sequence_length": {"value": 11, "unit": "tokens"},
        "output_sequence_length": {"value": 4, "unit": "tokens"},
        "reasoning_token_count": {"value": 1, "unit": "tokens"},
        "time_to_first_token": {"value": 50.0, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.0, 20.5], "unit": "ms"},
    }
    return {"metadata": metadata, "metrics": metrics, "error": None}


def test_aiperf_records_are_a_recording_with_chunk_times(tmp_path: Path) -> None:
    cancelled = {**aiperf_record(2, was_cancelled=True), "metrics": {}, "error": {"code": 499, "message": "gone"}}
    whole = aiperf_record(3)
    whole["metrics"]["usage_prompt_tokens"] = {"value": 9, "unit": "tokens"}
    whole["metrics"]["usage_completion_tokens"] = {"value": 5, "unit": "tokens"}
    del whole["metrics"]["time_to_first_token"], whole["metrics"]["inter_chunk_latency"]
    records = [aiperf_record(1), aiperf_record(0, benchmark_phase="warmup"), cancelled, whole]
    found = imported("aiperf", tmp_path / "t.jsonl", "".join(json.dumps(each) + "\n" for each in records))
    assert requests(found) == [(0, 11, 4), (1_000_000, 0, 0), (2_000_000, 11, 5)]
    first, second, third = found.rows
    assert [row.server_input_tokens for row in found.rows] == [0, 0, 9]
    assert first.send_time_us == 1_700_000_001_002_000
    assert [at - first.send_time_us for at in found.chunks[0]] == [50_000, 60_000, 80_500]
    assert (first.streaming, first.num_chunks, first.reason_ratio, first.x_request_id) == (True, 3, 0.25, "r1")
    assert (second.status, second.error_message, second.num_chunks) == ("incomplete", "gone", 0)
    assert (third.streaming, third.num_chunks, third.last_chunk_time_us - third.send_time_us) == (False, 1, 88_000)
    assert list(found.chunks) == [0]
    assert left_out(found) == {"requests of the phase warmup": 1}


def test_a_unit_of_aiperf_that_is_none_is_named(tmp_path: Path) -> None:
    record = aiperf_record(1)
    record["metrics"]["time_to_first_token"]["unit"] = "ticks"
    with pytest.raises(BlisError, match=r"line 1 metric time_to_first_token: expected a unit out of .*, got 'ticks'"):
        imported("aiperf", tmp_path / "t.jsonl", json.dumps(record))


def genai_request(at_ms: int, outputs: list[tuple[int, str]], **body: Any) -> dict[str, Any]:
    return {
        "timestamp": at_ms * 1_000_000,
        "request_inputs": {"payload": json.dumps({"stream": True, **body})},
        "response_timestamps": [each * 1_000_000 for each, _ in outputs],
        "response_outputs": [{"response": text} for _, text in outputs],
    }


def test_genai_perf_profiles_take_the_tokens_that_the_server_reported(tmp_path: Path) -> None:
    delta = 'data: {"choices": [{"delta": {"content": "word"}}]}'
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}'
    empty = 'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}'
    streamed = genai_request(1000, [(1010, empty), (1020, delta), (1030, delta), (1031, f"{usage}\n\ndata: [DONE]")])
    counted = genai_request(1500, [(1600, '{"choices": [{"text": "twelve chars"}]}')], prompt="abcdefgh", stream=False)
    lost = genai_request(1700, [], messages=[{"role": "user", "content": "hi"}])
    profile = {"experiments": [{"experiment": {}, "requests": [streamed, counted]}, {"requests": [lost]}]}
    found = imported("genai-perf", tmp_path / "t.json", json.dumps(profile))
    assert requests(found) == [(0, 9, 2), (500_000, 2, 3), (700_000, 1, 0)]
    assert found.chunks == {0: [1_020_000, 1_030_000], 1: [1_600_000]}
    assert [row.status for row in found.rows] == ["ok", "ok", "error"]
    assert [row.streaming for row in found.rows] == [True, False, True]
    assert [row.client_id for row in found.rows] == ["experiment-0", "experiment-0", "experiment-1"]
    assert found.notes == ("tokens are estimated as one per 4 characters, give --tokenizer",)


def sglang_results(**more: Any) -> str:
    lists: dict[str, Any] = {"input_lens": [3, 4, 5], "output_lens": [2, 1, 0], "ttfts": [0.5, 0.25, 0.0]}
    results = {
        "request_rate": math.inf,
        "max_concurrency": None,
        **lists,
        "itls": [[0.1], [], []],
        "errors": ["", "", "no"],
    }
    return json.dumps({"tag": None, "completed": 2}) + "\n" + json.dumps({**results, **more})


def test_sglang_sending_times_follow_from_its_concurrency(tmp_path: Path) -> None:
    at_once = imported("sglang-bench", tmp_path / "t.jsonl", sglang_results())
    assert requests(at_once) == [(0, 3, 2), (0, 4, 1), (0, 5, 0)]
    assert left_out(at_once) == {"earlier runs in the file": 1}
    by_ones = imported("sglang-bench", tmp_path / "t.jsonl", sglang_results(max_concurrency=1))
    assert [row.arrival_time_us for row in by_ones.rows] == [0, 600_000, 850_000]
    assert [row.status for row in by_ones.rows] == ["ok", "ok", "error"]
    assert [at - by_ones.rows[0].send_time_us for at in by_ones.chunks[0]] == [500_000, 600_000]
    drawn = imported("sglang-bench", tmp_path / "t.jsonl", sglang_results(request_rate=4.0))
    assert drawn.notes == ("sending times are not in the file: drawn at 4 requests/s with --seed 42",)
    slow = imported("sglang-bench", tmp_path / "t.jsonl", sglang_results(request_rate=0.5))
    assert slow.notes == ("sending times are not in the file: drawn at 0.5 requests/s with --seed 42",)
    for rate in ("trace", 0.0):
        with pytest.raises(BlisError, match="--rate is required"):
            imported("sglang-bench", tmp_path / "t.jsonl", sglang_results(request_rate=rate))
