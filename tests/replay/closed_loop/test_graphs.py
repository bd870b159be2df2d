"""Graphs of requests replayed as a closed loop: each request waits for the replies to all of its parents."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.cli.main import run
from blis_sim.engine.core import Engine
from replay.arrivals import arrivals_of
from replay.closed_loop import RecordedRounds, run_closed_loop
from replay.output.trace import trace_rows
from replay.simulation.simulate import Simulated
from tests.examples import examples
from tests.fakes import TestLatency, config
from tests.replay.small_traces import row, written
from traces import Trace, TraceHeader, TraceRow
from traces.graph import ids_in


def replayed(*rows: TraceRow, model: str = "m", think_time_us: int | None = None) -> Simulated:
    """Replies of three tokens take 3,000 us."""
    trace = Trace(TraceHeader(mode="generated"), list(rows), Path("t.yaml"), Path("t.csv"))
    arrivals = arrivals_of(trace, model, config())
    queue = RecordedRounds(arrivals, is_real=False, think_time_us=think_time_us)
    return run_closed_loop(Engine(config(), TestLatency(step_us=1_000)), queue)


def sent(run: Simulated) -> dict[int, int]:
    return {each.number: each.arrived_at for each in run.requests}


def test_a_fan_out_begins_with_the_reply_and_a_join_waits_for_the_last_of_them() -> None:
    run = replayed(
        row(0, 100),
        row(1, 200, parents="0", output_tokens=2),
        row(2, 200, parents="0", output_tokens=5, think_time_us=400),
        row(3, 900, parents="1 2", think_time_us=50),
    )
    assert sent(run) == {0: 100, 1: 3_101, 2: 3_500, 3: 9_101 + 50}


def test_a_given_pause_takes_the_place_of_recorded_ones() -> None:
    assert sent(replayed(row(0), row(1, parents="0", think_time_us=9), think_time_us=70)) == {0: 0, 1: 3_070}


def test_children_of_a_request_that_is_not_answered_are_not_sent() -> None:
    run = replayed(row(0, deadline_us=1_500), row(1), row(2, parents="0 1"), row(3, parents="2"), row(4, parents="1"))
    assert set(sent(run)) == {0, 1, 4}


def test_rows_of_a_session_with_parents_wait_for_these_alone() -> None:
    rows = [
        row(0, 0, session_id="s"),
        row(1, 10, session_id="s", round_index=1),
        row(2, 10, session_id="s", round_index=2, parents="0"),
    ]
    assert sent(replayed(*rows)) == {0: 0, 1: 10, 2: 3_001}


def test_a_row_for_another_model_is_passed_over_by_those_that_wait_for_it() -> None:
    run = replayed(row(0), row(1, parents="0", model="other"), row(2, parents="1", think_time_us=5))
    assert sent(run) == {0: 0, 2: 3_005}
    assert [each.parents for each in trace_rows(run)] == ["", "0"]


def test_the_command_says_how_many_requests_were_not_sent(tmp_path: Path, capfd: object) -> None:
    rows = [row(0, deadline_us=1), row(1, parents="0"), row(2, parents="1"), row(3)]
    header, results = written(tmp_path, rows), tmp_path / "results.json"
    command = ["replay", str(header), "--model", "qwen/qwen3-14b", "--session-mode", "closed-loop"]
    assert run([*command, "--results-path", str(results)]) == 0
    assert "2 requests were not sent: a request that they wait for was not answered" in capfd.readouterr().err  # type: ignore[attr-defined]
    assert [each["request_id"] for each in json.loads(results.read_text())] == [3]


@st.composite
def graphs(draw: st.DrawFn) -> list[TraceRow]:
    """Rows in any order, each of which waits for some of those made before it."""
    count = draw(st.integers(1, 9))
    ids = draw(st.permutations(range(count)))
    rows = []
    for place in range(count):
        parents = draw(st.lists(st.sampled_from(ids[:place]), max_size=3, unique=True)) if place else []
        rows.append(
            row(
                ids[place],
                draw(st.integers(0, 5)) * 700,
                parents=" ".join(map(str, parents)),
                think_time_us=draw(st.sampled_from([0, 1, 250, 4_000])),
                context_tokens=draw(st.integers(0, 30)),
                input_tokens=draw(st.integers(1, 40)),
                output_tokens=draw(st.integers(1, 6)),
            )
        )
    return draw(st.permutations(rows))


@settings(max_examples=examples(60), deadline=None)
@given(rows=graphs())
def test_all_requests_complete_and_none_begins_before_its_pause_after_the_last_parent(rows: list[TraceRow]) -> None:
    found = list(replayed(*rows).requests)
    assert {each.number for each in found} == {each.request_id for each in rows}
    assert all(each.is_completed for each in found)
    ended = {each.number: each.arrived_at + (each.e2e_us or 0) for each in found}
    begun = {each.number: each.arrived_at for each in found}
    for each in rows:
        parents = ids_in(each.parents)
        expected = max((ended[one] for one in parents), default=0) + max(1, each.think_time_us)
        assert begun[each.request_id] == (expected if parents else each.arrival_time_us)
    assert list(replayed(*rows).requests) == found
