"""The parts of a trace that are learned from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_sim.engine.config import EngineConfig
from calibrate.fit.recording import recording_of
from tests.replay.small_traces import row, trace
from traces import TraceRow

MODEL = "qwen3-14b"
CONFIG = EngineConfig(1000)


def answered(number: int, sent_us: int, ttft_us: int = 50, decode_us: int = 200, **columns: Any) -> TraceRow:
    first_us = sent_us + ttft_us
    times = {"send_time_us": sent_us, "first_chunk_time_us": first_us, "last_chunk_time_us": first_us + decode_us}
    return row(number, sent_us, status="ok", **times, **columns)


def test_latencies_are_those_of_the_client(tmp_path: Path) -> None:
    found = recording_of(trace(tmp_path, [answered(0, 10), answered(1, 20, 70, 90)]), MODEL, CONFIG, {})
    assert found.ttft_us.tolist() == [50, 70]
    assert found.decode_us.tolist() == [200, 90]
    assert found.stretches is None


def test_a_request_without_usable_times_is_simulated_but_not_learned_from(tmp_path: Path) -> None:
    rows = [answered(0, 10), answered(1, 20, output_tokens=1), row(2, 30), answered(3, 40, ttft_us=-5)]
    found = recording_of(trace(tmp_path, rows), MODEL, CONFIG, {})
    assert len(found.arrivals) == 4
    place_of = {arrival.request.id: place for place, arrival in enumerate(found.arrivals)}
    places = [place_of[f"request_{number}"] for number in range(4)]
    assert np.isfinite(found.ttft_us[places]).tolist() == [True, True, False, False]
    assert np.isfinite(found.decode_us[places]).tolist() == [True, False, False, False]


def test_tokens_that_came_in_one_piece_teach_nothing(tmp_path: Path) -> None:
    rows = [answered(0, 10), answered(1, 20, decode_us=0), answered(2, 30, decode_us=0, output_tokens=1)]
    found = recording_of(trace(tmp_path, rows), MODEL, CONFIG, {})
    assert np.isfinite(found.ttft_us).tolist() == [True, False, True]
    assert np.isfinite(found.decode_us).tolist() == [True, False, False]


def test_parts_keep_all_requests_they_are_simulated_with(tmp_path: Path) -> None:
    whole = recording_of(trace(tmp_path, [answered(number, 10 + number) for number in range(10)]), MODEL, CONFIG, {})
    first, last = whole.without_tail(0.2), whole.only_tail(0.2)
    assert len(first.arrivals) == len(last.arrivals) == 10
    assert (np.isfinite(first.ttft_us) ^ np.isfinite(last.ttft_us)).all()
    assert np.isfinite(last.ttft_us).sum() == 2
    assert len(whole.head(3).arrivals) == len(whole.head(3).decode_us) == 3


def test_parts_keep_the_stretches_of_their_own_prompts(tmp_path: Path) -> None:
    rows = [answered(number, 100 + 70 * number, output_tokens=15) for number in range(20)]
    chunks = {number: [200 + 10 * step for step in range(7 * number, 7 * number + 15)] for number in range(20)}
    whole = recording_of(trace(tmp_path, rows), MODEL, CONFIG, chunks)
    assert whole.stretches is not None
    assert whole.stretches.requests.tolist() == list(range(1, 20))
    assert set(whole.stretches.durations_us.tolist()) == {70, 110}
    for part, prompts in ((whole.without_tail(0.25), range(1, 15)), (whole.only_tail(0.25), range(15, 20))):
        assert part.stretches is not None
        assert part.stretches.requests.tolist() == list(prompts)
    first = whole.head(6)
    assert first.stretches is not None
    assert first.stretches.requests.tolist() == list(range(1, 6))


def test_with_a_cap_requests_arrive_by_schedule(tmp_path: Path) -> None:
    late = [answered(0, 10), row(1, 20, status="ok", send_time_us=500, first_chunk_time_us=550, last_chunk_time_us=700)]
    found = recording_of(trace(tmp_path, late), MODEL, CONFIG, {}, max_concurrency=1)
    assert [arrival.at for arrival in found.arrivals] == [10, 20]
    assert found.ttft_us.tolist() == [50, 50]


def test_requests_that_were_sent_after_all_answers_found_an_idle_server(tmp_path: Path) -> None:
    rows = [answered(0, 10), answered(1, 200), answered(2, 600), answered(3, 850), answered(4, 851), answered(5, 1101)]
    found = recording_of(trace(tmp_path, rows), MODEL, CONFIG, {})
    assert found.found_idle.tolist() == [True, False, True, False, False, False]
    assert recording_of(trace(tmp_path, [*rows, answered(6, 1352)]), MODEL, CONFIG, {}).found_idle[-1]


def test_a_request_that_was_not_answered_keeps_no_server_busy(tmp_path: Path) -> None:
    found = recording_of(trace(tmp_path, [row(0, 10, send_time_us=10), answered(1, 20)]), MODEL, CONFIG, {})
    assert found.found_idle.tolist() == [True, True]


def test_requests_in_flight_are_counted_on_average(tmp_path: Path) -> None:
    found = recording_of(trace(tmp_path, [answered(0, 10), answered(1, 20), answered(2, 260)]), MODEL, CONFIG, {})
    assert found.mean_in_flight == pytest.approx(3 * 250 / 500)


def test_at_least_one_request_is_in_flight_on_average(tmp_path: Path) -> None:
    rows = [answered(0, 10), answered(1, 5000)]
    assert recording_of(trace(tmp_path, rows), MODEL, CONFIG, {}).mean_in_flight == 1
