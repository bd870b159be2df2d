"""From the options of the server to a deployment and its structured-output settings."""

from collections.abc import Callable
from dataclasses import replace

from blis_sim.engine.config import EngineConfig
from blis_sim.engine.deployment import Deployment, model_of, resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.kv_cache.sizing import bytes_per_block
from blis_sim.engine.latency.catalogue.models import has_model
from blis_sim.engine.latency.instant import InstantLatency
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS
from blis_sim.engine.latency.wrapped import ApiServers, EvenRanks
from mockserve.kv_events.setup import KVTransfer
from mockserve.options.engine_features import TransferConfig
from mockserve.options.environment import ServerEnvironment
from mockserve.options.serve import ServeOptions
from mockserve.options.server import GENERATING_TASKS, tasks_of
from mockserve.protocol.errors import ApiError, late


class StructuredOutputBackend:
    """The backend that the first constrained request came to, which serves the engine until it ends.

    `announce` is called with the name when this process is the first to use it.
    """

    def __init__(self, is_lenient: bool = False, announce: Callable[[str], object] | None = None) -> None:
        """A lenient one lets every request have its own backend."""
        self._is_lenient = is_lenient
        self._announce = announce
        self.name: str | None = None

    def set_name(self, name: str) -> None:
        """Raised when another process has used this backend first."""
        self.name = name

    def claim(self, backend: str) -> None:
        """Use the backend of a request. Raises ApiError where the engine already uses another."""
        if backend == self.name or self._is_lenient:
            return
        if self.name is None:
            self.name = backend
            if self._announce is not None:
                self._announce(backend)
            return
        raise late(
            ApiError(
                "Structured output processing only supports one backend per engine. "
                f"The engine is already using '{self.name}', but this request resolved to '{backend}'. Configure "
                "`structured_outputs_config.backend` explicitly or use schemas supported by the initialized backend."
            )
        )


STAND_IN_MODEL = "qwen/qwen3-14b"
STAND_IN_GPU = "H100"
"""With set times it matters little which model and GPU are simulated, so unknown ones may be served."""


def deployment_of(options: ServeOptions) -> Deployment:
    """The deployment to simulate. Raises EngineError when model and GPU are unknown or do not fit together."""
    return _with_api_servers(_of_known_model(options), options.network.api_server_count)


def _with_api_servers(deployment: Deployment, count: int) -> Deployment:
    """Return the deployment with so many API server processes that hand out its tokens."""
    return deployment if count == 1 else replace(deployment, latency=ApiServers(deployment.latency, count))


def _of_known_model(options: ServeOptions) -> Deployment:
    deployment = _with_store(options.deployment, options.kv_sharing.transfer)
    if not options.timing.sets_times or has_model(deployment.model):
        return _resolved(deployment)
    known = replace(
        deployment,
        model=STAND_IN_MODEL,
        hardware=deployment.hardware or STAND_IN_GPU,
        tp=deployment.tp or 1,
    )
    return _resolved(known)


def _with_store(options: DeploymentOptions, transfer: TransferConfig) -> DeploymentOptions:
    """Return the options with the CPU memory to which a connector copies KV blocks."""
    if not transfer.has_store or options.kv_cpu_blocks or options.kv_offloading_size is not None:
        return options
    gib = transfer.offloaded_gib + transfer.offloaded_gib_per_gpu * max(1, options.tp)
    return replace(options, kv_offloading_size=gib)


def _resolved(options: DeploymentOptions) -> Deployment:
    """Return the deployment of one data-parallel rank; the experts that ranks share make its steps depend on them."""
    if options.dp == 1:
        return resolve(options)
    if model_of(options, []).num_experts <= 1:
        return resolve(replace(options, dp=1, moe_comm_backend=MOE_COMM_BACKENDS[0]))
    together = resolve(options)
    if together.rank is None:
        return together
    if together.pp == 1:
        return replace(together, config=together.rank)
    return replace(
        together,
        config=together.rank,
        latency=EvenRanks(together.latency, options.dp),
        rank=None,
        notes=(
            *together.notes,
            "warning: with pipeline stages ranks that share experts take their steps apart: each as long as if all "
            "ranks had its batch",
        ),
    )


def with_features(options: ServeOptions, deployment: Deployment) -> tuple[EngineConfig, LatencyModel]:
    """The engine's configuration and latency model with the settings that only a server has."""
    timing = options.timing.request_timing(deployment.config.max_num_seqs, options.content.seed)
    config = replace(
        deployment.config,
        reports_kv_changes=options.kv_sharing.events.publishes,
        context_kind=deployment.memory.groups[0].kind if deployment.memory else deployment.config.context_kind,
        timing=timing,
        offload=deployment.config.offload if timing is None else None,
        lora=options.lora.settings,
    )
    if not tasks_of(options.routes) & GENERATING_TASKS:
        # A pooling model takes prompts as long as its context, needs no room for output, and is not run ahead of.
        config = replace(config, max_model_len=0, async_scheduling=False)
    return config, deployment.latency if timing is None else InstantLatency()


def transfer_of(options: ServeOptions, deployment: Deployment, environment: ServerEnvironment) -> KVTransfer | None:
    """Return this instance's end of KV transfers; None without --kv-transfer-config."""
    transfer = options.kv_sharing.transfer
    if not transfer.is_on:
        return None
    config = deployment.config
    size = bytes_per_block(deployment.model, deployment.tp, config.engine, config.block_size_tokens, deployment.memory)
    return KVTransfer(
        engine_id=transfer.engine_id,
        host=environment.side_channel_host,
        port=environment.side_channel_port,
        tp=deployment.tp,
        num_prompt_blocks=config.num_prompt_blocks,
        # Set times include what a transfer takes.
        bytes_per_block=0 if options.timing.sets_times else size,
        gb_per_s=options.kv_sharing.kv_transfer_gb_per_s,
        latency_us=round(options.kv_sharing.kv_transfer_latency_ms * 1000),
    )
