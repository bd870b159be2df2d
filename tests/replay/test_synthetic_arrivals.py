"""Generated requests as arrivals at an engine."""

from blis_sim.engine.request import PrefixGroupBlocks, Request, UniqueBlocks
from replay.arrivals import Arrival
from replay.closed_loop import CHUNK_SIZE, GeneratedArrivals, arrival_of
from tests.fakes import config
from tests.replay.generated_requests import sent


def test_the_engine_gets_all_columns_that_concern_it() -> None:
    origin = sent(
        70, 10, 3, deadline_us=900, slo_class="batch", adapter="x", tenant_id="t", slo_target_us=5, prefix_tokens=2
    )
    simulated = Request(
        id="request_4",
        input_tokens=12,
        output_tokens=3,
        blocks=UniqueBlocks("request_4"),
        max_output_tokens=3,
        deadline_us=900,
        slo_class="batch",
        adapter="x",
        tenant="t",
        slo_target_us=5,
    )
    assert arrival_of(origin, 4, config()) == Arrival(70, simulated, origin)


def test_requests_of_a_group_share_the_blocks_of_their_prefix() -> None:
    arrival = arrival_of(sent(prefix_group="g", prefix_tokens=9), 0, config(block_size_tokens=4))
    assert arrival.request.blocks == PrefixGroupBlocks("request_0", "g", 2)


def test_requests_made_together_are_those_made_alone() -> None:
    origins = [
        sent(number, prefix_group="g" * (number % 3 == 0), prefix_tokens=8, keeps_context=number % 5 == 0)
        for number in range(CHUNK_SIZE + 3)
    ]
    alone = [arrival_of(origin, number, config()) for number, origin in enumerate(origins)]
    together = list(GeneratedArrivals(origins, config()))
    assert together == alone
    assert all(isinstance(each, Arrival) and isinstance(each.request, Request) for each in together)
