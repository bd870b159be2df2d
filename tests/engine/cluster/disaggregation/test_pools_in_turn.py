"""Round-robin routing in clusters whose prompts and answers are computed by separate pools."""

import pytest

from blis_sim.engine.cluster.build import build_simulation
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment import resolve
from blis_sim.engine.virtual import run_virtual
from blis_sim.options import options_from
from tests.fakes import request


def num_requests_of_instances(scheduling: str, num_prefill: int, num_decode: int) -> list[int]:
    """How many requests each instance finished of 60 whose prompts are all computed apart."""
    options = options_from(
        ClusterOptions,
        model="qwen3-14b",
        engine=scheduling,
        num_instances=num_prefill + num_decode,
        prefill_instances=num_prefill,
        decode_instances=num_decode,
        pd_decider="always",
    )
    simulation = build_simulation(options, resolve(options.deployment))
    arrivals = [(number * 10_000, request(f"r{number}", 100, 4)) for number in range(60)]
    list(run_virtual(simulation, arrivals))
    return [sum(engine.counters.ended.values()) for engine in simulation.instances]


@pytest.mark.parametrize(
    ("num_prefill", "num_decode", "expected"),
    [(2, 2, [30, 30, 30, 30]), (1, 3, [60, 20, 20, 20]), (4, 2, [15, 15, 15, 15, 30, 30])],
)
def test_vllm_gives_each_pool_a_counter(num_prefill: int, num_decode: int, expected: list[int]) -> None:
    assert num_requests_of_instances("vllm", num_prefill, num_decode) == expected


def test_blis_shares_one_counter_among_the_pools() -> None:
    assert sorted(num_requests_of_instances("blis", 2, 2)) == [0, 0, 60, 60]
