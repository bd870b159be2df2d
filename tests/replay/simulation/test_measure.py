"""The experience of each request, worked out by hand."""

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.request import Request
from blis_sim.engine.sequence import Outcome
from replay.arrivals import Arrival
from replay.simulation.record import RequestRecord
from replay.simulation.simulate import Simulated, simulate
from tests.fakes import TestLatency, config, request, run
from tests.replay.small_traces import row

LATENCY = TestLatency(
    step_us=1_000, prefill_token_us=10, decode_us=100, queueing_us=300, output_token_time=7, post_decode_time=50
)


def simulated(
    *arrivals: tuple[int, Request], latency: TestLatency = LATENCY, horizon_us: int | None = None, **settings: int | str
) -> Simulated:
    given = [Arrival(at, each, row(number)) for number, (at, each) in enumerate(arrivals)]
    return simulate(Engine(config(**settings), latency), given, horizon_us)  # type: ignore[arg-type]


def token_runs(*arrivals: tuple[int, Request], latency: TestLatency, **settings: int | str) -> list[list[list[int]]]:
    """In which steps each request got its tokens after the first, in order of arrival."""
    engine = Engine(config(**settings), latency)  # type: ignore[arg-type]
    ended = {
        event.sequence.request.id: event.sequence for event in run(engine, arrivals) if isinstance(event, Finished)
    }
    return [ended[each.id].token_runs for _, each in arrivals]


def lone(each: Request, **settings: int | str) -> RequestRecord:
    (measured,) = simulated((5_000, each), latency=LATENCY, horizon_us=None, **settings).requests
    return measured


def itls(found: Simulated) -> list[int]:
    pool = found.requests.tokens.gaps()
    return [pool.at_rank(rank) for rank in range(len(pool))]


def test_a_single_token_ends_with_the_overhead_after_the_last() -> None:
    measured = lone(request(input_tokens=20, output_tokens=1))
    assert (measured.ttft_us, measured.e2e_us, measured.itl_mean_us) == (1_507, 1_557, 0)


def test_a_request_without_output_ends_with_its_prompt() -> None:
    measured = lone(request(input_tokens=20, output_tokens=0))
    assert (measured.ttft_us, measured.e2e_us, measured.itl_mean_us, measured.output_tokens) == (1_507, 1_507, 0, 0)


def test_a_request_that_gives_up_after_its_first_token_has_a_ttft_and_no_end() -> None:
    measured = lone(request(output_tokens=90, deadline_us=9_000))
    assert measured.outcome is Outcome.TIMED_OUT
    assert not measured.is_completed
    assert measured.ttft_us == 300 + 1_100 + 7
    assert (measured.e2e_us, measured.itl_mean_us, measured.output_tokens) == (None, 0, 0)


def test_a_refused_request_has_no_latencies() -> None:
    measured = lone(request(input_tokens=10_000))
    assert measured.outcome is Outcome.DROPPED
    assert (measured.ttft_us, measured.e2e_us, measured.scheduling_delay_us) == (None, None, None)


def test_a_request_that_the_horizon_cuts_off_has_no_outcome() -> None:
    found = simulated((0, request("a")), (4_900, request("b", 10, 99)), horizon_us=5_000)
    assert [each.outcome for each in found.requests] == [Outcome.COMPLETED, None]
    assert (found.requests[1].ttft_us, found.requests[1].scheduling_delay_us) == (None, None)


def test_an_arrival_after_the_horizon_is_not_there() -> None:
    found = simulated((0, request("a")), (5_001, request("b")), horizon_us=5_000)
    assert [each.id for each in found.requests] == ["a"]


def test_there_is_one_entry_per_arrival_in_order_of_arrival() -> None:
    found = simulated((0, request("a", output_tokens=9)), (10, request("b", input_tokens=10_000)), (20, request("c")))
    assert [each.id for each in found.requests] == ["a", "b", "c"]


def test_times_between_tokens_are_those_of_completed_requests_only() -> None:
    found = simulated((0, request("a", output_tokens=3)), (20_000, request("b", output_tokens=90, deadline_us=30_000)))
    assert itls(found) == [1_107, 1_107]


def test_each_request_that_ends_is_reported_once() -> None:
    reported: list[None] = []
    arrivals = [Arrival(0, request("a"), row(0)), Arrival(5, request("b", input_tokens=10_000), row(1))]
    simulate(Engine(config(), LATENCY), arrivals, on_finished=lambda: reported.append(None))
    assert len(reported) == 2


def test_with_vllm_scheduling_overheads_do_not_add_up() -> None:
    measured = lone(request(input_tokens=20, output_tokens=3), engine="vllm")
    assert measured.ttft_us == 300 + 1_200 + 7
    assert measured.e2e_us == measured.ttft_us + 2 * 1_100 + 50


def test_with_vllm_scheduling_time_in_which_a_request_got_nothing_is_between_its_tokens() -> None:
    arrivals = ((0, request("a", 8, 12)), (0, request("b", 9, 12)))
    plain = TestLatency(step_us=1_000)
    found = simulated(*arrivals, latency=plain, total_kv_blocks=8, engine="vllm")
    assert found.engine.counters.num_preemptions > 0
    all_runs = token_runs(*arrivals, latency=plain, total_kv_blocks=8, engine="vllm")
    for measured, runs in zip(found.requests, all_runs, strict=True):
        (first, count) = runs[-1]
        assert measured.e2e_us == found.engine.steps.end(first + count - 1)
    assert sum(itls(found)) == sum((each.e2e_us or 0) - (each.ttft_us or 0) for each in found.requests)


def test_tokens_of_one_step_are_handed_out_in_turn() -> None:
    latency = TestLatency(step_us=1_000, output_sequence_time=5)
    arrivals = ((0, request("a", output_tokens=4)), (0, request("b", output_tokens=2)))
    first, second = simulated(*arrivals, latency=latency, engine="vllm").requests
    assert (first.ttft_us, second.ttft_us) == (1_010, 1_010)
    assert (first.e2e_us, second.e2e_us) == (4_000 + 5, 2_000 + 10)
    assert (first.itl_mean_us, second.itl_mean_us) == (2_995 / 3, 1_000)


def test_with_blis_scheduling_a_request_that_ends_with_the_step_under_way_at_the_horizon_has_completed() -> None:
    (measured,) = simulated((0, request(input_tokens=20, output_tokens=1)), horizon_us=700, engine="blis").requests
    assert measured.outcome is Outcome.COMPLETED
    assert measured.ttft_us == 300 + 1_200 + 7
