"""Times of batches in one stage: of operators, of AICB's layers, or of whole steps, as a latency model each.

The source is what --operators names, else Vidur's own profiling tables, else a latency model of whole steps.
Facts: vidur-alibabacloud, vidur/execution_time_predictor/base_execution_time_predictor.py.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import Deployment as StepDeployment
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.latency.aicb import (
    ATTENTION,
    DECODE,
    MLP,
    MOE,
    PREFILL,
    AicbFolder,
    AicbTimes,
    Deployment,
    Layers,
    LinkExchanges,
    Part,
    closest_tables,
)
from blis_sim.engine.latency.aicb import Batch as AicbBatch
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.operator_sources import PROFILES
from blis_sim.engine.latency.operators import (
    LayerShape,
    Line,
    OperatorTables,
    OperatorTimes,
    Overheads,
    read_lookup_tables,
)
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.options import BlisError, OptionError
from blis_sim.wings.vidur import settings as vidur
from blis_sim.wings.vidur.catalogue import DEVICES, MODELS, NODES
from blis_sim.wings.vidur.cluster import OUR_GPUS, Cluster, Pool, bytes_per_s
from blis_sim.wings.vidur.replica import BatchLatency
from blis_sim.wings.vidur.rules import KV_GRANULE
from blis_sim.wings.vidur.settings import chosen, values_of

_MOST_FOLLOWING = 1 << 16
OPERATIONS = (
    "mlp_up_proj",
    "mlp_activation",
    "mlp_down_proj",
    "mlp_down_proj_all_reduce",
    "attn_pre_proj",
    "attn_post_proj",
    "attn_post_proj_all_reduce",
    "attn_prefill",
    "attn_kv_cache_save",
    "attn_decode",
    "attn_rope",
    "pipeline_send_recv",
    "add",
    "input_layernorm",
    "post_attention_layernorm",
)
"""Operators of a layer as operation_metrics.csv names them."""


class OperatorLatency(BatchLatency):
    """Times of operators. The original rounds contexts up to the points of its tables; here lines join these points."""

    def __init__(self, times: OperatorTimes, *, is_original: bool) -> None:
        self._times = times
        self.rounds_contexts = is_original
        self._cpu = times.tables.cpu
        self._at_points: dict[tuple[int, int], float] = {}
        """Decodes alone, by their number and the granules of context that each has."""
        self._lines: dict[tuple[int, int], tuple[float, float, float]] = {}
        """Decodes alone, by their number and the place among the points: context, seconds, seconds for each token."""

    def seconds(self, shape: BatchShape, sends: bool = False) -> float:
        decodes, prefills = shape.decode_requests, shape.prefill_requests
        context = shape.decode_context_tokens + decodes
        if not prefills and not sends:
            return self.following_decodes(decodes, context)[0]
        kv_tokens, chunk = self._kv_tokens(decodes, context), self._chunk(shape.prefill_tokens_squared)
        prefill_kv = shape.prefill_context_tokens
        seconds = self._times.seconds(shape.num_tokens, decodes, kv_tokens, prefills, prefill_kv, chunk, sends)
        return seconds + self._cpu_s(decodes + prefills)

    def following_decodes(self, decodes: int, context: int) -> tuple[float, float, int]:
        return self._rounded(decodes, context) if self.rounds_contexts else self._exact(decodes, context)

    def operations_ms(
        self,
        prefill_tokens: int,
        decodes: int,
        context: int,
        prefills: int,
        prefill_kv_tokens: int,
        prefill_squares: int,
        *,
        sends: bool,
    ) -> tuple[float, ...]:
        """Return the milliseconds of `OPERATIONS` in one layer; NaN for attention that no request needs."""
        kv_tokens, chunk = self._kv_tokens(decodes, context), self._chunk(prefill_squares)
        num_tokens = prefill_tokens + decodes
        decode_ms, prefill_ms = self._times.attention_ms(decodes, kv_tokens, prefills, prefill_kv_tokens, chunk)
        each = self._times.operators_ms(num_tokens)
        exchange_ms = each["exchange"]
        return (
            each["mlp_up_proj"],
            each["mlp_act"],
            each["mlp_down_proj"],
            exchange_ms,
            each["attn_pre_proj"],
            each["attn_post_proj"],
            exchange_ms,
            prefill_ms if prefills else math.nan,
            each["attn_kv_cache_save"],
            decode_ms if decodes else math.nan,
            each["attn_rope"],
            each["send_recv"] if sends else 0.0,
            2 * each["add"],  # Vidur says so, and adds it once
            each["input_layernorm"],
            each["post_attention_layernorm"],
        )

    def _cpu_s(self, num_requests: int) -> float:
        """Return what the CPU takes for a batch."""
        return 0.0 if self._cpu is None else self._cpu.at(num_requests) * 1e-3

    def _kv_tokens(self, decodes: int, context: int) -> float:
        """Return the context of a decode."""
        if not decodes:
            return 0
        return -(-(context // decodes) // KV_GRANULE) * KV_GRANULE if self.rounds_contexts else context / decodes

    def _chunk(self, squares: int) -> float:
        return float(round(math.sqrt(squares))) if self.rounds_contexts else math.sqrt(squares)

    def _rounded(self, decodes: int, context: int) -> tuple[float, float, int]:
        each = context // decodes
        granules = -(-each // KV_GRANULE)
        found = self._at_points.get((decodes, granules))
        if found is None:
            found = self._times.seconds(decodes, decodes, granules * KV_GRANULE) + self._cpu_s(decodes)
            self._at_points[decodes, granules] = found
        return found, 0.0, granules * KV_GRANULE - each + 1

    def _exact(self, decodes: int, context: int) -> tuple[float, float, int]:
        places, each = self._times.tables.decode.columns, context / decodes
        place = min(max(bisect_right(places, each) - 1, 0), max(len(places) - 2, 0))
        line = self._lines.get((decodes, place))
        if line is None:
            seconds, slope = self._times.seconds(decodes, decodes, places[place]), 0.0
            if len(places) > 1:
                slope = self._times.seconds(decodes, decodes, places[place + 1]) - seconds
                slope /= places[place + 1] - places[place]
            line = self._lines[decodes, place] = (places[place], seconds + self._cpu_s(decodes), slope)
        number = math.ceil(places[place + 1] - each) if place < len(places) - 2 else _MOST_FOLLOWING
        return line[1] + (each - line[0]) * line[2], line[2], max(number, 1)


_MISSING_S = 1e-6
"""SimAI's time of a part that a layer does not have."""
_UNIT_ERROR = 1e-3
"""SimAI takes the seconds of all layers for milliseconds."""


