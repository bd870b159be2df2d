"""A run as a trace: its requests with their simulated outcomes."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_sim.engine.sequence import Outcome
from replay.simulation.record import Record, RequestRecord, has_any
from replay.simulation.simulate import Simulated
from traces import TraceHeader, TraceRow, write_trace
from traces.workload.request import WorkloadRequest, row_of


def write_simulated(path: Path | str, header: TraceHeader, simulated: Simulated, keeps_schedule: bool = False) -> None:
    """Write the requests of a run with their simulated times. Raises TraceError."""
    is_generated = header.mode == "generated"
    rows = trace_rows(simulated, keeps_schedule, is_generated)
    write_trace(path, header, rows, _trace_columns(simulated.requests, is_generated))


def trace_rows(simulated: Simulated, keeps_schedule: bool = False, is_generated: bool = False) -> Iterator[TraceRow]:
    """Yield the rows of the simulated trace, in order of arrival. Requests were due when they were sent, unless the run
    `keeps_schedule`. Priorities come from workloads (`is_generated`), never from a recording.

    The last chunk is that of the last token; the overhead after it, which is part of E2E, has no column.
    """
    instances = simulated.simulation.instances
    said: dict[str, int] = {}
    for each in simulated.requests:
        row = _generated_row(each, instances[each.instance].latency.post_decode_time)
        if keeps_schedule and isinstance(each.row, TraceRow):
            row = replace(row, arrival_time_us=each.row.arrival_time_us)
        if is_generated and isinstance(each.row, TraceRow):
            row = replace(row, vllm_priority=each.row.vllm_priority)
        if isinstance(each.row, WorkloadRequest) and each.row.keeps_context:
            before = said.get(row.session_id, 0)
            said[row.session_id] = each.input_tokens + each.planned_output_tokens
            row = replace(row, context_tokens=min(before, each.input_tokens))
        yield row


def _trace_columns(record: Record, is_generated: bool) -> set[str]:
    # Not slo_target_us: BLIS misreads the columns before it where it is present, and then serves no request.
    names = ("adapter", "think_time_us", "slo_e2e_us", "parents", "context_of")
    used = {name for name in names if has_any(record.rows, name)}
    if is_generated and any(
        (row.priority if isinstance(row, WorkloadRequest) else row.vllm_priority) is not None for row in record.rows
    ):
        used.add("vllm_priority")
    if has_any(record.rows, "keeps_context") or has_any(record.rows, "context_tokens"):
        used.add("context_tokens")
    return used


def _generated_row(each: RequestRecord, post_decode_us: int) -> TraceRow:
    at = each.arrived_at
    first_us = last_us = 0
    if each.ttft_us is not None:
        first_us = last_us = at + each.ttft_us
    if each.e2e_us is not None:
        last_us = at + each.e2e_us - (post_decode_us if each.planned_output_tokens else 0)
    status = "ok" if each.is_completed else "timeout" if each.outcome is Outcome.TIMED_OUT else "incomplete"
    times: dict[str, Any] = {
        "arrival_time_us": at,
        "send_time_us": at,
        "first_chunk_time_us": first_us,
        "last_chunk_time_us": last_us,
        "status": status,
    }
    if isinstance(each.row, WorkloadRequest):
        return replace(row_of(each.row, each.number), **times)
    return _replayed_row(each.row, each, times)


def _replayed_row(row: TraceRow, each: RequestRecord, times: Mapping[str, Any]) -> TraceRow:
    """A recorded row without facts from the recorded server, its prompt as long as the simulated one."""
    prefix_tokens = each.input_tokens - row.input_tokens if row.prefix_group else 0
    if row.server_input_tokens == each.input_tokens:
        # The server also counted the tokens of the chat template around both parts.
        prefix_tokens = min(each.input_tokens, row.prefix_length)
    return replace(
        row,
        prefix_length=prefix_tokens,
        input_tokens=each.input_tokens - prefix_tokens,
        vllm_priority=None,
        server_input_tokens=0,
        num_chunks=0,
        error_message="",
        finish_reason="",
        **times,
    )
