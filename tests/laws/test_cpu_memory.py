"""CPU memory for KV blocks goes with groups of layers, drafts and pipeline stages: laws on random workloads."""

import pytest

from blis_sim.engine.core import Engine
from blis_sim.engine.events import Finished
from blis_sim.engine.scheduler.vllm import VllmScheduler
from workshop.vllm_oracle.features import drawn_workload
from workshop.vllm_oracle.simulated import changes, requests_of
from workshop.vllm_oracle.workload import Workload

KINDS = ("windows", "chunks drafts", "states drafts", "latent 2-stages", "drafts 2-stages")
"""Features beside CPU memory."""


def offloaded(seed: int, is_async: bool, features: str) -> Workload:
    return drawn_workload(seed, is_async, ["offloading", *features.split()])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async", [False, True])
def test_every_request_ends_once_and_nothing_stays_held(kind: str, seed: int, is_async: bool) -> None:
    workload = offloaded(seed, is_async, kind)
    engine = Engine(workload.config, workload.latency)
    for request, at in requests_of(workload):
        engine.submit(request, at)
    ended: list[str] = []
    scheduler, offload = engine._scheduler, workload.config.offload
    assert isinstance(scheduler, VllmScheduler)
    assert offload is not None
    while (due_at := engine.next_event_at()) is not None:
        ended += [event.sequence.request.id for event in engine.advance(due_at) if isinstance(event, Finished)]
        engine.check_integrity()
        assert scheduler._offloader is not None
        assert scheduler._offloader.num_blocks <= offload.num_blocks
    assert sorted(ended) == sorted(arrival.id for arrival in workload.arrivals)
    assert engine.stats.kv_blocks_used == 0


@pytest.mark.parametrize("kind", KINDS)
def test_steps_that_are_not_reported_are_the_same(kind: str) -> None:
    workload = offloaded(7, True, kind)
    assert changes(workload, reports_steps=True) == changes(workload, reports_steps=False)