class AicbLatency(BatchLatency):
    """Times in right units: prompts exchange between nodes, decodes over NVLink."""

    def __init__(self, times: AicbTimes) -> None:
        self._times = times

    def seconds(self, shape: BatchShape, sends: bool = False) -> float:
        decodes = shape.decode_requests
        each = shape.decode_context_tokens / decodes if decodes else 0.0
        return self._times.seconds(shape.prefill_tokens, decodes, each)


class OriginalAicbLatency(BatchLatency):
    """Times as SimAI computes them: a thousandth, and without pools of their own prompts count as decodes of nothing.

    Contexts are added up over a batch, and what no table has is taken from one of another batch or deployment.
    """

    def __init__(
        self, folder: AicbFolder, where: Deployment, phase: str, rdma_gbit_s: int, *, forces_one: bool
    ) -> None:
        self._folder = folder
        self._where = where
        self._phase = phase
        self._rdma = bytes_per_s(rdma_gbit_s, is_original=True)
        self._forces_one = forces_one
        self._known: dict[AicbBatch, float] = {}

    def seconds(self, shape: BatchShape, sends: bool = False) -> float:
        if self._phase == PREFILL:
            return self._seconds(AicbBatch(PREFILL, 1, shape.prefill_tokens))
        size = 1 if self._forces_one else shape.decode_requests
        return self._seconds(AicbBatch(DECODE, size, shape.decode_context_tokens))

    def _seconds(self, batch: AicbBatch) -> float:
        found = self._known.get(batch)
        if found is None:
            total = 0.0
            for layer in self._layers(batch):
                total += self._compute_s(layer, ATTENTION) + self._compute_s(layer, MLP) + self._experts_s(layer)
            found = self._known[batch] = total * _UNIT_ERROR
        return found

    def _compute_s(self, layer: dict[str, Part], name: str) -> float:
        part = layer.get(name)
        return part.compute_ns * 1e-9 if part is not None and part.compute_ns else _MISSING_S

    def _experts_s(self, layer: dict[str, Part]) -> float:
        part = layer.get(MOE)
        if part is None or not part.compute_ns:
            return _MISSING_S
        return part.compute_ns * 1e-9 + part.exchange_bytes / self._rdma

    def _layers(self, batch: AicbBatch) -> Layers:
        """Look a batch up: in the cache, where the next length of a sequence will do, then in all tables."""
        where, folder = self._where, self._folder
        alike = [
            other
            for deployment, other in folder.keys
            if deployment == where and (other.phase, other.size) == (batch.phase, batch.size)
        ]
        cached = [other for other in alike if folder.is_cached(where, other)]
        for others in (cached, alike):
            if batch in others:
                return folder.layers(where, batch)
            found = self._interpolated(batch, sorted(others))
            if found is not None:
                return found
        return self._of_another(batch.phase)

    def _interpolated(self, batch: AicbBatch, others: Sequence[AicbBatch]) -> Layers | None:
        """Return the line between the next shorter and longer sequence, or the one of them that there is."""
        below, above = [each for each in others if each < batch][-1:], [each for each in others if each > batch][:1]
        ends = [self._folder.layers(self._where, each) for each in (*below, *above)]
        if len(ends) < 2:
            return ends[0] if ends else None
        shortest, longest = below[0].sequence_tokens, above[0].sequence_tokens
        share = (batch.sequence_tokens - shortest) / (longest - shortest)
        return [_between(first, second, share) for first, second in zip(*ends, strict=True)]

    def _of_another(self, phase: str) -> Layers:
        """The first table of the same model, number of GPUs and phase; else of less of this."""
        where, keys = self._where, list(self._folder.keys)
        of_model = [key for key in keys if key[0].model == where.model and key[1].phase == phase]
        of_size = [key for key in of_model if key[0].world_size == where.world_size]
        return self._folder.layers(*(of_size or of_model or keys)[0])


