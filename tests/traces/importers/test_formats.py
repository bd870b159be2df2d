"""Each format of other programs becomes the requests it has, and what has no place is counted."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from traces.importers import ConvertOptions, Imported, import_from
from traces.importers.servegen import lognormal_fit, read_chunks
from traces.workload.generate import generate

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
        ("sharegpt", "{}", "expected a list, got {}"),
        ("sharegpt", '[{"id": 1}]', "entry 0 key conversations: expected a list, got None"),
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
        ("vllm-bench", bench_file(start_times=["soon", 1, 2]), "request 0 start_time: expected a time in seconds, got"),
        ("vllm-bench", bench_file(start_times=[1e15, 1, 2]), "request 0 start_time: expected a time in seconds, got 1"),
        ("vllm-bench", bench_file(duration=1e308), "key duration: expected a time in seconds, got 1e+308"),
        (
            "vllm-bench",
            bench_file(itls=[[1e12], [], []]),
            "request 0 itl: expected a time in seconds, got 1000000000000",
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


def test_a_folder_without_chunks_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BlisError, match=r"expected a folder with files chunk-\*-trace.csv, found none"):
        import_from(ConvertOptions(format="servegen", file=str(tmp_path)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"format": "azure", "file": "x"}, "--output is required with azure"),
        ({"format": "preset"}, "needs one file, folder or name, as in: blis convert preset chatbot"),
        ({"format": "preset", "file": "chatbot", "time": "noon"}, "--time must be one of"),
        (
            {"format": "preset", "file": "chatbot", "time": "morning"},
            "--time has no meaning with preset, only with servegen",
        ),
        ({"format": "other", "file": "x"}, "FORMAT must be one of trace, preset, servegen"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message):
        ConvertOptions(**given)


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


def test_lengths_of_servegen_are_those_from_1_to_2_to_the_31(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("".join(f"{start},1.5,1.2,Gamma,0.8,0.4\n" for start in (0, 600, 1200)))
    shares = f"{{0.5: 1, {2**31}: 1, 1: 1, {2**31 - 1}: 1}}"
    (tmp_path / "chunk-0-dataset.json").write_text(
        json.dumps({"0": {"input_tokens": shares, "output_tokens": "{5: 1}"}})
    )
    (chunk,) = read_chunks(tmp_path, left := Counter[str]())
    assert left["shares of input_tokens without a length from 1 on"] == 2
    assert chunk.lengths_at(0).input.mu == pytest.approx(math.log(2**31 - 1) / 2)


@pytest.mark.parametrize(("kind", "text"), [
    ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16,1,2{}\n"),
    ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2{}\n"),
    ("burstgpt", "Timestamp,Model,Request tokens,Response tokens,Log Type\n5,m,472,18,x{}\n"),
])  # fmt: skip
def test_refuses_a_row_with_one_cell_too_many(kind: str, text: str, tmp_path: Path) -> None:
    imported(kind, tmp_path / "t.csv", text.format(""))
    with pytest.raises(BlisError, match=r"t\.csv line 2: expected (3|5) cells as in the header, got (4|6)"):
        imported(kind, tmp_path / "t.csv", text.format(","))


@pytest.mark.parametrize(
    "row",
    [
        "0,1.5,1.2,Gamma,0.8",
        "0,1.5,1.2,Gamma,0.8,0.4,1",
        "0,1.5,1.2,Gamma,0.8,0.4\v600,1.5,1.2,Gamma,0.8,0.4",
        "0,1.5,1.2,Gamma,0.8,0.4\u2028600,1.5,1.2,Gamma,0.8,0.4",
    ],
)
def test_refuses_a_row_of_servegen_that_has_not_six_cells(row: str, tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text(f"0,1.5,1.2,Gamma,0.8,0.4\n\n{row}\n")
    with pytest.raises(BlisError, match=r"chunk-0-trace\.csv line 3: expected 6 cells, got (5|7|11)"):
        read_chunks(tmp_path, Counter[str]())


def test_a_histogram_of_servegen_may_hold_counts_as_well_as_shares() -> None:
    fit = lognormal_fit({10: 3, 1000: 3})
    assert (fit.mu, fit.sigma) == pytest.approx((math.log(100), math.log(10)))
    assert lognormal_fit({10: 1, 1000: 0.5, 7: 0.25}) == lognormal_fit({10: 4, 1000: 2, 7: 1})


def test_shares_of_lengths_that_are_no_numbers_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("".join(f"{start},1.5,1.2,Gamma,0.8,0.4\n" for start in (0, 600, 1200)))
    shares = "{1: 0.5, 2: 0.25., 3: 1e999, 1.2.3: 1, %s: 1, 4: 1e-3}" % ("9" * 400)
    (tmp_path / "chunk-0-dataset.json").write_text(
        json.dumps({"0": {"input_tokens": shares, "output_tokens": "{5: 1}"}})
    )
    found = import_from(ConvertOptions(format="servegen", file=str(tmp_path)))
    assert left_out(found)["shares of input_tokens without a length from 1 on"] == 4


def mixed_folder(path: Path, **changed: str) -> None:
    """A client whose prompts have text and images."""
    (path / "chunk-0-trace.csv").write_text("0,0.8,0.5,Gamma,3,0.25\n28800,0.9,0.6,Gamma,2.5,0.5\n")
    lengths = {"text_tokens": "{100: 1}", "image_tokens": "{1000: 0.5, 1200: 0.5}", "image_count": "{0: 0.25, 2: 0.75}"}
    lengths |= {"audio_tokens": "{0: 1.0}", "audio_count": "{0: 1.0}", "output_tokens": "{21: 1}"} | changed
    (path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths, "28800": lengths}))


def test_a_folder_of_servegen_may_have_prompts_with_images(tmp_path: Path) -> None:
    mixed_folder(tmp_path)
    found = import_from(ConvertOptions(format="servegen", file=str(tmp_path)))
    assert found.spec is not None
    multimodal = found.spec.cohorts[0].multimodal
    assert multimodal is not None
    assert multimodal.image_count_distribution is not None
    assert multimodal.image_count_distribution.params == {"0": 0.25, "2": 0.75}
    assert multimodal.audio_distribution is None
    requests = generate(found.spec).requests
    assert {request.text_tokens for request in requests} == {100}
    means = [request.image_tokens / 2 for request in requests if request.image_tokens]
    assert 0.7 < len(means) / len(requests) < 0.8
    assert 1000 < sum(means) / len(means) < 1200


def test_images_of_servegen_without_tokens_are_refused(tmp_path: Path) -> None:
    mixed_folder(tmp_path, image_tokens="{0: 1.0}")
    with pytest.raises(BlisError, match=r"key image_tokens: expected a length above 0, as image_count has one"):
        import_from(ConvertOptions(format="servegen", file=str(tmp_path)))


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
    assert left_out(found) == {"requests of the warmup": 1}


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


def test_reports_of_inference_perf_have_the_time_of_each_token(tmp_path: Path) -> None:
    info = {"input_tokens": 5, "output_tokens": 2, "output_token_times": [101.2, 101.5]}
    good = {"start_time": 101.0, "end_time": 101.6, "request": "{}", "response": "", "info": info, "error": None}
    bad = {**good, "start_time": 100.0, "info": {"input_tokens": 5}, "error": {"error_type": "T", "error_msg": "down"}}
    found = imported("inference-perf-results", tmp_path / "t.json", json.dumps([good, bad]))
    assert requests(found) == [(0, 5, 0), (1_000_000, 5, 2)]
    assert [(row.status, row.error_message) for row in found.rows] == [("error", "T: down"), ("ok", "")]
    assert found.chunks == {1: [101_200_000, 101_500_000]}


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
    with pytest.raises(BlisError, match="--rate is required"):
        imported("sglang-bench", tmp_path / "t.jsonl", sglang_results(request_rate="trace"))
