"""The printed summary of a run, section by section."""

import json

from replay.output.findings import AnalysisConfig, Findings, analyze, as_json
from replay.output.summary import summary
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


def test_models_are_listed_with_their_throughput() -> None:
    assert printed(ran((0, request("a", output_tokens=3), {"model": "m"})))["Per-Model Metrics"] == [
        "  m:",
        "    TTFT: p50=1000.00 p99=1000.00 (n=1)",
        "    E2E:  p50=3000.00 p99=3000.00 (n=1)",
        "    Throughput: 333.3333 req/s, 1000.0000 tok/s",
    ]


def test_tenants_are_listed_with_their_fairness() -> None:
    run = ran(
        (0, request("a", output_tokens=1), {"tenant_id": "few"}),
        (0, request("b", output_tokens=3), {"tenant_id": "many"}),
        (0, request("c", output_tokens=90), {}),
    )
    assert printed(run)["Per-Tenant Metrics"] == [
        "  few: requests=1, tokens=1",
        "  many: requests=1, tokens=3",
        "  Jain Fairness Index: 0.8000",
    ]


def test_first_and_later_rounds_are_listed_separately() -> None:
    run = ran(
        (0, request("a"), {"session_id": "s"}),
        (10_000, request("b"), {"session_id": "s", "round_index": 1}),
        (30_000, request("c"), {"session_id": "t"}),
    )
    assert printed(run)["Session Metrics"] == [
        "  Sessions: 2",
        "  TTFT cold (round 0): mean=1.00 p50=1.00 p95=1.00 p99=1.00 ms (n=2)",
        "  TTFT warm (round≥1): mean=1.00 p50=1.00 p95=1.00 p99=1.00 ms (n=1)",
        "  Session duration:    mean=8.00 p50=8.00 p95=12.50 p99=12.90 ms (n=2)",
    ]


def test_preemptions_are_printed_per_completed_request() -> None:
    run = ran((0, request("a", 8, 6), {}), (0, request("b", 8, 6), {}), total_kv_blocks=6)
    assert printed(run)["KV Cache Metrics"][0] == "Preemption Rate: 0.5000"


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
