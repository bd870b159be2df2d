"""Our choice of a data-parallel rank against vLLM's own, request by request.

    PYTHON_WITH_VLLM -m workshop.vllm_oracle.balancing --seeds 1000

Run it like `workshop.vllm_oracle`. Requests come and end, and news of the ranks' loads arrive, at random.
"""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from blis_sim.engine.data_parallel import RankBalancer, RankLoad
from workshop.ending import run_command
from workshop.vllm_oracle.histories import compare

NUM_EVENTS = 300


def main() -> int:
    """Return the exit code."""
    return compare("balancing", "Our choice of a rank against vLLM's own.", _compared)


def _compared(seed: int) -> tuple[str, int]:
    theirs, ours = _choices(seed)
    return ("" if theirs == ours else f"vLLM chooses {theirs}\nours {ours}"), len(ours)


def _choices(seed: int) -> tuple[list[int], list[int]]:
    """Return the ranks that both choose over one history."""
    generator = np.random.default_rng(seed)
    num_ranks, num_front_ends = int(generator.integers(2, 9)), int(generator.integers(1, 5))
    front_end = int(generator.integers(0, num_front_ends))
    client = genuine_client(num_ranks, num_front_ends, front_end)
    balancer = RankBalancer(num_ranks, num_front_ends, front_end)
    theirs: list[int] = []
    ours: list[int] = []
    unfinished: list[tuple[str, int]] = []
    for number in range(NUM_EVENTS):
        kind = generator.random()
        if kind < 0.1:
            loads = [
                RankLoad(int(generator.integers(0, 6)), int(generator.integers(0, 20)), float(generator.random()))
                for _ in range(num_ranks)
            ]
            balancer.update_loads(loads)
            client.lb_engines = [[load.num_waiting, load.num_running, load.kv_usage_fraction] for load in loads]
        elif kind < 0.5 and unfinished:
            name, rank = unfinished.pop(int(generator.integers(len(unfinished))))
            balancer.finished(rank)
            client.engine_inflight[client.reqs_in_flight.pop(name)] -= 1
        else:
            named = int(generator.integers(num_ranks)) if kind > 0.95 else None
            asked = SimpleNamespace(
                request_id=f"r{number}", resumable=False, data_parallel_rank=named, pooling_params=None
            )
            theirs.append(client.core_engines.index(client.get_core_engine_for_request(asked)))
            if named is None:
                ours.append(balancer.choose())
            else:
                balancer.send_to(named)
                ours.append(named)
            unfinished.append((f"r{number}", ours[-1]))
    return theirs, ours


def genuine_client(num_ranks: int, num_front_ends: int, front_end: int) -> Any:
    """Return vLLM's client without its processes and sockets."""
    from vllm.v1.engine.core_client import DPLBAsyncMPClient  # type: ignore[import-not-found]

    client = object.__new__(DPLBAsyncMPClient)
    client.core_engines = [bytes([rank]) for rank in range(num_ranks)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(num_ranks)]
    client.client_count = num_front_ends
    client.eng_start_index = num_ranks * front_end // num_front_ends
    client.reqs_in_flight = {}
    client.streaming_reqs = set()
    client.engine_inflight = Counter()
    return client


if __name__ == "__main__":
    run_command(main)
