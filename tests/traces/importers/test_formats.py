"""Each format of other programs becomes the requests it has, and what has no place is counted."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from traces.importers.registry import ConvertOptions, Imported, import_from

SHARED = """
data:
  type: shared_prefix
  shared_prefix: {num_unique_system_prompts: 2, num_users_per_system_prompt: 3, system_prompt_len: 10,
                  question_len: 4, output_len: 5}
"""


def imported(kind: str, path: Path, text: str, **more: Any) -> Imported:
    path.write_text(text)
    return import_from(ConvertOptions(format=kind, file=str(path), output="out", **more))


def requests(found: Imported) -> list[tuple[int, int, int]]:
    return [(row.arrival_time_us, row.input_tokens, row.output_tokens) for row in found.rows]


def left_out(found: Imported) -> dict[str, int]:
    return {reason: count for reason, count in found.left_out.items() if count}


def test_azure_has_times_of_day_and_counts_of_tokens(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:48.0000000,0,7\n"
    )
    found = imported("azure", tmp_path / "t.csv", text)
    assert requests(found) == [(0, 374, 44), (4_314_579, 396, 109)]
    assert left_out(found) == {"requests without prompt or output tokens": 1}


def test_azure_of_the_second_year_has_a_time_zone(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00+00:00,5,6\n2024-05-10 00:00:00.5+00:00,7,8\n"
    assert requests(imported("azure", tmp_path / "t.csv", text)) == [(0, 5, 6), (500_000, 7, 8)]


def test_burstgpt_has_seconds_and_its_models_and_logs_become_clients_and_tenants(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,GPT-4,417,276,693,API log\n"
    )
    found = imported("burstgpt", tmp_path / "t.csv", text)
    assert requests(found) == [(0, 472, 18), (113_000_000, 417, 276)]
    assert [(row.client_id, row.tenant_id) for row in found.rows] == [
        ("ChatGPT", "Conversation log"),
        ("GPT-4", "API log"),
    ]
    assert left_out(found) == {"requests without prompt or output tokens": 1}


def test_sharegpt_conversations_become_sessions_that_carry_their_history(tmp_path: Path) -> None:
    talk = [("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 4), ("gpt", "d" * 8), ("human", "no answer")]
    entries = [
        {"id": "x", "conversations": [{"from": who, "value": text} for who, text in talk]},
        {"id": "y", "conversations": [{"from": "gpt", "value": "unasked"}]},
        {"id": "z", "conversations": [{"from": "user", "value": "e" * 8}, {"from": "assistant", "value": "f" * 12}]},
    ]
    found = imported("sharegpt", tmp_path / "t.json", json.dumps(entries), rate=2.0, think_time_ms=10.0)
    assert [row.input_tokens for row in found.rows if row.session_id] == [10, 10 + 20 + 1]
    assert [row.output_tokens for row in found.rows if row.session_id] == [20, 2]
    assert [row.arrival_time_us for row in found.rows if row.session_id] == [0, 10_020]
    assert [(row.input_tokens, row.output_tokens) for row in found.rows if not row.session_id] == [(2, 3)]
    assert left_out(found) == {
        "turns that are no question with an answer behind it": 2,
        "conversations without a question and its answer": 1,
    }


def test_a_line_of_sharegpt_may_be_a_conversation(tmp_path: Path) -> None:
    entries = [
        {"conversations": [{"from": "human", "value": "a" * 8}, {"from": "gpt", "value": "b" * 4 * n}]} for n in (1, 2)
    ]
    text = "".join(json.dumps(each) + "\n" for each in entries)
    found = imported("sharegpt", tmp_path / "t.jsonl", text, rate=2.0)
    assert [row.output_tokens for row in found.rows] == [1, 2]


@pytest.mark.parametrize("key", ["conversations", "conversation", "messages", "items"])
def test_turns_of_sharegpt_have_several_names(key: str, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a" * 8}, {"role": "assistant", "content": "b" * 4}]
    (row,) = imported("sharegpt", tmp_path / "t.json", json.dumps([{key: turns}]), rate=2.0).rows
    assert (row.input_tokens, row.output_tokens) == (2, 1)


def test_vidur_with_and_without_times(tmp_path: Path) -> None:
    timed = "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,3,4\n2.0,5,6\n"
    assert requests(imported("vidur", tmp_path / "t.csv", timed)) == [(0, 3, 4), (500_000, 5, 6)]
    lengths = "num_prefill_tokens,num_decode_tokens\n3,4\n5,6\n"
    drawn = requests(imported("vidur", tmp_path / "l.csv", lengths, rate=10.0))
    assert [each[1:] for each in drawn] == [(3, 4), (5, 6)]
    assert drawn[1][0] > 0
    with pytest.raises(BlisError, match="--rate is required"):
        imported("vidur", tmp_path / "l.csv", lengths)


def bench_results() -> dict[str, Any]:
    return {
        "date": "20260131-120010",
        "duration": 10.0,
        "model_id": "m",
        "start_times": [101.0, 100.0, 102.0],
        "input_lens": [7, 5, 9],
        "output_lens": [3, 1, 0],
        "ttfts": [0.5, 0.25, 0.0],
        "itls": [[0.1, 0.2], [], []],
        "errors": ["", "", "Bad Gateway"],
    }


def test_vllm_bench_results_are_a_recording_with_token_times(tmp_path: Path) -> None:
    found = imported("vllm-bench", tmp_path / "r.json", json.dumps(bench_results()))
    assert requests(found) == [(0, 5, 1), (1_000_000, 7, 3), (2_000_000, 9, 0)]
    assert [row.status for row in found.rows] == ["ok", "ok", "error"]
    assert found.rows[2].error_message == "Bad Gateway"
    second = found.rows[1]
    assert second.first_chunk_time_us - second.send_time_us == 500_000
    assert second.last_chunk_time_us - second.first_chunk_time_us == 300_000
    assert [time - second.send_time_us for time in found.chunks[1]] == [500_000, 600_000, 800_000]
    assert found.header.created_at == "2026-01-31T12:00:00Z"
    assert found.header.mode == "real"


def test_vllm_bench_results_without_details_cannot_be_converted(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match=r"start_times is missing, save results with --save-detailed"):
        imported("vllm-bench", tmp_path / "r.json", '{"date": "20260131-120010"}')


def test_runs_that_were_appended_to_a_file_are_clients(tmp_path: Path) -> None:
    later = bench_results() | {"date": "20260131-120110", "request_rate": math.inf, "mean_tpot_ms": math.nan}
    text = json.dumps(bench_results()) + "\n" + json.dumps(later)
    found = imported("vllm-bench", tmp_path / "r.json", text)
    assert [(row.client_id, row.arrival_time_us) for row in found.rows] == [
        *(("run-0", second * 1_000_000) for second in range(3)),
        *(("run-1", (60 + second) * 1_000_000) for second in range(3)),
    ]
    assert found.header.created_at == "2026-01-31T12:00:00Z"
    assert found.header.server["model"] == "m"
    with pytest.raises(BlisError, match=r"r\.json line 2: the key start_times is missing"):
        imported("vllm-bench", tmp_path / "r.json", json.dumps(bench_results()) + "\n{}")


def bench_file(**keys: Any) -> str:
    return json.dumps(bench_results() | keys)


def guidellm_entry(entry: dict[str, Any]) -> str:
    return json.dumps({"benchmarks": [{"requests": {"successful": [entry]}}]})


def test_guidellm_results_are_a_recording_with_its_failures(tmp_path: Path) -> None:
    timings = {"targeted_start": 1000.0, "request_start": 1000.001, "first_token_iteration": 1000.2}
    timings |= {"last_token_iteration": 1000.5, "token_iterations": 4}
    good = {"request_id": "a", "prompt_tokens": 10, "output_tokens": 4, "info": {"timings": timings}}
    bad = {"prompt_tokens": 3, "output_tokens": None, "info": {"error": "boom", "timings": {"request_start": 1001.0}}}
    never = {"prompt_tokens": 3, "info": {"timings": {}}}
    results = {"benchmarks": [{"requests": {"successful": [good], "errored": [bad], "incomplete": [never]}}]}
    found = imported("guidellm", tmp_path / "r.json", json.dumps(results))
    assert requests(found) == [(0, 10, 4), (1_000_000, 3, 0)]
    first, second = found.rows
    assert (first.send_time_us, first.first_chunk_time_us) == (1_000_001_000, 1_000_200_000)
    assert (first.last_chunk_time_us, first.num_chunks, first.status) == (1_000_500_000, 4, "ok")
    assert (second.status, second.error_message) == ("error", "boom")
    assert left_out(found) == {"requests that were never sent": 1}


def test_guidellm_results_of_earlier_versions(tmp_path: Path) -> None:
    entry = {
        "prompt_tokens": 10,
        "output_tokens": 4,
        "start_time": 5.0,
        "first_token_time": 5.25,
        "last_token_time": 6.0,
    }
    results = {"benchmarks": [{"requests": {"successful": [entry]}}]}
    (row,) = imported("guidellm", tmp_path / "r.json", json.dumps(results)).rows
    assert (row.send_time_us, row.first_chunk_time_us, row.last_chunk_time_us) == (5_000_000, 5_250_000, 6_000_000)


def test_a_configuration_of_inference_perf_becomes_the_section_of_the_same_words(tmp_path: Path) -> None:
    text = "load: {type: poisson, stages: [{rate: 2, duration: 5}]}\napi: {type: completion}" + SHARED
    found = imported("inference-perf", tmp_path / "config.yaml", text)
    assert found.spec is not None
    assert found.spec.inference_perf is not None
    assert found.spec.inference_perf.shared_prefix.question_len == 4
    assert [(stage.rate, stage.duration) for stage in found.spec.inference_perf.stages] == [(2, 5)]
    assert left_out(found) == {"key api.type": 1}


def test_rows_beyond_the_requested_number_are_counted(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n1,1,1\n2,1,1\n"
    found = imported("vidur", tmp_path / "t.csv", text, num_requests=2)
    assert len(found.rows) == 2
    assert left_out(found) == {"requests beyond --num-requests": 1}


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n", "line 2 column TIMESTAMP: expected a time"),
        ("burstgpt", "Timestamp,Request tokens,Response tokens\n1,x,2\n", "line 2 column request tokens: expected a"),
        ("mooncake", '{"timestamp": 1}\n', "line 1: the key input_length is missing, found timestamp"),
        ("mooncake", "nope\n", "line 1: expected a JSON object"),
        ("sharegpt", "[3]", "entry 0: expected an object, got 3"),
        ("sharegpt", '[{"id": 1}]', "entry 0: the key conversations is missing, found id"),
        ("guidellm", '{"benchmarks": [3]}', "benchmark 0: expected an object, got 3"),
        (
            "burstgpt",
            "Timestamp,Request tokens,Response tokens\n1e12,1,2\n",
            "line 2 column timestamp: expected a number",
        ),
        (
            "vidur",
            "arrived_at,num_prefill_tokens,num_decode_tokens\n1e26,1,2\n",
            "line 2 column arrived_at: expected a",
        ),
        ("guidellm", guidellm_entry({"start_time": 1, "token_iterations": True}), "expected a whole number, got True"),
        (
            "guidellm",
            guidellm_entry({"start_time": 1, "token_iterations": 2**63}),
            "key token_iterations: expected a wh",
        ),
        ("guidellm", guidellm_entry({"info": 7}), "request 0 key info: expected an object, got 7"),
        ("guidellm", guidellm_entry({"info": {"timings": [1]}}), "request 0 key timings: expected an object, got [1]"),
        (
            "guidellm",
            guidellm_entry({"start_time": 1e15}),
            "key start_time: expected a time in seconds, got 1000000000",
        ),
        (
            "vllm-bench",
            bench_file(start_times=["soon", 1, 2]),
            "request 0 key start_times: expected a time in seconds, got",
        ),
        (
            "vllm-bench",
            bench_file(start_times=[1e15, 1, 2]),
            "request 0 key start_times: expected a time in seconds, got 1",
        ),
        ("vllm-bench", bench_file(duration=1e308), "key duration: expected a time in seconds, got 1e+308"),
        (
            "vllm-bench",
            bench_file(itls=[[1e12], [], []]),
            "request 0 key itls: expected a time in seconds, got 1000000000000",
        ),
        ("inference-perf", SHARED + "load: {stages: [soon]}\n", "key load.stages[0]: expected an object, got 'so"),
        ("inference-perf", "data: {type: random}\n", "key data: the key input_distribution is missing"),
        ("inference-perf", "version: '2'\naggregate_rate: x\n", "aggregate_rate: expected a number"),
    ],
)
def test_an_unreadable_file_is_one_line_with_the_place(kind: str, text: str, message: str, tmp_path: Path) -> None:
    more = {"rate": 1.0} if kind == "sharegpt" else {}
    with pytest.raises(BlisError) as raised:
        imported(kind, tmp_path / "source", text, **more)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(tmp_path / "source") in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("azure", ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]),
        ("burstgpt", ["Timestamp", "Request tokens", "Response tokens"]),
        ("vidur", ["num_prefill_tokens", "num_decode_tokens"]),
    ],
)
def test_a_column_that_a_format_needs_is_missed_by_its_name(kind: str, columns: list[str], tmp_path: Path) -> None:
    for missing in columns:
        others = [name for name in columns if name != missing]
        text = ",".join(others) + "\n" + ",".join("1" for _ in others) + "\n"
        with pytest.raises(BlisError, match=f"line 1: the column {missing.lower()} is missing"):
            imported(kind, tmp_path / "t.csv", text)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(BlisError, match="the preset must be one of chatbot"):
        import_from(ConvertOptions(format="preset", file="chatty"))


@pytest.mark.parametrize(("kind", "text"), [
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,2{}\n"),
    ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2{}\n"),
    ("burstgpt", "Timestamp,Model,Request tokens,Response tokens,Log Type\n5,m,472,18,x{}\n"),
])  # fmt: skip
def test_refuses_a_row_with_one_cell_too_many(kind: str, text: str, tmp_path: Path) -> None:
    imported(kind, tmp_path / "t.csv", text.format(""))
    with pytest.raises(BlisError, match=r"t\.csv line 2: expected (3|5) cells as in the header, got (4|6)"):
        imported(kind, tmp_path / "t.csv", text.format(","))


def test_reports_of_inference_perf_have_the_time_of_each_token(tmp_path: Path) -> None:
    info = {"input_tokens": 5, "output_tokens": 2, "output_token_times": [101.2, 101.5]}
    good = {"start_time": 101.0, "end_time": 101.6, "request": "{}", "response": "", "info": info, "error": None}
    bad = {**good, "start_time": 100.0, "info": {"input_tokens": 5}, "error": {"error_type": "T", "error_msg": "down"}}
    found = imported("inference-perf-results", tmp_path / "t.json", json.dumps([good, bad]))
    assert requests(found) == [(0, 5, 0), (1_000_000, 5, 2)]
    assert [(row.status, row.error_message) for row in found.rows] == [("error", "T: down"), ("ok", "")]
    assert found.chunks == {1: [101_200_000, 101_500_000]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "azure", "file": "x"}, "--output is required with azure"),
        ({"format": "preset"}, "needs one file, folder or name, as in: blis convert preset chatbot"),
        ({"format": "preset", "file": "chatbot", "time": "noon"}, "--time must be one of"),
        (
            {"format": "preset", "file": "chatbot", "session_prompts": "whole"},
            "--session-prompts has no meaning with preset, only with mooncake",
        ),
        ({"format": "other", "file": "x"}, "FORMAT must be one of trace, preset, inference-perf"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        ConvertOptions(**given)
