from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError
from observe.command import run
from observe.options import ObserveOptions
from tests.patience import attempts
from tests.ports import reserved_port
from traces import TraceHeader, TraceRow, read_itl, write_trace

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


def test_each_request_becomes_a_row_with_its_times_in_order(observe: Observe) -> None:
    run = observe(model="ok-20-5", num_requests=20)
    assert run.code == 0
    assert sorted(row.request_id for row in run.trace.rows) == list(range(20))
    for row in run.trace.rows:
        assert (row.status, row.finish_reason, row.streaming, row.num_chunks) == ("ok", "length", True, 5)
        assert (row.input_tokens, row.server_input_tokens, row.output_tokens) == (20, 20, 4)
        assert row.send_time_us < row.first_chunk_time_us <= row.last_chunk_time_us
        assert len(row.x_request_id) == 36


def test_the_header_names_the_source_of_the_recording(observe: Observe) -> None:
    header = observe(model="ok", seed=7, rtt_ms=1.5).trace.header
    assert (header.mode, header.time_unit, header.trace_version, header.workload_seed) == ("real", "us", 3, 7)
    assert (header.server["type"], header.server["model"], header.measured_rtt_ms) == ("vllm", "ok", 1.5)
    assert header.created_at.endswith("Z")


def test_recorded_times_are_those_of_the_server(observe: Observe, seen: Seen) -> None:
    for _ in attempts():
        run = observe(model="ok-20-4", num_requests=30, rate=100.0, output_tokens=6, record_itl=True)
        served = {each["headers"]["x-request-id"]: each for each in seen() if "x-request-id" in each["headers"]}
        chunks = read_itl(f"{run.prefix}.itl.csv")
        there, back = [], []
        for row in run.trace.rows:
            at_server = served[row.x_request_id]
            there.append(at_server["came_us"] - row.send_time_us)
            # The chunk behind the tokens is the usage.
            written = zip(chunks[row.request_id][:-1], at_server["written_us"], strict=True)
            back += [came - wrote for came, wrote in written]
        assert min(there + back) > -100
        # Most may take longer on a busy machine, but not all of them.
        if min(there) < 1500 and min(back) < 1500:
            break


def test_the_summary_agrees_with_the_rows(observe: Observe) -> None:
    run = observe(model="ok-20-4", num_requests=15, rate=100.0, output_tokens=6, record_itl=True)
    rows = run.trace.rows
    ttft_ms = sorted((row.first_chunk_time_us - row.send_time_us) / 1000 for row in rows)
    e2e_ms = [(row.last_chunk_time_us - row.send_time_us) / 1000 for row in rows]
    assert run.summary["ttft_ms"]["p50"] == pytest.approx(ttft_ms[7], abs=0.002)
    assert run.summary["e2e_ms"]["max"] == pytest.approx(max(e2e_ms), abs=0.002)
    # The usage event comes behind the last of six tokens, right away where the machine is not busy.
    tokens_us = [times[:-1] for times in read_itl(f"{run.prefix}.itl.csv").values()]
    mean_gap_ms = sum(times[-1] - times[0] for times in tokens_us) / (len(tokens_us) * 5 * 1000)
    assert run.summary["itl_ms"]["mean"] == pytest.approx(mean_gap_ms, abs=0.002)
    assert run.summary["tpot_ms"]["mean"] == pytest.approx(run.summary["itl_ms"]["mean"], abs=0.001)
    assert (run.summary["input_tokens"], run.summary["output_tokens"]) == (15 * 20, 15 * 6)


def test_send_times_keep_to_the_schedule_without_adding_up(observe: Observe) -> None:
    for _ in attempts():
        run = observe(model="ok", rate=250.0, arrival="constant", num_requests=200)
        rows = sorted(run.trace.rows, key=lambda row: row.request_id)
        assert [row.arrival_time_us for row in rows] == [4000 * place for place in range(1, 201)]
        lags = [row.send_time_us - row.arrival_time_us for row in rows]
        latest_us = run.summary["send_lag_ms"]["max"] * 1000
        assert max(lags) - min(lags) <= latest_us + 1
        # Lateness would add up to more at the end; on a busy machine some of each half are late.
        if min(lags[100:]) - min(lags[:100]) < 2000:
            break


def test_poisson_arrivals_are_not_evenly_spaced(observe: Observe) -> None:
    run = observe(model="ok", arrival="poisson", num_requests=20)
    arrivals = sorted(row.arrival_time_us for row in run.trace.rows)
    assert len({later - earlier for earlier, later in pairwise(arrivals)}) > 10


def test_chunk_times_are_recorded_for_every_data_event(observe: Observe) -> None:
    run = observe(model="ok", api_format="chat", record_itl=True)
    chunks = read_itl(f"{run.prefix}.itl.csv")
    assert len(chunks) == 10
    for row in run.trace.rows:
        # Four tokens, the role and the usage.
        assert len(chunks[row.request_id]) == row.num_chunks == 6
        assert chunks[row.request_id][:2] == [row.first_event_time_us, row.first_chunk_time_us]
        assert chunks[row.request_id][-1] == row.last_chunk_time_us


