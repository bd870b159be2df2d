"""The time of a batch in one stage: from times of operators, or from AICB's tables, as computed by SimAI too.

Facts: vidur-alibabacloud, vidur/execution_time_predictor/base_execution_time_predictor.py.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.cluster import Cluster
from blis_sim.bench.vidur.pools import bytes_per_s
from blis_sim.bench.vidur.settings import chosen, values_of
from blis_sim.engine.latency.operators.aicb import (
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
)
from blis_sim.engine.latency.operators.aicb import Batch as AicbBatch
from blis_sim.engine.latency.operators.aicb_steps import closest_tables
from blis_sim.engine.latency.operators.steps import OperatorTimes
from blis_sim.engine.scheduler.batch_rules import KV_GRANULE, Batch

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


class BatchTimes:
    """Times in seconds. The original rounds contexts up to the points of its tables; here lines join these points."""

    def __init__(self, times: OperatorTimes, *, is_original: bool) -> None:
        self._times = times
        self._is_original = is_original
        self._cpu = times.tables.cpu
        self._at_points: dict[tuple[int, int], float] = {}
        """Decodes alone, by their number and the granules of context that each has."""
        self._lines: dict[tuple[int, int], tuple[float, float, float]] = {}
        """Decodes alone, by their number and the place among the points: context, seconds, seconds for each token."""
        self.of_following_decodes = self._rounded if is_original else self._exact

    def of(self, batch: Batch, sends: bool) -> float:
        """Return the time of a batch; with `sends` it goes on to another stage."""
        decodes, context = batch.decodes, batch.decode_context_tokens
        if not batch.prefills and not sends:
            return self.of_decodes(decodes, context)
        prefill_kv = batch.prefill_granule_tokens if self._is_original else batch.prefill_context_tokens
        kv_tokens, chunk = self._kv_tokens(decodes, context), self._chunk(batch.prefill_squares)
        seconds = self._times.seconds(batch.num_tokens, decodes, kv_tokens, batch.prefills, prefill_kv, chunk, sends)
        return seconds + self._cpu_s(decodes + batch.prefills)

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
        return -(-(context // decodes) // KV_GRANULE) * KV_GRANULE if self._is_original else context / decodes

    def _chunk(self, squares: int) -> float:
        return float(round(math.sqrt(squares))) if self._is_original else math.sqrt(squares)

    def of_decodes(self, decodes: int, context: int) -> float:
        """Return the time of a batch of decodes with so many tokens of context together."""
        return self.of_following_decodes(decodes, context)[0]

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


class AicbBatchTimes:
    """Times in right units: prompts exchange between nodes, decodes over NVLink."""

    def __init__(self, times: AicbTimes) -> None:
        self._times = times

    def of(self, batch: Batch, _sends: bool) -> float:
        """Return the time of a batch."""
        decodes, context = batch.decodes, batch.decode_context_tokens
        each = (context - decodes) / decodes if decodes else 0.0
        return self._times.seconds(batch.num_prefill_tokens, decodes, each)

    def of_following_decodes(self, decodes: int, context: int) -> tuple[float, float, int]:
        """Return the time of a batch of decodes alone; that of the next one is computed anew."""
        return self._times.seconds(0, decodes, (context - decodes) / decodes), 0.0, 1


class OriginalAicbTimes:
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

    def of(self, batch: Batch, _sends: bool) -> float:
        """Return the time of a batch."""
        if self._phase == PREFILL:
            return self._seconds(AicbBatch(PREFILL, 1, batch.num_prefill_tokens))
        return self.of_following_decodes(batch.decodes, batch.decode_context_tokens)[0]

    def of_following_decodes(self, decodes: int, context: int) -> tuple[float, float, int]:
        """Return the time of a batch of decodes alone; that of the next one is computed anew."""
        size = 1 if self._forces_one else decodes
        return self._seconds(AicbBatch(DECODE, size, context - decodes)), 0.0, 1

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


def aicb_times(options: Any, cluster: Cluster, folder: AicbFolder) -> list[AicbBatchTimes | OriginalAicbTimes]:
    """Return the times of each pool. Raises BlisError."""
    model, experts = cluster.model, cluster.model.experts
    if experts is None:
        raise BenchError(f"--operators aicb needs a model with experts, got {model.name}")
    replica = values_of(options, vidur.REPLICA)
    tp, pp = replica["tensor_parallel_size"], replica["num_pipeline_stages"]
    phases = (PREFILL, DECODE) if len(cluster.pools) > 1 else (DECODE, DECODE)
    own: dict[str, Deployment] = {}
    for phase, pool in zip((PREFILL, DECODE), (cluster.pools[0], cluster.pools[-1]), strict=True):
        separate = f"{phase}_tensor_parallel_size", f"{phase}_num_pipeline_stages"
        own_tp, own_pp = (replica[name] or shared for name, shared in zip(separate, (tp, pp), strict=True))
        if own_pp != 1:
            raise BenchError(f"--replica_config_num_pipeline_stages must be 1 with --operators aicb, got {own_pp}")
        own[phase] = Deployment(experts.aicb_name, pool.num_gpus, own_tp, own_pp, pool.num_gpus)
    rdma, nvlink = replica["rdma_bandwidth"], replica["nvlink_bandwidth"]
    if cluster.is_original:
        forces_one = values_of(options, chosen(options, vidur.PREDICTOR))["aicb_force_bs1"]
        return [
            OriginalAicbTimes(folder, own[phase], phase, rdma, forces_one=forces_one)
            for phase, _ in zip(phases, cluster.pools, strict=False)
        ]
    links = LinkExchanges(*(bytes_per_s(each, is_original=False) for each in (rdma, nvlink)))
    found = closest_tables(folder, own)
    times = AicbTimes(found[PREFILL][1], found[DECODE][1], links)
    return [AicbBatchTimes(times) for _ in cluster.pools]
