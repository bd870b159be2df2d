"""Simulation of a cluster and its requests: routed as by Vidur's global schedulers, each replica an engine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from random import Random
from typing import Any

from blis_sim.engine.context import MAX_INSTANT_US
from blis_sim.engine.units import Micros
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.batches import BatchLog
from blis_sim.wings.vidur.cluster import Cluster, Transfers
from blis_sim.wings.vidur.replica import BatchLatency, Replica, TimedJob, micros
from blis_sim.wings.vidur.requests import requests_of
from blis_sim.wings.vidur.settings import chosen, values_of

ReplicaChooser = Callable[[TimedJob], int]


def router(name: str, replicas: Sequence[Any], draws: Random, *, is_original: bool) -> ReplicaChooser:
    """Return the function that chooses a replica for each request, called in order of arrival.

    The least loaded replica of the original is the one with the fewest requests that have not begun.
    """
    number = len(replicas)
    if name == "random":
        return lambda _: draws.randint(1, number) - 1
    if name == "lor":
        load = attrgetter("num_waiting" if is_original else "num_outstanding")
        return lambda _: min(range(number), key=[load(each) for each in replicas].__getitem__)
    turns = count()
    return lambda _: next(turns) % number


@dataclass(frozen=True, slots=True)
class Simulated:
    """Outcomes of requests, and the batches of each replica."""

    cluster: Cluster
    latencies: Sequence[BatchLatency]
    """Times of batches in each pool."""
    jobs: list[TimedJob]
    logs: list[BatchLog]
    limit_s: float
    """When the simulation ended."""

    @property
    def first_decode_replica(self) -> int:
        """The number of the first replica that only decodes, where some do; else the number of replicas."""
        return self.cluster.pools[0].num_replicas


def simulated(options: Any, cluster: Cluster, latencies: Sequence[BatchLatency]) -> Simulated:
    """Let the requests of a command line arrive, and simulate to the end or to its limit. Raises BlisError."""
    draws = Random(options.seed)
    limit_s = options.time_limit or math.inf
    jobs = [job for job in requests_of(options, draws) if job.arrived_at <= limit_s]
    in_order = sorted(jobs, key=lambda job: job.arrived_at)
    until = micros(limit_s) if options.time_limit else MAX_INSTANT_US
    metrics = values_of(options, vidur.METRICS)
    listed = metrics["enable_chrome_trace"] or metrics["store_token_completion_metrics"]
    keeps_members = bool(metrics["write_metrics"] and listed)
    links = KVLinks(cluster.transfers) if cluster.transfers is not None else None
    pools: list[list[Replica]] = []
    for pool, latency in zip(cluster.pools, latencies, strict=False):
        send_prompt = links.send_prompt if links is not None and not pools else None
        pools.append(
            [
                Replica(cluster.rules(pool.limits), latency, keeps_members=keeps_members, send_prompt=send_prompt)
                for _ in range(pool.num_replicas)
            ]
        )
    if links is not None:
        links.decode = pools[1]
    choose = router(chosen(options, vidur.GLOBAL_SCHEDULER).name, pools[0], draws, is_original=cluster.is_original)
    run(pools, in_order, choose, until, looks_at_loads=chosen(options, vidur.GLOBAL_SCHEDULER).name == "lor")
    return Simulated(cluster, latencies, jobs, [replica.log for pool in pools for replica in pool], limit_s)


def run(
    pools: Sequence[Sequence[Replica]],
    jobs: Sequence[TimedJob],
    choose: ReplicaChooser,
    until: Micros = MAX_INSTANT_US,
    *,
    looks_at_loads: bool = False,
) -> None:
    """Let `jobs` arrive in their order at replicas of the first pool, and simulate up to `until`.

    With a second pool each request also gets one of its replicas in turn. A router that looks at loads sees them at the
    instant of the arrival.
    """
    replicas = pools[0]
    for number, job in enumerate(jobs):
        if looks_at_loads:
            for replica in replicas:
                replica.engine.advance(micros(job.arrived_at) - 1)
        job.replica = choose(job)
        if len(pools) > 1:
            job.decode_replica = number % len(pools[1])
        replicas[job.replica].arrive(job, job.arrived_at)
    engines = [replica.engine for pool in pools for replica in pool]
    if len(pools) == 1:
        for engine in engines:
            engine.advance(until)
        return
    while (
        at := min((due for each in engines if (due := each.next_event_at()) is not None), default=until + 1)
    ) <= until:
        for engine in engines:
            if engine.next_event_at() == at:
                engine.advance(at)


class KVLinks:
    """Transfers of KV caches to the replicas that decode, over one link of each replica that computes prompts.

    Facts: vidur-alibabacloud, vidur/events/batch_end_event.py.
    """

    def __init__(self, transfers: Transfers) -> None:
        self.decode: Sequence[Replica] = ()
        self._transfers = transfers
        self._free_at: dict[int, float] = {}
        """When the link of a replica has taken what was given to it."""

    def send_prompt(self, job: TimedJob, at: float) -> None:
        """Send the KV cache of a prompt, which is complete at `at`."""
        assert job.decode_replica is not None
        transfer = job.transfer = self._transfers.of(job.prompt_tokens)
        replica = self.decode[job.decode_replica]
        if self._transfers.is_original:
            # The request waits there at once: a batch that begins before its KV cache arrives may take it along.
            job.decode_arrived_at = at + transfer.duration_s
            replica.arrive(job, at)
            return
        arrives_at = max(at, self._free_at.get(job.replica, 0.0)) + transfer.duration_s
        self._free_at[job.replica] = job.decode_arrived_at = arrives_at
        replica.arrive(job, arrives_at)