def _between(first: dict[str, Part], second: dict[str, Part], share: float) -> dict[str, Part]:
    return {
        name: Part(
            part.compute_ns + (second[name].compute_ns - part.compute_ns) * share,
            part.exchange_bytes + (second[name].exchange_bytes - part.exchange_bytes) * share,
        )
        for name, part in first.items()
        if name in second
    }


def _aicb_latencies(options: Any, cluster: Cluster, folder: AicbFolder) -> Sequence[BatchLatency]:
    """Return the times of each pool. Raises BlisError."""
    model, experts = cluster.model, cluster.model.experts
    if experts is None:
        raise OptionError(f"--operators aicb needs a model with experts, got {model.name}")
    replica = values_of(options, vidur.REPLICA)
    tp, pp = replica["tensor_parallel_size"], replica["num_pipeline_stages"]
    phases = (PREFILL, DECODE) if len(cluster.pools) > 1 else (DECODE, DECODE)
    own: dict[str, Deployment] = {}
    for phase, pool in zip((PREFILL, DECODE), (cluster.pools[0], cluster.pools[-1]), strict=True):
        separate = f"{phase}_tensor_parallel_size", f"{phase}_num_pipeline_stages"
        own_tp, own_pp = (replica[name] or shared for name, shared in zip(separate, (tp, pp), strict=True))
        if own_pp != 1:
            raise OptionError(f"--replica_config_num_pipeline_stages must be 1 with --operators aicb, got {own_pp}")
        own[phase] = Deployment(experts.aicb_name, pool.num_gpus, own_tp, own_pp, pool.num_gpus)
    rdma, nvlink = replica["rdma_bandwidth"], replica["nvlink_bandwidth"]
    if cluster.is_original:
        forces_one = values_of(options, chosen(options, vidur.PREDICTOR))["aicb_force_bs1"]
        return [
            OriginalAicbLatency(folder, own[phase], phase, rdma, forces_one=forces_one)
            for phase, _ in zip(phases, cluster.pools, strict=False)
        ]
    links = LinkExchanges(*(bytes_per_s(each, is_original=False) for each in (rdma, nvlink)))
    found = closest_tables(folder, own)
    times = AicbTimes(found[PREFILL][1], found[DECODE][1], links)
    return [AicbLatency(times) for _ in cluster.pools]


class StepLatency(BatchLatency):
    """An equal share for each stage of the step of a latency model."""

    def __init__(self, deployment: StepDeployment, num_stages: int) -> None:
        self._step_time = deployment.latency.step_time
        self._pipeline = deployment.config.pipeline
        self._num_stages = num_stages

    def seconds(self, shape: BatchShape, sends: bool = False) -> float:
        transfer_us = self._pipeline.transfer_us(shape.num_tokens) if sends and self._pipeline is not None else 0
        return (self._step_time(shape) or 1) * 1e-6 / self._num_stages + transfer_us * 1e-6


