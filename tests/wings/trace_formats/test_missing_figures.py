"""A figure that a row needs and does not have is an error with file, row and key; no importer takes it for 0."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import BlisError
from tests.traces.importers.test_formats import bench_results, imported
from tests.traces.importers.test_sessions import chat
from tests.wings.trace_formats.test_agents import span, weka_call
from tests.wings.trace_formats.test_recordings import aiperf_record, genai_request


def inference_perf_entry(**info: Any) -> dict[str, Any]:
    """A request in the layout of release 0.7."""
    replied = {"output_tokens": 4, "server_usage": None, "chunk_times": [], "output_token_times": [100.25, 101.0]}
    known = {"request_metrics": {"text": {"input_tokens": 120}}, "response_metrics": replied, "input_tokens": 120}
    return {"start_time": 100.0, "end_time": 101.0, "request": "{}", "info": known | info, "error": None}


def test_figures_of_inference_perf_stand_in_parts_of_info(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 121, "completion_tokens": 5}
    counted = inference_perf_entry()
    counted["info"]["response_metrics"]["server_usage"] = usage
    whole = inference_perf_entry(response_metrics={"output_tokens": 3, "server_usage": None})
    text = json.dumps([inference_perf_entry(), counted, whole])
    found = imported("inference-perf-results", tmp_path / "t.json", text)
    first, second, third = found.rows
    assert (first.input_tokens, first.output_tokens, first.streaming, first.num_chunks) == (120, 4, True, 2)
    assert (first.first_chunk_time_us, first.last_chunk_time_us) == (100_250_000, 101_000_000)
    assert found.chunks[0] == [100_250_000, 101_000_000]
    assert (second.server_input_tokens, second.output_tokens) == (121, 5)
    assert (third.streaming, third.output_tokens, third.first_chunk_time_us) == (False, 3, 101_000_000)


def without(entry: dict[str, Any], *path: str) -> dict[str, Any]:
    """A copy of an entry without the key at the end of a path."""
    copy: dict[str, Any] = json.loads(json.dumps(entry))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return copy


def guidellm_report(entry: dict[str, Any]) -> str:
    return json.dumps({"benchmarks": [{"requests": {"successful": [entry]}}]})


TIMINGS = {"request_start": 5.0, "first_token_iteration": 5.5, "last_token_iteration": 6.0, "token_iterations": 4}
GUIDELLM = {"prompt_tokens": 10, "output_tokens": 4, "info": {"timings": TIMINGS}}
STREAMED = inference_perf_entry() | {"request": json.dumps({"stream": True})}
ANSWERED = genai_request(1000, [(1010, '{"choices": [{"text": "word"}]}')], prompt="abc")


def as_list(entry: dict[str, Any]) -> str:
    return json.dumps([entry])


def as_profile(entry: dict[str, Any]) -> str:
    return json.dumps({"experiments": [{"requests": [entry]}]})


def as_session(entry: dict[str, Any]) -> str:
    return json.dumps({"id": "s", "block_size": 64, "requests": [entry]})


def as_spans(entry: dict[str, Any]) -> str:
    return json.dumps({"spans": [entry]})


QUESTION = {"from": "human", "value": "a"}


def as_talk(entry: dict[str, Any]) -> str:
    return json.dumps([{"conversations": [entry, {"from": "gpt", "value": "b"}]}])


def as_turn(entry: dict[str, Any]) -> str:
    return json.dumps({"conversations": [[{"messages": [entry]}]]})


def as_part(entry: dict[str, Any]) -> str:
    return as_turn({"role": "user", "content": [entry]})


CASES: list[tuple[str, Callable[[dict[str, Any]], str], dict[str, Any], tuple[str, ...], str]] = [
    ("inference-perf-results", as_list, inference_perf_entry(), ("info",), "request 0: the key info is missing"),
    (
        "inference-perf-results",
        as_list,
        inference_perf_entry(),
        ("info", "response_metrics"),
        "request 0 key info: the key output_token_times is missing",
    ),
    (
        "inference-perf-results",
        as_list,
        inference_perf_entry(),
        ("info", "response_metrics", "output_tokens"),
        "request 0 key info: the key output_tokens is missing",
    ),
    (
        "inference-perf-results",
        as_list,
        STREAMED,
        ("info", "response_metrics", "output_token_times"),
        "request 0 key info: the key output_token_times is missing",
    ),
    (
        "inference-perf-results",
        as_list,
        inference_perf_entry(),
        ("end_time",),
        "request 0: the key end_time is missing",
    ),
    (
        "guidellm",
        guidellm_report,
        GUIDELLM,
        ("prompt_tokens",),
        "successful request 0: the key prompt_tokens is missing",
    ),
    (
        "guidellm",
        guidellm_report,
        GUIDELLM,
        ("output_tokens",),
        "successful request 0: the key output_tokens is missin",
    ),
    ("guidellm", guidellm_report, GUIDELLM, ("info",), "successful request 0: the key request_start is missing"),
    (
        "guidellm",
        guidellm_report,
        GUIDELLM,
        ("info", "timings", "first_token_iteration"),
        "successful request 0: the key first_token_iteration is missing",
    ),
    (
        "aiperf",
        json.dumps,
        aiperf_record(1),
        ("metrics",),
        "line 1: the metric usage_completion_tokens or output_sequence_length is missing",
    ),
    (
        "aiperf",
        json.dumps,
        aiperf_record(1),
        ("metrics", "input_sequence_length"),
        "line 1: the metric input_sequence_length or error_isl or usage_prompt_tokens is",
    ),
    (
        "aiperf",
        json.dumps,
        aiperf_record(1),
        ("metrics", "time_to_first_token"),
        "line 1: the metric time_to_first_token is missing",
    ),
    ("genai-perf", as_profile, ANSWERED, ("request_inputs",), "request 0: the key request_inputs is missing"),
    (
        "genai-perf",
        as_profile,
        ANSWERED,
        ("request_inputs", "payload"),
        "key request_inputs: the key payload is missing",
    ),
    ("vllm-bench", json.dumps, bench_results(), ("duration",), "t.json: the key duration is missing"),
    (
        "vllm-bench",
        json.dumps,
        bench_results(),
        ("start_times",),
        "t.json: the key start_times is missing beside other",
    ),
    ("weka", as_session, weka_call(0, 1, 64, 9, [1]), ("api_time",), "request 0: the key api_time is missing"),
    ("weka", as_session, weka_call(0, 1, 64, 9, [1]), ("out",), "request 0: the key out is missing"),
    (
        "mooncake",
        json.dumps,
        {"timestamp": 1, "input_length": 1, "output_length": 1},
        ("output_length",),
        "line 1: the key output_length is missing",
    ),
    (
        "bailian",
        json.dumps,
        chat(1, -1, 0.0, 16, [1], 1),
        ("hash_ids",),
        "line 1: the key hash_ids is missing",
    ),
    ("weka", as_session, weka_call(0, 1, 64, 9, [1]), ("hash_ids",), "request 0: the key hash_ids is missing"),
    ("otel", as_spans, span("x", "", 0, 9, (1, 1)), ("endTimeUnixNano",), "span 0: the key endTimeUnixNano or"),
    ("sharegpt", as_talk, QUESTION, ("from",), "entry 0 turn 0: the key from is missing, found value"),
    ("sharegpt", as_talk, QUESTION, ("value",), "entry 0 turn 0: the key value is missing, found from"),
    ("sglang-agentic", as_part, {"type": "text", "text": "a"}, ("text",), "message part: the key text is missing"),
    ("sglang-agentic", as_turn, {"role": "user", "content": "a"}, ("content",), "message: the key content is missing"),
]


@pytest.mark.parametrize(("kind", "text_of", "entry", "path", "message"), CASES)
def test_a_missing_figure_is_an_error_that_names_it(
    kind: str, text_of: Callable[[dict[str, Any]], str], entry: dict[str, Any], path: tuple[str, ...], message: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    source = tmp_path / ("t.jsonl" if kind in ("aiperf", "mooncake", "bailian") else "t.json")
    more = {"rate": 1.0} if kind == "sharegpt" else {}
    assert imported(kind, source, text_of(entry), **more).rows
    with pytest.raises(BlisError) as raised:
        imported(kind, source, text_of(without(entry, *path)), **more)
    assert message in str(raised.value)
    assert str(raised.value).startswith(str(source))


NAN: list[tuple[str, str, str]] = [
    (
        "guidellm",
        guidellm_report(GUIDELLM | {"prompt_tokens": math.nan}),
        "successful request 0 key prompt_tokens: exp",
    ),
    ("genai-perf", as_profile(ANSWERED | {"timestamp": math.nan}), "experiment 0 request 0 key timestamp: expected a"),
    ("inference-perf-results", as_list(inference_perf_entry() | {"end_time": math.inf}), "request 0 key end_time: exp"),
]


@pytest.mark.parametrize(("kind", "text", "message"), NAN)
def test_a_figure_that_is_no_number_is_named_with_its_row(kind: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BlisError) as raised:
        imported(kind, tmp_path / "t.json", text)
    assert message in str(raised.value)


def test_a_word_for_no_number_elsewhere_in_a_file_is_no_error(tmp_path: Path) -> None:
    entry = GUIDELLM | {"inter_token_latency_ms": math.nan}
    assert imported("guidellm", tmp_path / "t.json", guidellm_report(entry)).rows[0].output_tokens == 4


def test_figures_of_guidellm_may_stand_in_parts_of_their_own(tmp_path: Path) -> None:
    entry = without(without(GUIDELLM, "prompt_tokens"), "output_tokens")
    entry |= {"input_metrics": {"total_tokens": 12}, "output_metrics": {"total_tokens": 3}}
    (row,) = imported("guidellm", tmp_path / "t.json", guidellm_report(entry)).rows
    assert (row.input_tokens, row.output_tokens) == (12, 3)


def test_failed_requests_need_no_figures(tmp_path: Path) -> None:
    failed = {"start_time": 1.0, "end_time": 2.0, "info": None, "error": {"error_msg": "down"}}
    (row,) = imported("inference-perf-results", tmp_path / "t.json", json.dumps([failed])).rows
    assert (row.status, row.output_tokens, row.first_chunk_time_us) == ("error", 0, 0)


def test_vidur_rows_have_all_a_time_or_none(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,2\n,1,2\n"
    with pytest.raises(BlisError, match=r"line 3 column arrived_at: expected a time, as other rows have one, got ''"):
        imported("vidur", tmp_path / "t.csv", text, rate=1.0)


def test_calls_without_counts_are_counted_by_their_text_or_refused(tmp_path: Path) -> None:
    silent = span("x", "", 0, 100, None, **{"operation.name": "chat"})
    told = span("x", "", 0, 100, None, **{
        "operation.name": "chat",
        "input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "12345678"}]}]',
        "output.messages": '[{"role": "assistant", "content": "1234"}]',
    })  # fmt: skip
    with pytest.raises(BlisError, match=r"span 0: the attribute gen_ai.usage.input_tokens is missing, and there is no"):
        imported("otel", tmp_path / "t.json", json.dumps({"spans": [silent]}))
    found = imported("otel", tmp_path / "t.json", json.dumps({"spans": [told]}))
    assert [(row.input_tokens, row.output_tokens) for row in found.rows] == [(2, 1)]
    assert "2 counts of tokens are not in the file: tokens are estimated" in found.notes[1]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            "guidellm",
            guidellm_report(GUIDELLM | {"info": {"timings": TIMINGS | {"last_token_iteration": 5.25}}}),
            "expected the last token not before the first token, got 0.25 s before",
        ),
        (
            "inference-perf-results",
            as_list(inference_perf_entry() | {"start_time": 100.5}),
            "expected the first token not before the sending, got 0.25 s before",
        ),
        (
            "otel",
            json.dumps({"spans": [span("x", "", 9, 5, (1, 1))]}),
            "expected its end not before its begin, got 0.004",
        ),
        (
            "weka",
            as_session(weka_call(0, 1, 64, 9, [1])).replace('"block', '"hash_id_scope": "global", "block'),
            "got 'gl",
        ),
        ("weka", as_session(weka_call(0, 1, 64, 9, [1, 2])), "key hash_ids: expected at most 1 blocks of 64 tokens"),
        (
            "inference-perf-results",
            as_list(inference_perf_entry() | {"end_time": 100.5}),
            "expected the end of the request not before the last token, got 0.499 s before",
        ),
        (
            "aiperf",
            json.dumps(aiperf_record(1, request_end_ns=1_700_000_001_060_000_000)),
            "expected the end of the re",
        ),
        (
            "vllm-bench",
            json.dumps(bench_results() | {"errors": ["", "", ""], "output_lens": [3, 1, 4]}),
            "request 2 key ttfts: expected a time above 0, as output_lens has 4, got 0",
        ),
        (
            "genai-perf",
            as_profile(ANSWERED | {"request_inputs": {"text_input": None}}),
            "text_input: expected text, got",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_refused(kind: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BlisError) as raised:
        imported(kind, tmp_path / "t.json", text)
    assert message in str(raised.value)
