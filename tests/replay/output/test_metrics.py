"""The files and figures of a run: the fields, their order, and their values for an odd run."""

from typing import Any

from blis_sim.engine.core import Engine
from blis_sim.engine.request import Request, UniqueBlocks
from replay.arrivals import Arrival
from replay.output.metrics import aggregate, result_rows
from replay.simulation.simulate import Simulated, simulate
from tests.fakes import TestLatency, config, request
from tests.replay.detailed import in_detail
from tests.replay.small_traces import row
from traces import ResultRow, TraceRow

LATENCY = TestLatency(step_us=1_000, queueing_us=300, output_token_time=7, post_decode_time=50)

AGGREGATE = [
    "instance_id",
    "completed_requests",
    "still_queued",
    "still_running",
    "injected_requests",
    "total_input_tokens",
    "total_output_tokens",
    "vllm_estimated_duration_s",
    "responses_per_sec",
    "tokens_per_sec",
    *(f"{latency}_{figure}_ms" for latency in ("e2e", "ttft", "itl") for figure in ("mean", "p90", "p95", "p99")),
    "scheduling_delay_p99_ms",
    "preemption_count",
    "dropped_unservable",
    "length_capped_requests",
    "timed_out_requests",
]
REQUEST = [
    "arrived_at",
    "requestID",
    "num_prefill_tokens",
    "num_decode_tokens",
    "ttft_ms",
    "itl_ms",
    "e2e_ms",
    "scheduling_delay_ms",
    "handled_by",
    "round_index",
]


def simulated(
    *arrivals: tuple[int, Request, TraceRow], horizon_us: int | None = None, **settings: int | str
) -> Simulated:
    engine = Engine(config(**settings), LATENCY)  # type: ignore[arg-type]
    return simulate(engine, [Arrival(*arrival) for arrival in arrivals], horizon_us)


def figures(run: Simulated) -> dict[str, Any]:
    return aggregate(run)


def test_rates_are_0_when_nothing_completed() -> None:
    run = figures(simulated((0, request(output_tokens=99), row()), horizon_us=5_000))
    assert run["vllm_estimated_duration_s"] > 0
    assert (run["completed_requests"], run["responses_per_sec"], run["tokens_per_sec"]) == (0, 0, 0)


def test_figures_of_what_never_happened_are_0() -> None:
    run = figures(simulated((0, request(input_tokens=10_000), row())))
    assert [run[key] for key in AGGREGATE if key.endswith("_ms")] == [0] * 13


def test_requests_that_never_ended_count_for_ttft_only() -> None:
    run = figures(simulated((0, request(output_tokens=99), row()), horizon_us=5_000))
    assert run["ttft_mean_ms"] == 1.307
    assert (run["e2e_mean_ms"], run["itl_mean_ms"]) == (0, 0)


def test_every_injected_request_is_in_exactly_one_place() -> None:
    run = figures(
        simulated(
            (0, request("completed", output_tokens=1), row(0)),
            (0, request("dropped", input_tokens=10_000), row(1)),
            (0, request("timed out", output_tokens=99, deadline_us=2_000), row(2)),
            (15_000, request("running", output_tokens=99), row(4)),
            (15_000, request("queued", output_tokens=99), row(5)),
            horizon_us=18_000,
            max_num_seqs=1,
        )
    )
    places = ["completed_requests", "dropped_unservable", "timed_out_requests", "still_running", "still_queued"]
    assert [run[place] for place in places] == [1, 1, 1, 1, 1]
    assert run["injected_requests"] == 5


def test_failed_allocations_are_mentioned_only_when_there_were_any() -> None:
    """The last token of a prompt of two full blocks needs a third."""
    arrival = (0, request(input_tokens=8, output_tokens=1), row())
    assert "kv_allocation_failures" not in figures(simulated(arrival, total_kv_blocks=3))
    run = figures(simulated(arrival, total_kv_blocks=2))
    assert run["kv_allocation_failures"] == 1
    assert list(run)[list(run).index("preemption_count") - 1] == "kv_allocation_failures"


def test_a_row_names_the_tenant_of_its_request() -> None:
    labels = {"slo_class": "batch", "tenant_id": "t", "model": "m", "adapter": "l", "session_id": "s"}
    (labelled,) = in_detail(simulated((0, request(), row(0, 0, round_index=2, **labels))))["requests"]
    assert list(labelled) == [
        *REQUEST[:8],
        "slo_class",
        "tenant_id",
        "handled_by",
        "model",
        "adapter",
        "session_id",
        "round_index",
    ]
    assert labelled["round_index"] == 2
    assert {key: labelled[key] for key in labels} == labels


def test_a_capped_row_is_marked_and_keeps_the_planned_length() -> None:
    (capped,) = in_detail(simulated((0, Request("a", 10, 99, UniqueBlocks("a")), row()), max_model_len=18))["requests"]
    assert (capped["length_capped"], capped["num_decode_tokens"]) == (True, 99)


def test_refused_requests_and_those_beyond_the_horizon_have_no_row() -> None:
    run = simulated(
        (0, request("kept"), row(0)),
        (1, request("refused", input_tokens=10_000), row(1)),
        (99_000, request("beyond"), row(2)),
        horizon_us=50_000,
    )
    assert [each["requestID"] for each in in_detail(run)["requests"]] == ["kept"]


def test_a_request_under_way_at_the_horizon_has_a_row_with_zeros() -> None:
    (unfinished,) = in_detail(simulated((0, request(output_tokens=99), row()), horizon_us=400))["requests"]
    assert (unfinished["e2e_ms"], unfinished["itl_ms"]) == (0, 0)


def test_results_hold_completed_requests_by_ascending_id() -> None:
    run = simulated(
        (0, request("late", output_tokens=1), row(9)),
        (0, request("early", output_tokens=3), row(2, slo_class="batch", model="m")),
        (0, request("given up", output_tokens=99, deadline_us=2_000), row(5)),
    )
    assert list(result_rows(run.requests)) == [
        ResultRow(2, 1_307, 3_371, 10, 3, "batch", "m", 1_007),
        ResultRow(9, 1_307, 1_357, 10, 1),
    ]
    assert [each.sent_at_us for each in result_rows(run.requests, says_when_sent=True)] == [0, 0]


def test_the_last_request_of_a_repeated_id_stays() -> None:
    run = simulated((0, request("a", 10), row(4)), (9_000, request("b", 20), row(4)))
    assert [each.input_tokens for each in list(result_rows(run.requests))] == [20]
