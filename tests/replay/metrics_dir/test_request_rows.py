"""Rows of request_metrics.csv, from requests that can be worked out by hand."""

from math import inf

import pytest

from replay.metrics_dir.tables import (
    REQUEST_COLUMNS,
    SIMAI_COLUMNS,
    VIDUR_COLUMNS,
    KVTransfer,
    RequestMetrics,
    request_row,
)

COMPLETE = RequestMetrics(
    number=7,
    arrived_at_s=1.0,
    inter_arrival_s=0.25,
    prompt_tokens=100,
    output_tokens=5,
    num_restarts=1,
    scheduled_at_s=1.5,
    first_token_at_s=2.0,
    completed_at_s=4.0,
    execution_s=2.0,
    preempted_s=0.5,
)


def test_the_columns_are_those_of_vidur_those_of_simai_and_the_time_between_tokens() -> None:
    assert (len(VIDUR_COLUMNS), len(SIMAI_COLUMNS)) == (21, 36)
    assert set(VIDUR_COLUMNS) < set(SIMAI_COLUMNS)
    assert (*SIMAI_COLUMNS, "tbt") == REQUEST_COLUMNS
    assert tuple(request_row(COMPLETE)) == REQUEST_COLUMNS


def test_totals_are_divided_by_the_output_tokens_and_the_time_between_tokens_by_their_gaps() -> None:
    row = request_row(COMPLETE)
    assert (row["request_e2e_time"], row["request_e2e_time_normalized"]) == (3.0, 0.6)
    assert (row["prefill_e2e_time"], row["prefill_time_execution_plus_preemption"]) == (1.0, 0.5)
    assert (row["request_scheduling_delay"], row["request_execution_plus_preemption_time"]) == (0.5, 2.5)
    assert row["decode_time_execution_plus_preemption_normalized"] == 0.4
    assert (row["decode_time"], row["tbt"]) == (2.0, 0.5)
    assert (row["request_num_tokens"], row["request_pd_ratio"], row["request_num_restarts"]) == (105, 20.0, 1)


def test_a_request_without_a_transfer_has_simai_s_infinite_sizes_and_no_replicas() -> None:
    row = request_row(COMPLETE)
    assert (row["decode_arrived_at"], row["pd_p2p_comm_size"], row["pd_p2p_comm_time"]) == (inf, inf, inf)
    assert (row["prefill_replica_id"], row["decode_replica_id"], row["pd_p2p_comm_dtype"]) == (None, None, None)


def test_a_transfer_has_its_size_its_time_and_its_rate() -> None:
    transfer = KVTransfer(size_bytes=1e6, duration_s=0.5, bytes_per_s=2e6, bytes_per_value=2.0, dtype="float16")
    moved = RequestMetrics(
        number=0,
        arrived_at_s=0.0,
        inter_arrival_s=None,
        prompt_tokens=10,
        output_tokens=1,
        prefill_replica=0,
        decode_replica=2,
        decode_arrived_at_s=1.5,
        transfer=transfer,
    )
    row = request_row(moved)
    assert (row["prefill_replica_id"], row["decode_replica_id"], row["decode_arrived_at"]) == (0, 2, 1.5)
    assert (row["pd_p2p_comm_size"], row["pd_p2p_comm_bandwidth"], row["pd_p2p_comm_dtype"]) == (1e6, 2e6, "float16")


@pytest.mark.parametrize("column", ["request_e2e_time", "completed_at", "decode_time", "preempted_time", "tbt"])
def test_a_request_that_has_not_ended_has_no_times_of_its_end(column: str) -> None:
    waiting = RequestMetrics(number=0, arrived_at_s=0.0, inter_arrival_s=None, prompt_tokens=10, output_tokens=4)
    assert request_row(waiting)[column] is None