PROFILING = Path("data/profiling")
"""Where Vidur has its profiling tables, below the folder in which it is started."""
_STEP_MODELS = ("kernels", "fitted")
"""The latency models of whole steps, the preferred one first."""
_ENOUGH_BLOCKS = 10_000
"""The memory of replicas is planned elsewhere."""
AICB, ANALYTICAL, SIMULATION = "aicb", "simai_analytical", "simai_simulation"
_BACKENDS = ("vidur", AICB, ANALYTICAL, SIMULATION)
_LEARNING = {PROFILES: "interpolation", "forest": "forest", "polynomial": "polynomial"}
"""Methods that make tables of profiling tables, by what stands before the colon of --operators."""


def source_of(options: Any) -> tuple[str | None, str]:
    """Return the kind of the tables that --operators names, and their place; a folder alone has profiling tables."""
    if options.operators is None:
        return None, ""
    name, colon, place = options.operators.partition(":")
    return (name, place) if colon else (PROFILES, name)


def reads_profiles(options: Any) -> bool:
    """Return whether times are learned from profiling tables, which may have those of the CPU."""
    return source_of(options)[0] in _LEARNING


def backend_of(options: Any) -> str:
    """Return the name of the backend that SimAI adds to the predictors."""
    return str(values_of(options, chosen(options, vidur.PREDICTOR))["backend"])


def latencies_of(options: Any, cluster: Cluster) -> tuple[Any, Sequence[BatchLatency], tuple[str, ...]]:
    """Return the times of batches in each pool, the options that say so, and notes. Raises BlisError."""
    without_tables = f"there is no folder ./{PROFILING}"
    if options.operators is not None:
        return options, _of_tables(options, cluster), ()
    if PROFILING.is_dir():
        found = replace(options, operators=str(PROFILING))
        try:
            latencies = _of_tables(found, cluster)
        except BlisError as error:
            without_tables = f"the tables in ./{PROFILING} do not serve: {error}"
        else:
            return found, latencies, (f"times of the operators of {cluster.model.name} come from ./{PROFILING}",)
    backend = backend_of(options)
    if options.compat or backend in (ANALYTICAL, SIMULATION):
        prefix = chosen(options, vidur.PREDICTOR).prefix
        flag = f"--compat {options.compat}" if options.compat else f"--{prefix}_backend {backend}"
        raise OptionError(f"{flag} needs --operators, which is not given, and {without_tables}")
    return options, *_of_steps(options, cluster, without_tables)


def _of_steps(options: Any, cluster: Cluster, without_tables: str) -> tuple[Sequence[BatchLatency], tuple[str, ...]]:
    """Return times of the first latency model of whole steps that can time all pools, and notes. Raises OptionError."""
    reasons: list[str] = []
    for name in _STEP_MODELS:
        try:
            deployments = [_deployment(options, cluster, pool, name) for pool in cluster.pools]
        except BlisError as error:
            reasons.append(f"{name}: {error}")
            continue
        found = "; ".join((f"--operators is not given and {without_tables}", *reasons))
        said = dict.fromkeys(note for each in deployments for note in each.notes if note.startswith("warning:"))
        notes = (f"step times are those of --latency-model {name}, as {found}", *said)
        return [
            StepLatency(each, pool.num_stages) for each, pool in zip(deployments, cluster.pools, strict=True)
        ], notes
    raise OptionError(f"--operators must be given: {'; '.join((without_tables, *reasons))}")


def _deployment(options: Any, cluster: Cluster, pool: Pool, latency_model: str) -> StepDeployment:
    model, device = cluster.model, values_of(options, vidur.REPLICA)["device"]
    return resolve(
        DeploymentOptions(
            model=model.name if model.experts is None else model.experts.catalogue_name,
            hardware=OUR_GPUS.get(device, device),
            tp=pool.tp,
            pp=pool.num_stages,
            latency_model=latency_model,
            total_kv_blocks=_ENOUGH_BLOCKS,
        )
    )


def _of_tables(options: Any, cluster: Cluster) -> Sequence[BatchLatency]:
    """Return times of the tables that --operators names. Raises BlisError."""
    tables, model = operator_tables(options), cluster.model
    if isinstance(tables, AicbFolder):
        return _aicb_latencies(options, cluster, tables)
    values = values_of(options, chosen(options, vidur.PREDICTOR))
    overheads = Overheads(
        decode_batching_fraction=values["attention_decode_batching_overhead_fraction"],
        prefill_batching_fraction=values["attention_prefill_batching_overhead_fraction"],
        nccl_launch_ms=values["nccl_cpu_launch_overhead_ms"],
        nccl_skew_ms_per_gpu=values["nccl_cpu_skew_overhead_per_device_ms"],
    )
    found: list[BatchLatency] = []
    for pool in cluster.pools:
        layers = LayerShape(
            model.num_layers // pool.num_stages,
            pool.tp,
            shares_kv_heads=model.num_q_heads > model.num_kv_heads,
            has_post_attention_norm=model.post_attn_norm,
        )
        found.append(OperatorLatency(OperatorTimes(tables, layers, overheads), is_original=cluster.is_original))
    return found


