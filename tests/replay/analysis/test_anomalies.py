"""Priority inversions, counted fast and counted one by one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replay.analysis.on_demand import priority_inversions
from replay.arrivals import Arrival
from replay.simulation.record import RequestRecord
from replay.simulation.simulate import Simulated, simulate
from tests.engine.cluster.clusters import cluster
from tests.examples import examples
from tests.fakes import request
from tests.replay.labelled_runs import labelled_runs, ran
from tests.replay.small_traces import row


def pairs(completed: list[RequestRecord]) -> int:
    """Pairs of one class of which the one that arrived first took more than twice as long."""
    in_order = sorted(completed, key=lambda each: (each.arrived_at, each.id))
    return sum(
        (earlier.e2e_us or 0) > 2 * (later.e2e_us or 0)
        for place, earlier in enumerate(in_order)
        for later in in_order[place + 1 :]
        if (earlier.row.slo_class or "default") == (later.row.slo_class or "default")
    )


def test_requests_of_different_instances_are_not_compared() -> None:
    lengths = (9, 9, 1, 1, 9, 9)  # r0, r2, r4 on one instance, r1, r3, r5 on the other
    arrivals = [
        Arrival(5 * n, request(f"r{n}", output_tokens=tokens), row(n, 5 * n)) for n, tokens in enumerate(lengths)
    ]
    assert priority_inversions(simulate(cluster(2), arrivals).requests) == 2
    assert priority_inversions(simulate(cluster(1), arrivals).requests) == 4


@given(labelled_runs())
@settings(max_examples=examples(50), deadline=None)
def test_counting_fast_counts_all_pairs(run: Simulated) -> None:
    assert priority_inversions(run.requests) == pairs([each for each in run.requests if each.is_completed])


@given(st.lists(st.integers(1, 40), min_size=100, max_size=300))
@settings(max_examples=examples(20), deadline=None)
def test_many_requests_are_counted_as_few_are(lengths: list[int]) -> None:
    run = ran(*((10 * n, request(f"r{n}", 1, length), {}) for n, length in enumerate(lengths)), max_num_seqs=4)
    assert priority_inversions(run.requests) == pairs(list(run.requests))
