"""The deployment, the network and the files that a latency model is built from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from blis_sim.engine.latency.step_work import MOE_COMM_BACKENDS
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.options import OptionError, check_options, option

if TYPE_CHECKING:
    from blis_sim.engine.latency.model_operations import KernelPlacement

TABLES = "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """How long GPUs take to exchange data."""

    collectives: str = option(
        TABLES,
        "Times of the all-reduces of tensor parallelism and of the exchanges of experts, for --latency-model "
        "operators, kernels, trained-physics or roofline. tables takes those of the latency model. busbw:FILE has "
        "bandwidths from SimAI's busbw.yaml. analytical has the bandwidths of buses that SimAI computes, "
        "analytical:DIR these with the ratio tables of a folder. ns3:COMMAND runs SimAI's packet simulation.",
        metavar="SOURCE",
        heading="Network",
    )
    topology: str = option(
        "spectrum-x",
        "With --collectives ns3: a topology file, or the name of a template: spectrum-x, hpn-single-plane, "
        "hpn-dual-plane, dcn-plus-single-tor or dcn-plus-dual-tor.",
        metavar="FILE",
    )
    network_config: str | None = option(
        None, "With --collectives ns3: the configuration of the packet simulation (SimAI.conf).", metavar="FILE"
    )

    def __post_init__(self) -> None:
        check_options(self)
        name, colon, place = self.collectives.partition(":")
        needs_place = {TABLES: False, "analytical": None, "busbw": True, "ns3": True}
        if name not in needs_place or (colon and not place) or needs_place[name] not in (None, bool(place)):
            raise OptionError(
                "--collectives must be tables, busbw:FILE, analytical, analytical:DIR or ns3:COMMAND, "
                f"got {self.collectives!r}"
            )
        if name == "ns3" and self.network_config is None:
            raise OptionError("--collectives ns3 needs --network-config with the packet simulation's SimAI.conf")
        if name != "ns3" and self.network_config is not None:
            raise OptionError("--network-config needs --collectives ns3:COMMAND")


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyChoice:
    """The deployment to time, and its coefficients: empty means those that the model ships with."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    dp: int = 1
    moe_comm_backend: str = MOE_COMM_BACKENDS[0]
    alpha: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()
    coefficients: str | None = None
    """The file of a fitted model; None for the one that ships."""
    learned: Mapping[str, Any] | None = None
    """Content of that file; None when it has not been read."""
    placement: "KernelPlacement | None" = None
    """Properties that decide which kernels run; None takes them from the model alone."""
    max_num_seqs: int = 1024
    """Requests in a step: vLLM captures CUDA graphs of up to twice as many tokens."""
    operators: str | None = None
    """Where the times of operators come from; None without --operators."""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    """Where the times of all-reduces come from."""
    pp: int = 1
    unmeasured: tuple[str, ...] = ()
    """Properties that no recorded server had, such as KV offloading."""
    engine: str = "vllm"
    """Engine by whose rules the model is sharded. BLIS's physics refuses more GPUs than KV heads; vLLM copies heads."""
