"""The printed summary of a run, section by section."""

import json

from replay.output.findings import AnalysisConfig, Findings, analyze, as_json
from replay.output.table import summary
from replay.simulation.simulate import Simulated
from tests.fakes import request
from tests.replay.labelled_runs import ran
from traces import SloTargets, dump_json


def sections(found: Findings) -> dict[str, list[str]]:
    """The lines below each title."""
    reported: dict[str, list[str]] = {}
    for section in summary(found).removeprefix("=== ").split("\n=== "):
        title, _, lines = section.partition(" ===\n")
        reported[title] = lines.splitlines()
    return reported


def printed(run: Simulated, **asked: object) -> dict[str, list[str]]:
    return sections(analyze(run, AnalysisConfig(**asked)))  # type: ignore[arg-type]


def test_a_plain_run_prints_its_metrics_only() -> None:
    reported = printed(ran((0, request(), {})))
    assert list(reported) == ["Simulation Metrics"]
    assert json.loads("\n".join(reported["Simulation Metrics"]))["completed_requests"] == 1


def test_classes_are_listed_separately_when_there_are_two_or_targets() -> None:
    one = ran((0, request("a", output_tokens=3), {}))
    assert "Per-SLO Metrics" not in printed(one)
    assert printed(one, targets={"default": SloTargets(ttft_ms=1)})["Per-SLO Metrics"] == [
        "  default:",
        "    TTFT: mean=1000.00 p99=1000.00 (n=1)",
        "    ITL:  mean=1000.00 p99=1000.00 (n=1)",
        "    E2E:  mean=3000.00 p99=3000.00 (n=1)",
    ]
    assert "Per-SLO Metrics" in printed(ran((0, request("a"), {}), (0, request("b"), {"slo_class": "batch"})))


def test_inversions_count_where_scheduling_goes_by_priority() -> None:
    first, second = request("a", output_tokens=9), request("b", output_tokens=1)
    assert "Anomaly Counters" not in printed(ran((0, first, {}), (5, second, {})))
    assert printed(ran((0, first, {}), (5, second, {}), scheduler="priority-fcfs"))["Anomaly Counters"] == [
        "Priority Inversions: 1",
        "HOL Blocking Events: 0",
        "Rejected Requests (Admission): 0",
        "Rejected Requests (Routing): 0",
        "Dropped Unservable: 0",
        "Timed Out Requests: 0",
        "Length-Capped Requests: 0",
    ]


def test_json_holds_the_metrics_and_every_breakdown() -> None:
    labels = {"slo_class": "batch", "tenant_id": "t", "model": "m", "session_id": "s"}
    run = ran((0, request("a", output_tokens=3), labels))
    asked = AnalysisConfig(
        targets={"batch": SloTargets(ttft_ms=5)}, weights={"mean_ttft": 2.0}, detectors=["threshold", "composite"]
    )
    content = json.loads(dump_json(as_json(analyze(run, asked))))
    assert (content["completed_requests"], content["slo_attainment"]) == (1, 1)
    assert list(content["saturation"]) == ["composite", "threshold"]
    breakdown = content["breakdown"]
    assert breakdown["slo_classes"]["batch"]["e2e_ms"] == {"count": 1, "mean": 3, "p50": 3, "p95": 3, "p99": 3}
    assert breakdown["models"]["m"]["responses_per_sec"] == content["responses_per_sec"]
    assert breakdown["tenants"] == {"t": {"completed_requests": 1, "output_tokens": 3}}
    assert breakdown["jain_fairness_index"] == 1
    assert breakdown["sessions"]["duration_ms"]["mean"] == 3
    assert breakdown["fitness"] == {"score": 1, "mean_ttft": 0.5}


def test_json_of_an_empty_run_has_no_labels_to_speak_of() -> None:
    content = as_json(analyze(ran(), AnalysisConfig(detectors=["threshold"])))
    assert "saturation" not in content
    assert content["breakdown"]["tenants"] == {}


def test_every_section_has_its_place() -> None:
    labels = {"slo_class": "batch", "tenant_id": "t", "model": "m", "session_id": "s"}
    run = ran(
        (0, request("a", 8, 6), labels),
        (0, request("b", 8, 6), {"slo_class": "critical"}),
        (0, request("c", input_tokens=10_000), {}),
        total_kv_blocks=6,
    )
    assert list(printed(run, weights={"throughput": 1.0})) == [
        "Simulation Metrics",
        "Fitness Evaluation",
        "Anomaly Counters",
        "KV Cache Metrics",
        "Per-SLO Metrics",
        "Per-Model Metrics",
        "Per-Tenant Metrics",
        "Session Metrics",
    ]


def test_models_are_listed_with_their_throughput() -> None:
    run = ran(*((0, request(str(length), output_tokens=length), {"model": "m"}) for length in (1, 2, 9)))
    assert printed(run)["Per-Model Metrics"] == [
        "  m:",
        "    TTFT: p50=1000.00 p99=1000.00 (n=3)",
        "    E2E:  p50=2000.00 p99=8860.00 (n=3)",
        "    Throughput: 333.3333 req/s, 1333.3333 tok/s",
    ]
