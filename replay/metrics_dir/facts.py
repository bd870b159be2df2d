"""The settings and the hardware in the folder of a run."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.cluster.policies import deployments_of
from blis_sim.engine.deployment import Deployment
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS, step_work
from replay.metrics_dir.config_file import plain
from replay.metrics_dir.lives import KVTraffic
from replay.metrics_dir.recorder import PeakTime, RunFacts

if TYPE_CHECKING:
    from blis_sim.engine.cluster.cluster import Cluster
    from blis_sim.engine.core import Engine
    from blis_sim.engine.ranks import RankGroup

_DTYPES = {0.5: "fp4", 1.0: "fp8", 2.0: "float16", 4.0: "float32"}


def run_facts(
    options: Any,
    cluster: ClusterOptions,
    deployment: Deployment,
    simulation: "Engine | RankGroup | Cluster",
    command: str,
) -> RunFacts:
    """Return the facts of a run with these options of its command."""
    gpu, model = deployment.gpu, deployment.model
    config = {
        "command": command,
        "options": plain(options),
        "deployment": {
            "latency_model": deployment.latency_name,
            "tensor_parallel_size": deployment.tp,
            "model": _without_checkpoint(plain(model)),
            "gpu": plain(gpu),
            "engine": plain(deployment.config),
        },
    }
    if deployment.has_own_ranks and len(simulation.instances) == deployment.dp:
        peak_times = [peak_time(replace(deployment, dp=1))] * deployment.dp
    else:
        peak_times = [peak_time(each) for each in deployments_of(cluster, deployment)]
    return RunFacts(config=config, peak_times=peak_times, traffic=kv_traffic(simulation, deployment))


def peak_time(deployment: Deployment) -> PeakTime | None:
    """Return the arithmetic of a step at the peak rate of the GPUs; None where the model's sizes do not allow it.

    A new token attends to all tokens before it.
    """
    try:
        head_size = deployment.model.attention_head_size
        sizes = deployment.model, deployment.gpu, deployment.tp, deployment.dp
        work = step_work(*sizes, MOE_COMM_BACKENDS[0], head_size=head_size)
    except EngineError:
        return None
    pair_us, token_us = work.attention_pair_us, work.token_compute(1)

    def time_us(shape: BatchShape) -> float:
        pairs = shape.prefill_context_work + shape.prefill_tokens_squared / 2 + shape.decode_context_tokens
        return token_us * shape.num_tokens + pair_us * pairs

    return time_us


def kv_traffic(simulation: "Engine | RankGroup | Cluster", deployment: Deployment) -> KVTraffic | None:
    disaggregation = getattr(simulation, "disaggregation", None)
    if disaggregation is None:
        return None
    model = deployment.model
    width = model.bytes_per_kv_element or model.bytes_per_activation
    return KVTraffic(
        bytes_per_block=disaggregation.network.bytes_per_block,
        bytes_per_value=width,
        dtype=_DTYPES.get(width, f"{width:g} bytes"),
    )


def _without_checkpoint(model: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in model.items() if name != "checkpoint"}
