from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observe.client import Outcome
from observe.event_loop import start_clock
from observe.recording import RowFormatter, row_of
from observe.requests import PlannedRequest, PreparedRequest, SentRequest
from observe.responses import Reply
from observe.workload import COLUMNS, SESSION_COLUMNS, URGENCY_COLUMNS
from traces import TraceWriter, read_rows

NAMES = st.sampled_from(["", "a", "100%", "%d", 'a,"b"', " c"])
COUNTS = st.integers(0, 10**6)


@st.composite
def ended(draw: st.DrawFn) -> SentRequest:
    planned = PlannedRequest(
        at_us=draw(COUNTS),
        input_tokens=draw(COUNTS),
        output_tokens=1,
        prompt=draw(st.sampled_from(["", "given"])),
        prefix_group=draw(NAMES),
        prefix_tokens=draw(COUNTS),
        client_id=draw(NAMES),
        tenant_id=draw(NAMES),
        slo_class=draw(NAMES),
        session_id=draw(st.sampled_from(["", "", "s"])),
        round_index=draw(st.integers(0, 1)),
        think_time_us=draw(st.integers(0, 1)),
        context_tokens=draw(st.integers(0, 1)),
        model=draw(NAMES),
        priority=draw(st.sampled_from([None, 0, 9])),
        slo_e2e_us=draw(st.integers(0, 1)),
    )
    reply = Reply(streaming=draw(st.booleans()))
    reply.chunk_times = draw(st.lists(st.integers(1, 10**12), max_size=3))
    reply.carries_tokens = bytearray([1] * len(reply.chunk_times))
    reply.prompt_tokens, reply.completion_tokens = draw(st.none() | COUNTS), draw(st.none() | COUNTS)
    reply.finish_reason = draw(st.sampled_from(["length", "stop", "", "50%"]))
    status = draw(st.sampled_from(["ok", "ok", "error"]))
    outcome = Outcome(
        status=status,
        kind="ok",
        error_message="" if status == "ok" else draw(NAMES),
        sent=draw(st.integers(0, 10**12)),
        ended=1,
        reply=reply,
    )
    prepared = PreparedRequest(
        request_id=draw(COUNTS), planned=planned, x_request_id="a-b", request=b"", streaming=reply.streaming
    )
    return SentRequest(prepared=prepared, due=0, allowed=0, outcome=outcome)


@pytest.mark.slow
@given(st.lists(ended(), max_size=6), st.sampled_from([COLUMNS, SESSION_COLUMNS, COLUMNS | URGENCY_COLUMNS]))
def test_a_line_is_the_one_that_the_writer_makes_of_the_row(
    requests: list[SentRequest], columns: frozenset[str]
) -> None:
    clock = start_clock()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with TraceWriter(path, columns) as writer:
            lines = RowFormatter(writer, clock)
            made = [lines.line(each) for each in [*requests, *requests]]
            rows = [row_of(each, clock) for each in requests]
            assert made == [writer.line(row) for row in [*rows, *rows]]
            writer.write_lines(made[: len(rows)])
        written = read_rows(path)
    assert [row.request_id for row in written] == [row.request_id for row in rows]
