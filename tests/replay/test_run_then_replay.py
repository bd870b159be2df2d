"""INV-13: the trace of a run replays to the results of the run."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_sim.cli.main import run
from blis_sim.engine.core import Engine
from replay.arrivals import arrivals_of
from replay.closed_loop import simulate_workload
from replay.output.metrics import result_rows
from replay.output.trace import write_simulated
from replay.simulation.simulate import simulate
from tests.examples import examples
from tests.fakes import TestLatency, config
from tests.replay.detailed import in_detail
from tests.traces.workload.specs import client, generated, users
from traces import TraceHeader, read_trace
from traces.graph import ids_in
from traces.workload.generate import generate
from traces.workload.request import Workload
from traces.workload.spec import read_spec

DEPLOYMENT = ("--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1")
KNOWN_UP_FRONT = [
    "s1_poisson_basic",
    "s2_multiclient_prefix_slo",
    "s5_inference_perf",
    "s5b_inference_perf_single",
    "s6_cohort_absolute",
    "s7_multimodal_windows",
]
TALK = {"max_rounds": 3, "think_time_us": 3_000}
GROWING = TALK | {"context_growth": "accumulate"}
LATENCY = TestLatency(step_us=1_000, prefill_token_us=10, queueing_us=300, output_token_time=7, post_decode_time=50)


def results(folder: Path, command: str, *arguments: str) -> tuple[bytes, bytes]:
    """The two result files that a command writes."""
    files = [folder / f"{command}.results.json", folder / f"{command}.metrics.json"]
    paths = ("--results-path", str(files[0]), "--metrics-path", str(files[1]))
    assert run([command, *arguments, *DEPLOYMENT, *paths]) == 0
    return files[0].read_bytes(), files[1].read_bytes()


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
@pytest.mark.parametrize("name", KNOWN_UP_FRONT)
def test_a_spec_run_and_replayed_gives_the_same_files(
    name: str, scheduling: str, reference: Path, tmp_path: Path
) -> None:
    spec = reference / "golden" / "tools" / "specs" / f"{name}.yaml"
    flags = ("--horizon", "20000000", "--engine", scheduling)
    prefix = str(tmp_path / "trace")
    ran = results(tmp_path, "run", "--workload-spec", str(spec), "--trace-output", prefix, *flags)
    assert results(tmp_path, "replay", f"{prefix}.yaml", *flags) == ran


@pytest.mark.parametrize(
    "flags",
    [
        ("--rate", "20"),
        ("--rate", "20", "--arrival", "gamma", "--arrival-cv", "3", "--prefix-tokens", "300"),
        ("--workload", "summarization", "--rate", "9", "--timeout", "2"),
    ],
)
def test_flags_run_and_replayed_give_the_same_files(flags: tuple[str, ...], tmp_path: Path) -> None:
    prefix = str(tmp_path / "trace")
    ran = results(tmp_path, "run", *flags, "--num-requests", "60", "--trace-output", prefix)
    assert results(tmp_path, "replay", f"{prefix}.yaml") == ran


def clients() -> st.SearchStrategy[dict[str, Any]]:
    """Clients whose requests are all known up front."""
    bell = {"type": "gaussian", "params": {"mean": 12, "std_dev": 8, "min": 0, "max": 40}}
    return st.builds(
        client,
        st.sampled_from(["a", "b", "c"]),
        arrival=st.sampled_from([{"process": "constant"}, {"process": "poisson"}, {"process": "gamma", "cv": 4}]),
        input_distribution=st.just(bell),
        output_distribution=st.just(bell),
        slo_class=st.sampled_from(["critical", "batch"]),
        prefix_group=st.sampled_from(["", "g", "h"]),
        prefix_length=st.sampled_from([4, 9]),
        timeout=st.sampled_from([None, 0, 20_000]),
        model=st.sampled_from(["", "Some/Model"]),
        reasoning=st.sampled_from([None, {"multi_turn": TALK}, {"multi_turn": GROWING}]),
        closed_loop=st.just(False),
        slo_target_us=st.sampled_from([0, 5]),
        adapter=st.sampled_from(["", "x"]),
    )


@pytest.mark.slow
@given(
    st.lists(clients(), min_size=1, max_size=3),
    st.integers(0, 99),
    st.sampled_from([20.0, 500.0]),
    st.sampled_from(["blis", "vllm"]),
    st.sampled_from([None, 60_000]),
)
@settings(max_examples=examples(40), deadline=None)
def test_any_workload_known_up_front_survives_the_way_through_a_trace(
    some: list[dict[str, Any]], seed: int, rate: float, scheduling: str, horizon_us: int | None
) -> None:
    workload = generated(*some, seed=seed, aggregate_rate=rate, num_requests=25)
    assert there_and_back(workload, scheduling, horizon_us)


def there_and_back(workload: Workload, scheduling: str, horizon_us: int | None) -> bool:
    """Whether a replay of a run gives the same outcome for every request."""

    limits = config(total_kv_blocks=40, max_num_seqs=4, max_num_batched_tokens=24, engine=scheduling)

    def engine() -> Engine:
        return Engine(limits, LATENCY, reports_steps=False)

    ran = simulate_workload(engine(), workload, horizon_us)
    with TemporaryDirectory() as folder:
        header = Path(folder) / "trace.yaml"
        write_simulated(header, TraceHeader(), ran)
        replayed = simulate(engine(), arrivals_of(read_trace(header), "some/model", limits).arrivals, horizon_us)
    same_results = list(result_rows(replayed.requests)) == list(result_rows(ran.requests))
    return same_results and in_detail(replayed) == in_detail(ran)


def test_requests_that_waited_for_replies_are_replayed_when_they_were_sent() -> None:
    assert there_and_back(generated(users(concurrency=5, think_time_us=2_000), aggregate_rate=None), "blis", None)


@pytest.mark.parametrize("scheduling", ["blis", "vllm"])
@pytest.mark.parametrize("prefix", [{}, {"prefix_group": "g", "prefix_length": 9}])
def test_a_replay_finds_what_conversations_repeat(scheduling: str, prefix: dict[str, Any]) -> None:
    workload = generated(client("a", reasoning={"multi_turn": GROWING}, **prefix), aggregate_rate=50.0, num_requests=25)
    assert there_and_back(workload, scheduling, None)


AGENTS = str(Path(__file__).resolve().parents[2] / "examples" / "agents.yaml")


def test_agents_run_and_replayed_give_the_same_files(tmp_path: Path) -> None:
    prefix = str(tmp_path / "trace")
    flags = ("--workload-spec", AGENTS, "--num-requests", "60")
    ran = results(tmp_path, "run", *flags, "--trace-output", prefix)
    assert results(tmp_path, "run", *flags) == ran
    assert results(tmp_path, "replay", f"{prefix}.yaml") == ran
    looped, metrics = results(tmp_path, "replay", f"{prefix}.yaml", "--session-mode", "closed-loop")
    assert metrics == ran[1]
    assert [{**row, "sent_at_us": 0} for row in json.loads(looped)] == [
        {**row, "sent_at_us": 0} for row in json.loads(ran[0])
    ]


def test_requests_of_agents_wait_for_all_helpers_and_for_their_tools(tmp_path: Path) -> None:
    prefix = str(tmp_path / "trace")
    results(tmp_path, "run", "--workload-spec", AGENTS, "--num-requests", "60", "--trace-output", prefix)
    rows = {row.request_id: row for row in read_trace(f"{prefix}.yaml").rows}
    joins = [row for row in rows.values() if " " in row.parents]
    assert len(joins) > 2
    for row in rows.values():
        ended_us = [rows[each].last_chunk_time_us for each in ids_in(row.parents)]
        if ended_us:
            waited_us = row.send_time_us - max(ended_us)
            assert waited_us == pytest.approx(
                row.think_time_us, abs=300
            )  # turns of connections, less than a millisecond


def test_agents_in_open_loop_are_sent_at_their_times(tmp_path: Path) -> None:
    spec, prefix = tmp_path / "open.yaml", str(tmp_path / "trace")
    spec.write_text(Path(AGENTS).read_text().replace("id: coder", "id: coder\n    closed_loop: false"))
    results(tmp_path, "run", "--workload-spec", str(spec), "--num-requests", "60", "--trace-output", prefix)
    rows = read_trace(f"{prefix}.yaml").rows
    due = {row.request_id: row.arrival_time_us for row in generate(replace(read_spec(spec), num_requests=60)).rows}
    of_agents = [row for row in rows if row.client_id == "coder"]
    assert any(row.parents for row in of_agents)
    assert [row.send_time_us for row in of_agents] == [due[row.request_id] for row in of_agents]


def test_no_request_of_an_agent_is_sent_after_the_end_of_the_workload(tmp_path: Path) -> None:
    spec, prefix = tmp_path / "short.yaml", str(tmp_path / "trace")
    spec.write_text(Path(AGENTS).read_text().replace("num_requests: 300", "horizon: 20000000"))
    results(tmp_path, "run", "--workload-spec", str(spec), "--trace-output", prefix)
    sent_us = [row.send_time_us for row in read_trace(f"{prefix}.yaml").rows]
    assert 10_000_000 < max(sent_us) <= 20_000_000


def test_an_agent_without_a_reply_sends_nothing_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of agents grow until none fits the model's context."""
    results(tmp_path, "run", "--workload-spec", AGENTS, "--num-requests", "100", "--max-model-len", "6000")
    assert "requests were not sent: a request that they wait for was not answered" in capsys.readouterr().err


