"""How full, how busy and how well used replicas were, as Vidur writes it: least, largest and weighted mean."""

from typing import Any

import numpy as np

from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.batch_log import BatchLog
from blis_sim.bench.vidur.batches import Floats, Ints, entries_of, is_ended, repeats_of
from blis_sim.bench.vidur.catalogue import DEVICES
from blis_sim.bench.vidur.cluster import Cluster, Pool
from blis_sim.bench.vidur.options import values_of
from blis_sim.bench.vidur.planner import layer_parameters
from blis_sim.bench.vidur.simulation import Simulated

_ORIGINAL_TERA = 2**40
"""Operations per second that Vidur takes for a TFLOP/s."""

Use = dict[str, dict[str, float]]
"""Least, largest and mean by the name of a figure."""


def use_of(options: Any, simulated: Simulated) -> Use:
    """Return what each file on the use of a replica or of a stage has.

    The original numbers from 1 and has the first replica and the first stage last.
    """
    cluster, logs = simulated.cluster, simulated.logs
    pools = [pool for pool in cluster.pools for _ in range(pool.num_replicas)]
    until = max([0.0, *(float(ends.max()) for log in logs if len(ends := np.array(log.ends)[is_ended(log)]))])
    found: Use = {}
    for number, (log, pool) in enumerate(zip(logs, pools, strict=True)):
        name = f"replica_{_number(number, len(logs), cluster)}"
        found[f"{name}_memory_usage"] = _memory(log, pool, until, is_original=cluster.is_original)
        stages = _stages(log)
        for stage, (places, starts, ends) in enumerate(stages):
            of_stage = f"{name}_stage_{_number(stage, len(stages), cluster)}"
            full = np.full(len(starts), 100.0)
            figures = {"busy_time_percent": full}
            if cluster.model.experts is None:
                figures["mfu"] = _mfu(options, cluster, pool, log, places, ends - starts)
            for figure, values in figures.items():
                mean = (
                    _original_mean(values, starts, ends) if cluster.is_original else _mean(values, starts, ends, until)
                )
                found[f"{of_stage}_{figure}"] = _summary(0.0, float(values.max(initial=0.0)), mean)
    return dict(sorted(found.items()))


def _number(place: int, count: int, cluster: Cluster) -> int:
    return place if not cluster.is_original else place or count


def _summary(least: float, largest: float, mean: float) -> dict[str, float]:
    return {"min": least, "max": largest, "weighted_mean": mean}


def _memory(log: BatchLog, pool: Pool, until: float, *, is_original: bool) -> dict[str, float]:
    """The KV blocks in use. The mean of the original is that of its samples, whatever time lies between them."""
    share = 100 / pool.limits.num_blocks
    if is_original:
        mean = log.sampled_blocks / (log.num_samples + 1)  # and the 0 before all samples
    else:
        at, blocks = np.array(log.held_at), np.array(log.held_blocks)
        mean = float((blocks * np.diff(np.minimum(at, until), append=until)).sum()) / until if until else 0.0
    return _summary(0.0, log.most_blocks * share, mean * share)


def _stages(log: BatchLog) -> list[tuple[Ints, Floats, Floats]]:
    """Return for each stage the places of its batches in the log, their starts and their ends."""
    if log.stages:
        return [(np.arange(len(each.ends)), np.array(each.starts), np.array(each.ends)) for each in log.stages]
    places = np.flatnonzero(is_ended(log))
    return [(places, np.array(log.starts)[places], np.array(log.ends)[places])]


def _mean(values: Floats, starts: Floats, ends: Floats, until: float) -> float:
    return float((values * (ends - starts)).sum()) / until if until else 0.0


def _original_mean(values: Floats, starts: Floats, ends: Floats) -> float:
    """The original's mean begins with the first change after the instant 0."""
    if not len(starts):
        return 0.0
    counted = starts != 0
    first = float(starts[0]) or float(ends[0])
    span = float(ends[-1]) - first
    return float((values * (ends - starts))[counted].sum()) / span if span else 0.0


def _mfu(options: Any, cluster: Cluster, pool: Pool, log: BatchLog, places: Ints, seconds: Floats) -> Floats:
    """Return the arithmetic of each batch at the peak rate of a GPU, over its time, in percent.

    The original lets each token of a prompt attend to all of them, and counts 2^40 operations for a TFLOP.
    """
    model = cluster.model
    entries, repeats = entries_of(log)[places], repeats_of(log)[places]
    decodes, prompts, contexts, squares, work = (
        np.array(getattr(log, name), np.float64)[entries]
        for name in ("decodes", "prefill_tokens", "contexts", "prefill_squares", "prefill_work")
    )
    contexts += repeats * decodes
    own = squares + decodes if cluster.is_original else (squares + prompts) / 2
    num_layers = model.num_layers // pool.num_stages
    weights = layer_parameters(model, pool.tp) * num_layers
    attention = 4 * num_layers * (model.num_q_heads // pool.tp) * model.head_size
    operations = 2 * weights * (prompts + decodes) + attention * (own + work + contexts)
    tflops = DEVICES[values_of(options, vidur.REPLICA)["device"]][0]
    peak = tflops * (_ORIGINAL_TERA if cluster.is_original else 10**12)
    found: Floats = 100 * operations / np.maximum(seconds, 1e-12) / peak
    return found
