"""From a configuration to replicas, and from requests to what became of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from blis_sim.bench.errors import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.catalogue import DEVICES, MODELS, NODES, VidurModel, known
from blis_sim.bench.vidur.options import chosen, values_of
from blis_sim.bench.vidur.planner import planned, planned_as_vllm
from blis_sim.bench.vidur.replica import BatchLog, Replica, TimedJob
from blis_sim.bench.vidur.requests import max_tokens_of, requests_of
from blis_sim.bench.vidur.routers import LOOKS_AT_REPLICAS, router
from blis_sim.bench.vidur.staged import Clockwork, StagedReplica, run_staged
from blis_sim.bench.vidur.times import BatchTimes
from blis_sim.engine.latency.operators.steps import LayerShape, OperatorTimes, Overheads
from blis_sim.engine.latency.operators.tables import OperatorTables
from blis_sim.engine.scheduler.batch_engines import BATCH_RULES
from blis_sim.engine.scheduler.batch_rules import BatchLimits, BatchRules


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster to simulate."""

    model: VidurModel
    tp: int
    num_stages: int
    num_replicas: int
    limits: BatchLimits
    rules: type[BatchRules]
    is_original: bool
    notes: tuple[str, ...] = ()
    """Lines that say what was assumed."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Outcomes of requests, and the batches of each replica."""

    cluster: Cluster
    jobs: list[TimedJob]
    logs: list[BatchLog]


def cluster_of(options: Any) -> Cluster:
    """Return what a command line describes. Raises BenchError."""
    replica = values_of(options, vidur.REPLICA)
    model: VidurModel = known(MODELS, "--replica_config_model_name", replica["model_name"])
    _, gib = known(DEVICES, "--replica_config_device", replica["device"])
    num_per_node, _ = known(NODES, "--replica_config_network_device", replica["network_device"])
    tp, pp = replica["tensor_parallel_size"], replica["num_pipeline_stages"]
    _check_placement(model, tp, pp, num_per_node)
    scheduler = chosen(options, vidur.REPLICA_SCHEDULER)
    values = values_of(options, scheduler)
    max_tokens = max_tokens_of(options)
    is_original = options.compat == "vidur"
    margin, block_size = replica["memory_margin_fraction"], values["block_size"]
    notes: tuple[str, ...] = ()
    if is_original:
        plan = planned(model, gib, margin, tp, pp, max_tokens, block_size)
    else:
        plan, notes = planned_as_vllm(model, replica["device"], gib, margin, tp, pp, max_tokens, block_size)
    limits = BatchLimits(
        num_blocks=values["num_blocks"] or plan.num_blocks,
        block_size_tokens=values["block_size"],
        max_num_seqs=values["batch_size_cap"],
        max_num_batched_tokens=values.get("chunk_size") or values.get("max_tokens_in_batch") or max_tokens,
        max_model_len=max_tokens,
        num_stages=pp,
        max_full_length_seqs=plan.num_requests,
        watermark_fraction=values["watermark_blocks_fraction"],
        max_waiting_iterations=values.get("max_waiting_iters", 10),
        is_original=is_original,
    )
    _check_limits(scheduler, limits)
    name = "vidur-vllm" if scheduler.name == "vllm" else scheduler.name.replace("_", "-")
    rules, number = BATCH_RULES[name], options.cluster_config_num_replicas
    return Cluster(model, tp, pp, number, limits, rules, is_original, notes if values["num_blocks"] is None else ())


def overheads_of(options: Any) -> Overheads:
    """Return what is added to the operators."""
    values = values_of(options, chosen(options, vidur.PREDICTOR))
    return Overheads(
        decode_batching_fraction=values["attention_decode_batching_overhead_fraction"],
        prefill_batching_fraction=values["attention_prefill_batching_overhead_fraction"],
        nccl_launch_ms=values["nccl_cpu_launch_overhead_ms"],
        nccl_skew_ms_per_gpu=values["nccl_cpu_skew_overhead_per_device_ms"],
    )


def simulated(options: Any, cluster: Cluster, tables: OperatorTables) -> Simulated:
    """Let the requests of a command line arrive, and simulate to the end. Raises BlisError."""
    draws = Random(options.seed)
    jobs = requests_of(options, draws)
    in_order = sorted(jobs, key=lambda job: job.arrived_at)
    model = cluster.model
    layers = LayerShape(
        model.num_layers // cluster.num_stages,
        cluster.tp,
        shares_kv_heads=model.num_q_heads > model.num_kv_heads,
        has_post_attention_norm=model.post_attn_norm,
    )
    times = BatchTimes(OperatorTimes(tables, layers, overheads_of(options)), is_original=cluster.is_original)
    name = chosen(options, vidur.GLOBAL_SCHEDULER).name
    numbers = range(cluster.num_replicas)
    if cluster.num_stages > 1:
        clockwork = Clockwork()
        staged = [
            StagedReplica(cluster.rules(cluster.limits), times.of, clockwork, cluster.num_stages) for _ in numbers
        ]
        run_staged(staged, clockwork, in_order, router(name, staged, draws, is_original=cluster.is_original))
        return Simulated(cluster, jobs, [each.log for each in staged])
    replicas = [Replica(cluster.rules(cluster.limits), times.of, times.of_following_decodes) for _ in numbers]
    choose = router(name, replicas, draws, is_original=cluster.is_original)
    if name in LOOKS_AT_REPLICAS:
        run_together(replicas, in_order, choose)
    else:
        for job in in_order:
            job.replica = choose(job)
        for number, replica in enumerate(replicas):
            run_together([replica], [job for job in in_order if job.replica == number], lambda _: 0)
    return Simulated(cluster, jobs, [each.log for each in replicas])


def run_together(replicas: Sequence[Replica], jobs: Sequence[TimedJob], choose: Any) -> None:
    """Let `jobs` arrive in their order. All of one instant are there before a batch begins with them."""
    place, number = 0, len(jobs)
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
        until = jobs[place].arrived_at if place < number else math.inf
        for which in sorted(chosen_ones):
            replicas[which].wake(at, until)
    for replica in replicas:
        replica.advance(math.inf)


def _check_placement(model: VidurModel, tp: int, pp: int, num_per_node: int) -> None:
    gpus = tp * pp
    if gpus > num_per_node and gpus % num_per_node:
        raise BenchError(
            f"--replica_config_tensor_parallel_size times --replica_config_num_pipeline_stages must fit in a node of "
            f"{num_per_node} GPUs, or fill several, got {tp} x {pp}"
        )
    if model.num_layers % pp:
        raise BenchError(
            f"--replica_config_num_pipeline_stages must divide the {model.num_layers} layers of {model.name}, got {pp}"
        )
    if model.num_q_heads % tp or model.embedding_dim % tp:
        raise BenchError(
            f"--replica_config_tensor_parallel_size must divide the {model.num_q_heads} heads of {model.name}, got {tp}"
        )


def _check_limits(scheduler: vidur.Group, limits: BatchLimits) -> None:
    if scheduler.name != "lightllm":
        return
    if limits.block_size_tokens != 1:
        raise BenchError(f"--{scheduler.prefix}_block_size must be 1, got {limits.block_size_tokens}")
    if limits.num_stages != 1:
        raise BenchError(f"--replica_config_num_pipeline_stages must be 1 with lightllm, got {limits.num_stages}")