def test_requests_of_agents_that_time_out_do_so_again_in_a_replay(tmp_path: Path) -> None:
    """A request that waited for a reply has its deadline a timeout after it was sent, in the trace, too."""
    spec, prefix = tmp_path / "hasty.yaml", str(tmp_path / "trace")
    spec.write_text(Path(AGENTS).read_text().replace("id: coder", "id: coder\n    timeout: 2000000"))
    ran = results(tmp_path, "run", "--workload-spec", str(spec), "--num-requests", "60", "--trace-output", prefix)
    rows = [row for row in read_trace(f"{prefix}.yaml").rows if row.client_id == "coder"]
    assert {row.status for row in rows if row.parents} == {"ok", "timeout"}
    assert {row.deadline_us - row.arrival_time_us for row in rows} == {2_000_000}
    assert results(tmp_path, "replay", f"{prefix}.yaml") == ran


PRIORITIES = """
version: "2"
seed: 3
aggregate_rate: 30
num_requests: 120
clients:
- {id: a, rate_fraction: 0.5, priority: 1, arrival: {process: poisson}, input_distribution: {type: constant,
   params: {value: 300}}, output_distribution: {type: constant, params: {value: 60}}}
- {id: b, rate_fraction: 0.5, arrival: {process: poisson}, input_distribution: {type: constant, params: {value: 301}},
   output_distribution: {type: constant, params: {value: 50}}}
"""


