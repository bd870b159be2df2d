"""A workload spec gives the server the requests that it gives the simulator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from blis_sim.options import BlisError
from observe.options import ObserveOptions
from observe.workload import plan_of
from traces.workload.generate import generate
from traces.workload.spec import read_spec

HUGE = {"type": "constant", "params": {"value": 10**8}}
RARELY_HUGE = {"type": "empirical", "params": {"10": 99, "100000000": 1}}

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]


def written(folder: Path, **keys: Any) -> str:
    """A spec of two clients, one with a shared prefix and a model of its own."""
    lengths = {
        "input_distribution": {"type": "gaussian", "params": {"mean": 30, "std_dev": 9, "min": 5, "max": 60}},
        "output_distribution": {"type": "constant", "params": {"value": 3}},
        "arrival": {"process": "poisson"},
        "rate_fraction": 1,
    }
    first = {"id": "a", "slo_class": "critical", "prefix_group": "g", "prefix_length": 40, "model": "ok-5-0", **lengths}
    second = {"id": "b", "slo_class": "batch", "tenant_id": "t", "timeout": 400_000, **lengths, **keys}
    path = folder / "spec.yaml"
    spec = {"version": "2", "seed": 3, "aggregate_rate": 100.0, "num_requests": 20, "clients": [first, second]}
    spec["goodput_slo_targets"] = {"critical": {"ttft_ms": 50}}
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def test_the_requests_sent_are_those_of_the_spec(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    path = written(tmp_path)
    run = observe(workload_spec=path, model="ok", rate=None, num_requests=None)
    assert run.code == 0
    rows = sorted(run.trace.rows, key=lambda row: row.request_id)
    expected = generate(read_spec(path)).requests
    assert [(row.arrival_time_us, row.client_id, row.tenant_id, row.slo_class, row.model) for row in rows] == [
        (each.arrival_us, each.client_id, each.tenant_id, each.slo_class, each.model) for each in expected
    ]
    assert [row.server_input_tokens for row in rows] == [each.prefix_tokens + each.input_tokens for each in expected]
    assert {each["body"]["model"] for each in seen() if each["body"]["stream"]} == {"ok", "ok-5-0"}
    assert run.trace.header.workload_spec == path
    assert run.trace.header.goodput_slo_targets["critical"].ttft_ms == 50


def test_classes_and_tenants_are_sent_in_headers(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    observe(workload_spec=written(tmp_path), model="ok", rate=None, num_requests=None)
    names = ("x-gateway-inference-objective", "x-gateway-inference-fairness-id")
    asked = [each["headers"] for each in seen() if "x-request-id" in each["headers"]]
    assert {tuple(headers.get(name) for name in names) for headers in asked} == {("critical", None), ("batch", "t")}


def test_a_client_may_give_up_earlier_than_the_run(observe: Observe, tmp_path: Path) -> None:
    path = written(tmp_path, model="slow")
    run = observe(workload_spec=path, model="ok", rate=None, num_requests=6)
    status = {row.status for row in run.trace.rows if row.client_id == "b"}
    assert status == {"timeout"}
    assert {row.status for row in run.trace.rows if row.client_id == "a"} == {"ok"}


@pytest.mark.parametrize(
    ("keys", "options", "message"),
    [
        ({}, {"warmup_requests": 20}, r"expected more requests than --warmup-requests \(20\), got 20"),
        (
            {"input_distribution": HUGE, "prefix_group": "h", "prefix_length": 1},
            {},
            r"spec\.yaml request \d+: expected a prompt of at most 100000000 tokens, got",
        ),
        ({"prefix_group": "h", "prefix_length": 10**8}, {}, r"got 1000000\d\d"),
        (
            {
                "reasoning": {"multi_turn": {"max_rounds": 100}},
                "input_distribution": RARELY_HUGE,
                "prefix_group": "h",
                "prefix_length": 5,
            },
            {},
            r"spec\.yaml b_session_\d+: expected a prompt of at most 100000000 tokens, got 100000005",
        ),
        ({}, {"trace": "t.yaml"}, "--workload-spec and --trace exclude each other"),
    ],
)
def test_a_spec_that_cannot_be_sent_is_refused(
    keys: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BlisError, match=message):
        plan_of(ObserveOptions(url="http://h:1", output="out", workload_spec=written(tmp_path, **keys), **options))


def test_priorities_and_deadlines_are_sent_and_recorded(observe: Observe, seen: Seen, tmp_path: Path) -> None:
    path = written(tmp_path, priority=7, slo_e2e_us=1_500_250)
    run = observe(workload_spec=path, model="ok", rate=None, num_requests=None, slo_e2e="critical=2s")
    asked = [each for each in seen() if "x-request-id" in each["headers"]]
    assert {(each["body"].get("priority"), each["headers"].get("x-slo-e2e-ms")) for each in asked} == {
        *((None, "2000"), (7, "1500.25")),
    }
    assert {(row.slo_class, row.vllm_priority, row.slo_e2e_us) for row in run.trace.rows} == {
        *(("critical", 0, 0), ("batch", 7, 1_500_250)),
    }
