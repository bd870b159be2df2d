"""Conversations and users of the original, with the lengths that it drew: identical latencies per request."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from replay.closed_loop import simulate_workload
from replay.output.findings import AnalysisConfig, analyze
from replay.output.table import summary
from replay.simulation.simulate import Simulated
from tests.golden.same_files import assert_printed
from tests.replay.detailed import in_detail
from traces import TraceRow, read_rows
from traces.workload.request import Round, Session, Workload, WorkloadRequest

PREFIXES = {"s3_multiturn_closed_loop": 128, "s3b_multiturn_open_loop": 128, "s5c_inference_perf_multiturn": 64}
CLOSED_LOOP = ["s3_multiturn_closed_loop", "s4_concurrency", "s5c_inference_perf_multiturn"]
ACCUMULATING = ("s3_multiturn_closed_loop", "s3b_multiturn_open_loop")

Recorded = tuple[list[TraceRow], dict[str, Any]]


def recorded(reference: Path, name: str) -> Recorded:
    """The requests of a run, in order of arrival, and its metrics."""
    folder = reference / "golden" / "tools" / "run"
    metrics: dict[str, Any] = json.loads((folder / f"{name}.metrics.json").read_text())
    return list(read_rows(folder / f"{name}.csv")), metrics


def request_of(row: TraceRow, name: str) -> WorkloadRequest:
    """The request a row stands for. Follow-ups of the original count their prefix as prompt."""
    prefix_tokens = PREFIXES.get(name, 0)
    counted = prefix_tokens - row.prefix_length
    return WorkloadRequest(
        arrival_us=row.arrival_time_us,
        client_id=row.client_id,
        tenant_id=row.tenant_id,
        slo_class=row.slo_class,
        prefix_group=row.tenant_id if prefix_tokens else "",
        prefix_tokens=prefix_tokens,
        input_tokens=row.input_tokens - counted,
        output_tokens=row.output_tokens,
        streaming=row.streaming,
        deadline_us=row.deadline_us,
        session_id=row.session_id,
        round_index=row.round_index,
        keeps_context=name in ACCUMULATING,
    )


def sessions_of(name: str, rows: list[TraceRow], metrics: dict[str, Any]) -> list[Session]:
    """The sessions that were recorded. A pause lasts from when a reply was complete to the next request."""
    e2e_us = {place: round(row["e2e_ms"] * 1000) for place, row in by_round(metrics).items()}
    talks: dict[str, list[TraceRow]] = defaultdict(list)
    for row in rows:
        talks[row.session_id].append(row)
    sessions = []
    for talk in talks.values():
        requests = [request_of(row, name) for row in talk]
        later = []
        for number in range(1, len(talk)):
            before, after = requests[number - 1], requests[number]
            context = before.input_tokens + before.output_tokens if before.keeps_context else 0
            replied_at = before.arrival_us + e2e_us[before.session_id, before.round_index]
            later.append(Round(after.input_tokens - context, after.output_tokens, after.arrival_us - replied_at))
        sessions.append(Session(first=requests[0], later=later, timeout_us=300_000_000))
    return sessions


def by_round(metrics: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """The rows of the metrics by session and round. Their ids are left out: the original numbers ties in no order."""
    rows = metrics["requests"]
    return {
        (row["session_id"], row["round_index"]): {key: row[key] for key in row if key != "requestID"} for row in rows
    }


def workload(requests: list[WorkloadRequest], sessions: list[Session]) -> Workload:
    return Workload(
        requests=requests,
        sessions=sessions,
        max_requests=None,
        horizon_us=None,
        goodput_slo_targets={},
        notes=(),
    )


def simulated(given: Workload) -> Simulated:
    deployment = resolve(DeploymentOptions(model="qwen/qwen3-14b", hardware="H100", tp=1, engine="blis"))
    return simulate_workload(Engine(deployment.config, deployment.latency), given)


def assert_same(run: Simulated, name: str, reference: Path) -> None:
    _, metrics = recorded(reference, name)
    ours = in_detail(run)
    assert by_round(ours) == by_round(metrics)
    assert {**ours, "requests": ()} == {**metrics, "requests": ()}
    assert_printed(
        summary(analyze(run, AnalysisConfig())), reference / "golden" / "tools" / "run" / f"{name}.stdout.txt"
    )


@pytest.mark.parametrize("name", CLOSED_LOOP)
def test_requests_released_by_replies_are_those_of_the_original(name: str, reference: Path) -> None:
    rows, metrics = recorded(reference, name)
    assert_same(simulated(workload([], sessions_of(name, rows, metrics))), name, reference)


def test_conversations_stamped_in_advance_find_their_context_as_in_the_original(reference: Path) -> None:
    rows, metrics = recorded(reference, "s3b_multiturn_open_loop")
    requests = [request_of(row, "s3b_multiturn_open_loop") for row in rows]
    assert_same(simulated(workload(requests, [])), "s3b_multiturn_open_loop", reference)
    assert metrics["cache_hit_rate"] > 0.5