def test_completion_requests_force_the_length_of_the_output(observe: Observe, seen: Seen) -> None:
    run = observe(model="ok")
    *_, last = seen()
    assert last["path"] == "/v1/completions"
    prompt = last["body"].pop("prompt")
    assert len(prompt.split()) == 20
    assert last["body"] == {
        "model": "ok",
        "stream": True,
        "max_tokens": 4,
        "min_tokens": 4,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    assert last["headers"]["x-request-id"] in {row.x_request_id for row in run.trace.rows}


def test_chat_prompts_leave_room_for_the_template(observe: Observe) -> None:
    run = observe(model="ok", api_format="chat", prompt_tokens=50)
    assert {row.server_input_tokens for row in run.trace.rows} == {50}


def test_prompts_differ_but_for_the_shared_prefix(observe: Observe, seen: Seen) -> None:
    run = observe(model="ok", prefix_tokens=30)
    prompts = [request["body"]["prompt"].split() for request in seen()[2:]]
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 1
    assert len({tuple(prompt[30:]) for prompt in prompts}) == 10
    assert {(row.prefix_group, row.prefix_length, row.input_tokens) for row in run.trace.rows} == {("shared", 30, 20)}


@pytest.mark.slow
def test_equal_seeds_send_equal_prompts(observe: Observe, seen: Seen) -> None:
    observe(model="ok", seed=3)
    first = {request["body"]["prompt"] for request in seen()}
    observe(model="ok", seed=3)
    assert {request["body"]["prompt"] for request in seen()} == first
    observe(model="ok", seed=4)
    assert len({request["body"]["prompt"] for request in seen()} - first) == 10


def test_answers_in_one_piece_have_one_chunk(observe: Observe, seen: Seen) -> None:
    run = observe(model="ok-10-0", streaming=False)
    assert seen()[-1]["body"]["stream"] is False
    for row in run.trace.rows:
        assert (row.streaming, row.num_chunks, row.output_tokens, row.finish_reason) == (False, 1, 4, "length")
        assert row.send_time_us + 10_000 <= row.first_chunk_time_us <= row.last_chunk_time_us


def test_without_usage_chunks_are_counted_with_a_warning(observe: Observe) -> None:
    run = observe(model="nousage")
    assert {(row.output_tokens, row.server_input_tokens, row.status) for row in run.trace.rows} == {(4, 0, "ok")}
    assert "10 answers had no usage" in run.messages
    assert "one word per token, as the server gave no token count" in run.messages


def test_outputs_of_another_length_are_pointed_out(observe: Observe) -> None:
    run = observe(model="short")
    assert {row.output_tokens for row in run.trace.rows} == {3}
    assert "10 outputs had another length than asked for" in run.messages


def test_a_run_in_which_all_requests_fail_fails(observe: Observe) -> None:
    run = observe(model="error500")
    assert run.code == 1
    assert run.summary["failed"] == {"http_500": 10}
    assert 'all requests failed, the first with: HTTP 500: {"error": "boom"} second line' in run.messages
    for row in run.trace.rows:
        assert (row.status, row.error_message) == ("error", 'HTTP 500: {"error": "boom"}\nsecond line')
        assert (row.first_chunk_time_us, row.output_tokens, row.num_chunks) == (0, 0, 0)
        assert row.send_time_us > 0


def test_a_run_with_some_failed_requests_succeeds_and_reports_them(observe: Observe) -> None:
    run = observe(model="flaky")
    assert run.code == 0
    assert run.summary["completed"] == run.summary["failed"]["http_500"] == 5
    assert "the first failure: HTTP 500" in run.messages


def test_a_stream_cut_short_is_an_error_with_what_had_come(observe: Observe) -> None:
    run = observe(model="midcut")
    assert run.summary["failed"] == {"stream": 10}
    for row in run.trace.rows:
        assert (row.status, row.num_chunks, row.output_tokens) == ("error", 2, 2)
        assert row.error_message.startswith("streaming error: ")
        assert row.first_chunk_time_us > row.send_time_us


def test_an_answer_that_takes_too_long_is_a_timeout(observe: Observe) -> None:
    run = observe(model="slow", timeout=1.0)
    assert {row.status for row in run.trace.rows} == {"timeout"}
    assert {row.error_message for row in run.trace.rows} == {"HTTP timeout: no complete answer within 1 s"}


def test_warm_up_requests_are_sent_and_left_out(observe: Observe, seen: Seen) -> None:
    run = observe(model="ok", warmup_requests=4, record_itl=True)
    assert sorted(row.request_id for row in run.trace.rows) == [4, 5, 6, 7, 8, 9]
    assert (run.trace.header.warm_up_requests, run.summary["completed"]) == (4, 6)
    assert set(read_itl(f"{run.prefix}.itl.csv")) == {4, 5, 6, 7, 8, 9}
    assert len(seen()) == 12


def test_waiting_under_max_concurrency_leaves_the_schedule_as_it_was(observe: Observe) -> None:
    run = observe(model="ok-400-0", max_concurrency=2, num_requests=6, rate=1000.0, arrival="constant")
    rows = sorted(run.trace.rows, key=lambda row: row.request_id)
    assert [row.arrival_time_us for row in rows] == [1000, 2000, 3000, 4000, 5000, 6000]
    assert rows[4].send_time_us - rows[0].send_time_us >= 800_000
    for row in rows:
        others = [other for other in rows if other.send_time_us <= row.send_time_us < other.last_chunk_time_us]
        assert len(others) <= 2
    assert run.summary["concurrency_wait_ms"]["max"] > 750
    assert run.summary["send_lag_ms"]["p50"] < 300, "the wait counts as lag"
    assert "4 requests waited for their turn under --max-concurrency" in run.messages


def test_without_a_model_the_first_that_the_server_lists_is_used(observe: Observe, seen: Seen) -> None:
    assert observe().trace.header.server["model"] == "ok"
    assert {request["body"]["model"] for request in seen()} == {"ok"}


def test_the_round_trip_is_measured_unless_given(observe: Observe) -> None:
    assert 0 < observe(model="ok").trace.header.measured_rtt_ms < 1000


def test_a_recording_is_sent_again_at_its_own_times_and_lengths(observe: Observe, tmp_path: Path, seen: Seen) -> None:
    arrivals = [5_000_000, 5_002_500, 5_090_000, 5_090_001]
    rows = [
        TraceRow(
            request_id=place, input_tokens=1, server_input_tokens=10 + place, output_tokens=2 + place,
            arrival_time_us=at_us, client_id="c", slo_class="batch",
        )
        for place, at_us in reversed(list(enumerate(arrivals)))
    ]  # fmt: skip
    write_trace(tmp_path / "recorded.yaml", TraceHeader(mode="real"), rows)
    run = observe(model="ok", trace=str(tmp_path / "recorded.yaml"), output="again")
    again = sorted(run.trace.rows, key=lambda row: row.request_id)
    assert [row.arrival_time_us for row in again] == [0, 2_500, 90_000, 90_001]
    assert [(row.server_input_tokens, row.output_tokens) for row in again] == [(10, 2), (11, 3), (12, 4), (13, 5)]
    assert {(row.client_id, row.slo_class) for row in again} == {("c", "batch")}
    lags = [row.send_time_us - row.arrival_time_us for row in again]
    assert max(lags) - min(lags) <= run.summary["send_lag_ms"]["max"] * 1000 + 1
    assert run.trace.header.workload_spec.endswith("recorded.yaml")


@pytest.mark.slow
def test_only_the_first_requests_of_a_recording_can_be_sent(observe: Observe) -> None:
    first = observe(model="ok")
    assert len(observe(model="ok", trace=f"{first.prefix}.yaml", num_requests=3, output="again").trace.rows) == 3


def test_a_recording_without_requests_is_refused(tmp_path: Path, server_url: str) -> None:
    write_trace(tmp_path / "empty.yaml", TraceHeader(), [])
    with pytest.raises(BlisError, match="expected more requests than --warmup-requests"):
        run(ObserveOptions(url=server_url, trace=str(tmp_path / "empty.yaml"), output=str(tmp_path / "out")))


def test_a_recorded_prompt_that_no_memory_has_room_for_is_refused(tmp_path: Path, server_url: str) -> None:
    rows = [
        TraceRow(
            request_id=7, input_tokens=10**8, prefix_length=5, prefix_group="g", output_tokens=1, arrival_time_us=5
        )
    ]
    write_trace(tmp_path / "huge.yaml", TraceHeader(), rows)
    huge = ObserveOptions(url=server_url, trace=str(tmp_path / "huge.yaml"), output=str(tmp_path / "out"))
    with pytest.raises(
        BlisError, match=r"huge\.yaml request 0: expected a prompt of at most 100000000 tokens, got 100000005"
    ):
        run(huge)


def test_a_server_out_of_reach_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        assert run(ObserveOptions(url=url, rate=1.0, num_requests=1, output=str(tmp_path / "out"))) == 1
    assert capsys.readouterr().err == f"blis observe: error: cannot reach {url}: connection refused\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_bad_input(server_url: str, tmp_path: Path) -> None:
    with pytest.raises(BlisError, match="must be in a folder that exists"):
        run(ObserveOptions(url=server_url, model="ok", rate=1.0, num_requests=1, output=str(tmp_path / "no" / "out")))


@pytest.mark.parametrize("streaming", [True, False])
def test_the_responses_api_gives_the_same_facts(streaming: bool, observe: Observe, seen: Seen) -> None:
    run = observe(model="ok", api_format="responses", streaming=streaming, num_requests=5, output_tokens=6)
    assert run.code == 0
    for row in run.trace.rows:
        assert (row.status, row.finish_reason) == ("ok", "length")
        assert (row.server_input_tokens, row.output_tokens) == (20, 6)
        assert row.num_chunks == (6 if streaming else 1)
        # What is reported before the first token does not count as one.
        assert row.first_chunk_time_us - row.send_time_us >= 20_000 or not streaming
    body = seen()[-1]["body"]
    assert (body["max_output_tokens"], body["ignore_eos"], body["store"]) == (6, True, False)
    assert not {"max_tokens", "min_tokens", "stream_options"} & set(body)
