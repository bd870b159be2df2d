"""Simulation of a cluster and its requests, routed as by Vidur's global schedulers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, Protocol

from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.batches import BatchLog
from blis_sim.bench.vidur.cluster import Cluster
from blis_sim.bench.vidur.pools import KVLinks, PrefillReplica, pair_chooser
from blis_sim.bench.vidur.replica import EventQueue, Replica, StagedReplica, TimedJob, run_staged
from blis_sim.bench.vidur.requests import requests_of
from blis_sim.bench.vidur.settings import chosen, values_of
from blis_sim.bench.vidur.step_source import StepSource
from blis_sim.bench.vidur.times import BatchTimes
from blis_sim.engine.latency.operators.aicb import AicbFolder
from blis_sim.engine.latency.operators.steps import LayerShape, OperatorTimes, Overheads
from blis_sim.engine.latency.operators.tables import OperatorTables
from blis_sim.engine.scheduler.batch_rules import Batch


class Load(Protocol):
    """A replica as a router sees it."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_outstanding(self) -> int: ...


ReplicaChooser = Callable[[TimedJob], int]

LOAD_AWARE_ROUTERS = ("lor",)
"""Routers that look at replicas, which must stand at the instant of the request then."""


def router(name: str, replicas: Sequence[Load], draws: Random, *, is_original: bool) -> ReplicaChooser:
    """Return the function that chooses a replica for each request, called in order of arrival."""
    number = len(replicas)
    if name == "random":
        return lambda _: draws.randint(1, number) - 1
    if name == "lor":
        return lambda _: min(range(number), key=[_load(each, is_original) for each in replicas].__getitem__)
    turns = count()
    return lambda _: next(turns) % number


def _load(replica: Load, is_original: bool) -> int:
    """Return the load by which replicas are compared. The original counts only requests that have not begun."""
    return replica.num_waiting if is_original else replica.num_outstanding


class TimesOfBatches(Protocol):
    """Times of batches in one stage, in seconds."""

    def of(self, batch: Batch, sends: bool, /) -> float:
        """Return the time of a batch; with `sends` it goes on to another stage."""
        ...

    def of_following_decodes(self, decodes: int, context: int) -> tuple[float, float, int]:
        """Return the time of a batch of decodes, as `DecodeTimes` says."""
        ...


@dataclass(frozen=True, slots=True)
class Simulated:
    """Outcomes of requests, and the batches of each replica."""

    cluster: Cluster
    times: Sequence[TimesOfBatches]
    """Times of batches in each pool."""
    jobs: list[TimedJob]
    logs: list[BatchLog]

    @property
    def has_operators(self) -> bool:
        """Whether times are those of operators that are known one by one."""
        return isinstance(self.times[0], BatchTimes)


def overheads_of(options: Any) -> Overheads:
    """Return the overheads that are added to the operators."""
    values = values_of(options, chosen(options, vidur.PREDICTOR))
    return Overheads(
        decode_batching_fraction=values["attention_decode_batching_overhead_fraction"],
        prefill_batching_fraction=values["attention_prefill_batching_overhead_fraction"],
        nccl_launch_ms=values["nccl_cpu_launch_overhead_ms"],
        nccl_skew_ms_per_gpu=values["nccl_cpu_skew_overhead_per_device_ms"],
    )


def simulated(options: Any, cluster: Cluster, tables: OperatorTables | AicbFolder | StepSource) -> Simulated:
    """Let the requests of a command line arrive, and simulate to the end or to its limit. Raises BlisError."""
    draws = Random(options.seed)
    limit = options.time_limit or math.inf
    jobs = [job for job in requests_of(options, draws) if job.arrived_at <= limit]
    in_order = sorted(jobs, key=lambda job: job.arrived_at)
    times, keeps = _times_of_pools(options, cluster, tables), _keeps_members(options)
    if len(cluster.pools) > 1:
        return Simulated(cluster, times, jobs, _run_pools(cluster, times, in_order, limit, keeps_members=keeps))
    (pool,), (time,) = cluster.pools, times
    name = chosen(options, vidur.GLOBAL_SCHEDULER).name
    numbers = range(pool.num_replicas)
    if pool.num_stages > 1:
        event_queue = EventQueue()
        staged = [
            StagedReplica(cluster.rules(pool.limits), time.of, event_queue, pool.num_stages, keeps_members=keeps)
            for _ in numbers
        ]
        choose = router(name, staged, draws, is_original=cluster.is_original)
        run_staged(staged, event_queue, in_order, choose, limit)
        return Simulated(cluster, times, jobs, [each.log for each in staged])
    replicas = [
        Replica(cluster.rules(pool.limits), time.of, time.of_following_decodes, keeps_members=keeps) for _ in numbers
    ]
    choose = router(name, replicas, draws, is_original=cluster.is_original)
    if name in LOAD_AWARE_ROUTERS:
        run_together(replicas, in_order, choose, limit)
    else:
        for job in in_order:
            job.replica = choose(job)
        for number, replica in enumerate(replicas):
            run_together([replica], [job for job in in_order if job.replica == number], lambda _: 0, limit)
    return Simulated(cluster, times, jobs, [each.log for each in replicas])


