"""Times of batches without --operators: those of Vidur's own profiling tables, else of a latency model of steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blis_sim.bench import BenchError
from blis_sim.bench.vidur import settings as vidur
from blis_sim.bench.vidur.catalogue import MODELS
from blis_sim.bench.vidur.cluster import OUR_GPUS, Cluster, Pool
from blis_sim.bench.vidur.settings import values_of
from blis_sim.engine.batch_shape import BatchShape, decodes
from blis_sim.engine.deployment import Deployment, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.scheduler.batch_engines import shape_of
from blis_sim.engine.scheduler.batch_rules import Batch
from blis_sim.options import BlisError

PROFILING = Path("data/profiling")
"""Where Vidur has its profiling tables, below the folder in which it is started."""
_LATENCY_MODELS = ("kernels", "fitted")
"""The latency models of whole steps, the preferred one first."""
_ENOUGH_BLOCKS = 10_000
"""The memory of replicas is planned elsewhere."""
_US = 1e-6


class StepTimes:
    """Times of the batches of one stage: an equal share of the step of a latency model."""

    def __init__(self, deployment: Deployment, num_stages: int) -> None:
        self._step_time = deployment.latency.step_time
        self._pipeline = deployment.config.pipeline
        self._num_stages = num_stages

    def of(self, batch: Batch, sends: bool) -> float:
        """Return the time of a batch; with `sends` it goes on to another stage."""
        seconds = self._seconds(shape_of(batch, 0))
        if sends and self._pipeline is not None:
            seconds += self._pipeline.transfer_us(batch.num_tokens) * _US
        return seconds

    def of_following_decodes(self, num_decodes: int, context: int) -> tuple[float, float, int]:
        """Return the time of a batch of decodes alone; that of the next one is computed anew."""
        return self._seconds(decodes(num_decodes, context - num_decodes)), 0.0, 1

    def _seconds(self, shape: BatchShape) -> float:
        return (self._step_time(shape) or 1) * _US / self._num_stages


@dataclass(frozen=True, slots=True)
class StepSource:
    """A latency model of whole steps for each pool of a cluster, with notes on it."""

    times: Sequence[StepTimes]
    notes: tuple[str, ...]


def step_source(options: Any, cluster: Cluster, without_tables: str) -> StepSource:
    """Return the first latency model that can time all pools; `without_tables` says why no tables do. Raises
    BenchError."""
    reasons: list[str] = []
    for name in _LATENCY_MODELS:
        try:
            deployments = [_deployment(options, cluster, pool, name) for pool in cluster.pools]
        except BlisError as error:
            reasons.append(f"{name}: {error}")
            continue
        times = [StepTimes(each, pool.num_stages) for each, pool in zip(deployments, cluster.pools, strict=True)]
        found = "; ".join((f"--operators is not given and {without_tables}", *reasons))
        said = dict.fromkeys(note for each in deployments for note in each.notes if note.startswith("warning:"))
        return StepSource(times, (f"step times are those of --latency-model {name}, as {found}", *said))
    raise BenchError(f"--operators must be given: {'; '.join((without_tables, *reasons))}")


def _deployment(options: Any, cluster: Cluster, pool: Pool, latency_model: str) -> Deployment:
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


def with_profiling_tables(options: Any, read: Callable[[Any], object]) -> tuple[Any, str]:
    """Return the options with --operators that reads Vidur's tables in the working folder, and a note that says so.

    Without usable tables the options are unchanged, and the note says why.
    """
    if not PROFILING.is_dir():
        return options, f"there is no folder ./{PROFILING}"
    found = replace(options, operators=str(PROFILING))
    try:
        read(found)
    except BlisError as error:
        return options, f"the tables in ./{PROFILING} do not serve: {error}"
    name = MODELS[values_of(options, vidur.REPLICA)["model_name"]].name
    return found, f"times of the operators of {name} come from ./{PROFILING}"
