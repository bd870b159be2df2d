"""The settings of the network between the GPUs of an instance."""

from dataclasses import dataclass

from blis_sim.options import OptionError, check_options, option

TABLES = "tables"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """How long GPUs take to exchange data."""

    collectives: str = option(
        TABLES,
        "Times of the all-reduces of tensor parallelism and of the exchanges of experts, for --latency-model "
        "operators, kernels, trained-physics or roofline: tables takes what the latency model has, busbw:FILE "
        "bandwidths from SimAI's busbw.yaml, analytical the bandwidths of buses that SimAI computes, analytical:DIR "
        "these with the ratio tables of a folder, and ns3:COMMAND runs SimAI's packet simulation.",
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