def _keeps_members(options: Any) -> bool:
    """Return whether a file that is requested lists the requests of each batch."""
    given = values_of(options, vidur.METRICS)
    listed = given["enable_chrome_trace"] or given["store_token_completion_metrics"]
    return bool(given["write_metrics"] and listed)


def _times_of_pools(
    options: Any, cluster: Cluster, tables: OperatorTables | AicbFolder | StepSource
) -> Sequence[TimesOfBatches]:
    if isinstance(tables, StepSource):
        return tables.times
    if isinstance(tables, AicbFolder):
        from blis_sim.bench.vidur.times import aicb_times

        return aicb_times(options, cluster, tables)
    model, overheads, found = cluster.model, overheads_of(options), []
    for pool in cluster.pools:
        layers = LayerShape(
            model.num_layers // pool.num_stages,
            pool.tp,
            shares_kv_heads=model.num_q_heads > model.num_kv_heads,
            has_post_attention_norm=model.post_attn_norm,
        )
        found.append(BatchTimes(OperatorTimes(tables, layers, overheads), is_original=cluster.is_original))
    return found


def _run_pools(
    cluster: Cluster, times: Sequence[TimesOfBatches], jobs: Sequence[TimedJob], limit: float, *, keeps_members: bool
) -> list[BatchLog]:
    """Let prompts be computed by the replicas of one pool, and decodes by those of the other one."""
    event_queue, transfers = EventQueue(), cluster.transfers
    assert transfers is not None
    (prefill_pool, decode_pool), (prefill_time, decode_time) = cluster.pools, times
    decode = [
        StagedReplica(
            cluster.rules(decode_pool.limits),
            decode_time.of,
            event_queue,
            decode_pool.num_stages,
            keeps_members=keeps_members,
        )
        for _ in range(decode_pool.num_replicas)
    ]
    links = KVLinks(decode, event_queue, transfers)
    prefill = [
        PrefillReplica(
            cluster.rules(prefill_pool.limits),
            prefill_time.of,
            event_queue,
            prefill_pool.num_stages,
            links.send_prompt,
            keeps_members=keeps_members,
        )
        for _ in range(prefill_pool.num_replicas)
    ]
    run_staged(prefill, event_queue, jobs, pair_chooser(len(prefill), len(decode)), limit)
    for replica in decode:
        replica.note_unfinished()
    return [each.log for each in (*prefill, *decode)]


def run_together(replicas: Sequence[Replica], jobs: Sequence[TimedJob], choose: Any, limit: float = math.inf) -> None:
    """Let `jobs` arrive in their order, and simulate to `limit`.

    All of one instant are there before a batch begins with them.
    """
    place, number, end = 0, len(jobs), math.nextafter(limit, math.inf)
    while place < number:
        at = jobs[place].arrived_at
        for replica in replicas:
            replica.advance(at)
        chosen_ones = set()
        while place < number and jobs[place].arrived_at == at:
            job = jobs[place]
            which = choose(job)
            if len(replicas) > 1:
                job.replica = which
            replicas[which].arrive(job)
            chosen_ones.add(which)
            place += 1
        until = jobs[place].arrived_at if place < number else end
        for which in sorted(chosen_ones):
            replicas[which].wake(at, until)
    for replica in replicas:
        replica.advance(end)
        replica.note_unfinished()