@pytest.mark.parametrize("engine", ["vllm", "blis"])
@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        ("priority: 1", ""),
        ("priority: 1, slo_class: batch", "slo_class: critical"),
        ("priority: 0, slo_class: batch", "slo_class: critical"),  # 0 is none where there is a class
    ],
)
def test_requests_with_and_without_a_priority_are_as_urgent_in_a_replay(
    of_a: str, of_b: str, engine: str, tmp_path: Path
) -> None:
    spec, prefix = tmp_path / "some.yaml", str(tmp_path / "trace")
    spec.write_text(PRIORITIES.replace("priority: 1", of_a).replace("id: b,", f"id: b, {of_b or 'streaming: true'},"))
    flags = ("--engine", engine, "--scheduler", "priority-fcfs", "--max-num-seqs", "4")
    ran = results(tmp_path, "run", "--workload-spec", str(spec), "--trace-output", prefix, *flags)
    assert results(tmp_path, "replay", f"{prefix}.yaml", *flags) == ran


def test_a_request_without_a_priority_has_the_one_that_a_server_takes(tmp_path: Path) -> None:
    """Priority 0, the most urgent, of a request without an SLO class."""
    spec = tmp_path / "some.yaml"
    spec.write_text(PRIORITIES)
    assert {(each.client_id, each.priority) for each in generate(read_spec(spec)).requests} == {("a", 1), ("b", 0)}
