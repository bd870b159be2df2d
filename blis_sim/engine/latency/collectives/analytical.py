"""Times of collectives from the bandwidth of buses, as SimAI's analytical backend computes them.

Facts: astra-sim, network_frontend/analytical and system/calbusbw.
"""

from dataclasses import dataclass
from typing import NamedTuple

from blis_sim.engine.gpu_spec import GpuSpec
from blis_sim.engine.latency.collectives.network import Collective, Group, moved_share
from blis_sim.engine.latency.collectives.ratios import Ratios

NVLINK_GB_S = {"A100": 240.0, "A800": 160.0, "H100": 370.8, "H20": 370.8, "H800": 164.8}
"""Bandwidth of the NVLink bus of a GPU that collectives reach."""
NIC_GB_S = {"cx6": 23.5, "cx7": 48.5, "bf3": 48.5}
"""Bandwidth of a network adapter that collectives reach."""
_REACHED = 370.8 / 450
"""Share of NVLink's rate that H100 reaches, for GPUs that are not in the table."""
_REACHED_BY_NIC = 48.5 / 50

SMALLEST_BYTES = 1 << 20
_SMALL_NS = {2: 10_000, 4: 12_000, 8: 15_000, 16: 66_000, 32: 135_000, 64: 200_000, 128: 320_000}
"""Times of collectives below `SMALLEST_BYTES`, by the GPUs of the group; SimAI takes none for other numbers."""


class Placement(NamedTuple):
    """Where the GPUs of a group are."""

    num_nodes: int
    gpus_per_node: int
    nics_per_node: int
    """Network adapters of a node that the group may use."""


class Bus(NamedTuple):
    """The link that limits a collective."""

    gb_s: float
    is_nvlink: bool
    """Whether NVLink is the limit, where traffic between nodes crosses it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a server and its parallel groups."""

    nvlink_gb_s: float
    nic_gb_s: float
    gpus_per_node: int = 8
    nics_per_node: int = 8
    tp: int = 1
    ep: int = 1

    def placement(self, group: Group, num_gpus: int) -> Placement:
        """Return where the GPUs of a group are: those of tensor parallelism fill a node first."""
        size, nics = self.gpus_per_node, self.nics_per_node
        if group is Group.TP:
            return Placement(1, num_gpus, nics) if num_gpus <= size else Placement(num_gpus // size, size, nics)
        if group is Group.EP:
            if self.tp * num_gpus <= size:
                return Placement(1, size // self.tp, nics)
            return Placement(self.tp * num_gpus // size, max(size // self.tp, 1), nics // self.tp)
        sharing = self.tp if group is Group.DP else self.tp * self.ep
        return Placement(num_gpus, max(size // sharing, 1), max(nics // sharing, 1))

    def bus(self, collective: Collective, placement: Placement) -> Bus:
        """Return the bandwidth that the GPUs of a group share, and whether NVLink limits it."""
        nodes, gpus, nics = placement
        nvlink, network = self.nvlink_gb_s, self.nic_gb_s * nics
        is_all_to_all = collective is Collective.ALL_TO_ALL
        if nodes == 1:
            return Bus(nvlink, is_all_to_all)
        limit, is_nvlink = network, False
        if gpus > 1 and network > nvlink:
            limit = min(nvlink * gpus / (gpus - 1), network)  # part of the traffic crosses to another rail by NVLink
            is_nvlink = limit < network
        if is_all_to_all:
            return Bus(network / gpus * (nodes * gpus - 1) / ((nodes - 1) * gpus), is_nvlink)
        return Bus(limit, is_nvlink)


def fabric_of(gpu: GpuSpec, tp: int, ep: int = 1) -> Fabric:
    """Return the fabric of a catalogue's GPU, with a network adapter for each GPU."""
    name = gpu.name.upper().split("-")[0]
    nvlink = NVLINK_GB_S.get(name) or (gpu.nvlink_gb_s or gpu.pcie_gb_s) * _REACHED
    nic = gpu.network_gb_s * _REACHED_BY_NIC or NIC_GB_S["cx7"]
    return Fabric(
        nvlink_gb_s=nvlink, nic_gb_s=nic, gpus_per_node=gpu.gpus_per_node, nics_per_node=gpu.gpus_per_node, tp=tp, ep=ep
    )


@dataclass(frozen=True, slots=True)
class Analytical:
    """Times by the bandwidth of buses; without `ratios` collectives reach all of it."""

    fabric: Fabric
    ratios: Ratios | None = None

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        if num_gpus < 2 or not size_bytes:
            return 0.0
        if size_bytes < SMALLEST_BYTES:
            return float(_SMALL_NS.get(num_gpus, 0))
        placement = self.fabric.placement(group, num_gpus)
        bus = self.fabric.bus(collective, placement)
        reached = bus.gb_s * self._ratio(collective, group, placement.num_nodes, bus.is_nvlink, size_bytes)
        return float(int(size_bytes / 2**30 / reached * 1e9 * moved_share(collective, num_gpus)))

    def _ratio(self, collective: Collective, group: Group, num_nodes: int, is_nvlink: bool, size_bytes: int) -> float:
        ratios = self.ratios
        if ratios is None:
            return 1.0
        if group is Group.EP or (group is Group.TP and collective is Collective.ALL_TO_ALL):
            return ratios.all_to_all.ratio(num_nodes, size_bytes)
        if group is Group.TP and collective is not Collective.ALL_REDUCE:
            table = ratios.nvlink if is_nvlink else ratios.nic
            return table.ratio(num_nodes, size_bytes)
        return 1.0