def operator_tables(options: Any) -> OperatorTables | AicbFolder:
    """Return the tables that --operators names. Raises BlisError."""
    name, place = source_of(options)
    read = SOURCES.get(name or "")
    if read is None or not place:
        allowed = "a folder of profiling tables, forest:DIR, polynomial:DIR, vidur-tables:PREFIX or aicb:DIR"
        raise OptionError(f"--operators must be {allowed}, got {options.operators!r}")
    predictor, backend = chosen(options, vidur.PREDICTOR), backend_of(options)
    if backend not in _BACKENDS:
        raise OptionError(f"--{predictor.prefix}_backend must be one of {', '.join(_BACKENDS)}, got {backend!r}")
    tables = read(place, options)
    if isinstance(tables, OperatorTables):
        if values_of(options, predictor)["skip_cpu_overhead_modeling"]:
            tables = replace(tables, cpu=None)
        if options.compat == "simai":
            tables.compute["attn_rope"] = Line([1], [0.0])  # SimAI has switched it off
        if backend in (ANALYTICAL, SIMULATION):
            tables.compute["all_reduce"] = _exchanges(options, backend)
    return tables


def _learned(method: str, folder: str, options: Any) -> OperatorTables:
    """Return the tables that a method makes of measurements as Vidur's `data/profiling` has them."""
    from blis_sim.engine.latency.operators import learned_tables, read_profiles

    replica = values_of(options, vidur.REPLICA)
    sizes = MODELS[replica["model_name"]]
    model = ModelSpec(
        name=sizes.name,
        num_layers=sizes.num_layers,
        hidden_size=sizes.embedding_dim,
        num_heads=sizes.num_q_heads,
        num_kv_heads=sizes.num_kv_heads,
        vocab_size=sizes.vocab_size,
        intermediate_size=sizes.mlp_hidden_dim,
    )
    gpu = GpuSpec(name=replica["device"], tflops=0, bandwidth_tb_s=0, gpus_per_node=NODES[replica["network_device"]][0])
    tp, pp = replica["tensor_parallel_size"], replica["num_pipeline_stages"]
    profiles = read_profiles(folder, LatencyChoice(model=model, gpu=gpu, tp=tp, pp=pp))
    tables, cpu = learned_tables(profiles, method, Path.home() / ".cache" / "blis" / "operators")
    return replace(tables, cpu=cpu)


SOURCES: Mapping[str, Callable[[str, Any], OperatorTables | AicbFolder]] = {
    **{name: partial(_learned, method) for name, method in _LEARNING.items()},
    "vidur-tables": lambda prefix, _: read_lookup_tables(prefix),
    "aicb": lambda folder, _: AicbFolder(folder),
}


def _exchanges(options: Any, backend: str) -> Line:
    """Return the all-reduces of a backend of SimAI. Raises BlisError."""
    from blis_sim.engine.latency.choice import NetworkOptions
    from blis_sim.engine.latency.collectives import NVLINK_GB_S, ExchangeLine, network_of

    replica, predictor = values_of(options, vidur.REPLICA), values_of(options, chosen(options, vidur.PREDICTOR))
    tp, device = replica["tensor_parallel_size"], replica["device"].upper()
    if backend == ANALYTICAL and device not in NVLINK_GB_S:
        known = ", ".join(name for name in DEVICES if name.upper() in NVLINK_GB_S)
        raise OptionError(f"--replica_config_device must be one of {known} with {ANALYTICAL}, got {replica['device']}")
    gpu = GpuSpec(name=device, tflops=0, bandwidth_tb_s=0, gpus_per_node=NODES[replica["network_device"]][0])
    given = NetworkOptions(collectives="analytical")
    if backend == SIMULATION:
        given = NetworkOptions(
            collectives=f"ns3:{predictor['simai_dir'].rstrip('/')}/bin/SimAI_simulator",
            topology=predictor["simai_simulation_topo"],
            network_config=predictor["simai_simulation_config"],
        )
    network = network_of(given, gpu, tp, replica["num_pipeline_stages"])
    assert network is not None
    return ExchangeLine(network, tp, 2 * MODELS[replica["model_name"]].embedding_dim)
