"""A second recording in the place of a simulation: how well one run of the real server predicts another.

No simulation can be expected to do better than that. Rows and their numbers are in the order of completion, which
differs from run to run; what is the same is when each request was due.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from calibrate.itl import itl_from_ends_us, real_itl_us
from calibrate.pair import OK_STATUSES, CalibrateError
from traces import ResultRow, Trace, TraceRow

Chunks = Mapping[int, Sequence[int]]


def results_of_recording(trace: Trace, second: Trace, chunks: Chunks) -> list[ResultRow]:
    """The measurements of `second` as results for the requests of `trace` that were due at the same instants.

    Several due at one instant pair up in order of their prompts' lengths. `chunks` are the token times of `second`.
    Raises CalibrateError when no two belong together.
    """
    waiting: dict[int, list[TraceRow]] = defaultdict(list)
    for row in sorted(second.rows, key=_prompt_tokens, reverse=True):
        if row.status in OK_STATUSES and 0 < row.send_time_us <= row.first_chunk_time_us <= row.last_chunk_time_us:
            waiting[row.arrival_time_us].append(row)
    if not waiting:
        raise CalibrateError(f"no row of {second.data_path} can be compared: none was answered, with its times")
    results = []
    for row in sorted(trace.rows, key=_prompt_tokens):
        same = waiting.get(row.arrival_time_us)
        if same:
            results.append(_result(row.request_id, same.pop(), chunks))
    if not results:
        raise CalibrateError(
            f"{second.data_path} is no recording of the same workload as {trace.data_path}: "
            "no arrival_time_us is found in both"
        )
    return results


def _prompt_tokens(row: TraceRow) -> int:
    return row.server_input_tokens or row.input_tokens


def _result(request_id: int, row: TraceRow, chunks: Chunks) -> ResultRow:
    first_us, last_us = row.first_chunk_time_us, row.last_chunk_time_us
    itl_us = real_itl_us(chunks.get(row.request_id, ()), row.output_tokens, first_us)
    if math.isnan(itl_us):
        itl_us = itl_from_ends_us(row)
    return ResultRow(
        request_id=request_id,
        ttft_us=first_us - row.send_time_us,
        e2e_us=last_us - row.send_time_us,
        input_tokens=_prompt_tokens(row),
        output_tokens=row.output_tokens,
        slo_class=row.slo_class,
        model=row.model,
        itl_mean_us=None if math.isnan(itl_us) else itl_us,
        sent_at_us=row.send_time_us,
    )
