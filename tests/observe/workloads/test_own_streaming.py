"""Each request is streamed as its client, its row or nothing says; a flag that overrides that is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from traces import TraceHeader, TraceRow, write_trace

Observe: TypeAlias = Callable[..., Any]

FROM_SPEC = {"rate": None, "num_requests": None, "model": "ok"}


def spec(folder: Path, kind: str = "clients") -> str:
    """Two clients or cohorts: one that streams, one that does not, and one that says nothing."""
    traffic = {
        "rate_fraction": 1,
        "arrival": {"process": "constant"},
        "input_distribution": {"type": "constant", "params": {"value": 20}},
        "output_distribution": {"type": "constant", "params": {"value": 3}},
        **({"population": 1} if kind == "cohorts" else {}),
    }
    each = [
        {"id": "chat", "streaming": True, **traffic},
        {"id": "batch", "streaming": False, **traffic},
        {"id": "any", **traffic},
    ]
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump({"version": "2", "aggregate_rate": 150.0, "num_requests": 9, kind: each}))
    return str(path)


def streamed_by_client(run: Any) -> dict[str, tuple[bool, bool]]:
    """By client: whether its requests are recorded as streamed, and whether they came in several chunks."""
    return {row.client_id.split("-")[0]: (row.streaming, row.num_chunks > 1) for row in run.trace.rows}


@pytest.mark.parametrize("kind", ["clients", "cohorts"])
def test_each_client_of_a_spec_streams_as_it_says(kind: str, observe: Observe, tmp_path: Path) -> None:
    run = observe(workload_spec=spec(tmp_path, kind), **FROM_SPEC)
    found = streamed_by_client(run)
    assert found == {"chat": (True, True), "batch": (False, False), "any": (True, True)}
    assert "note: 3 of 9 requests are sent without streaming, as" in run.messages


def test_a_flag_overrides_all_requests_and_says_so(observe: Observe, tmp_path: Path) -> None:
    run = observe(workload_spec=spec(tmp_path), streaming=False, **FROM_SPEC)
    assert set(streamed_by_client(run).values()) == {(False, False)}
    assert "note: --no-streaming overrides streaming: true of 3 of 9 requests" in run.messages


@pytest.mark.parametrize("record_itl", [False, True])
def test_each_row_of_a_trace_streams_as_it_says(observe: Observe, tmp_path: Path, record_itl: bool) -> None:
    rows = [
        TraceRow(
            request_id=number,
            client_id=f"{is_streamed}",
            streaming=is_streamed,
            input_tokens=9,
            output_tokens=3,
            arrival_time_us=1000 * number,
        )
        for number, is_streamed in enumerate([True, False, True])
    ]
    write_trace(tmp_path / "mixed.yaml", TraceHeader(time_unit="us", mode="generated"), rows)
    run = observe(trace=str(tmp_path / "mixed.yaml"), model="ok", output="again", record_itl=record_itl)
    assert streamed_by_client(run) == {"True": (True, True), "False": (False, False)}
    if record_itl:  # no times of tokens are recorded where none can be seen
        recorded = {line.split(",")[0] for line in Path(f"{run.prefix}.itl.csv").read_text().splitlines()[1:]}
        assert recorded == {str(row.request_id) for row in run.trace.rows if row.streaming}
    everything = observe(trace=str(tmp_path / "mixed.yaml"), model="ok", output="all", streaming=True)
    assert {row.streaming for row in everything.trace.rows} == {True}
    assert "note: --streaming overrides streaming: false of 1 of 3 requests" in everything.messages


def test_a_model_that_a_trace_names_is_not_replaced_in_silence(observe: Observe, tmp_path: Path) -> None:
    row = TraceRow(request_id=0, model="theirs", input_tokens=9, output_tokens=1, arrival_time_us=0, streaming=True)
    write_trace(tmp_path / "named.yaml", TraceHeader(time_unit="us", mode="real"), [row])
    run = observe(trace=str(tmp_path / "named.yaml"), model="ok", output="again")
    assert "that name theirs are sent to ok" in run.messages
