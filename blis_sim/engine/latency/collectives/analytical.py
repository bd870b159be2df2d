"""Times of collectives from the bandwidth of buses, as SimAI's analytical backend computes them.

Facts: astra-sim, network_frontend/analytical, system/calbusbw, system/AstraNetworkAPI and the tables in inputs/ratio.
"""

import csv
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.collectives.network import Collective, Group, moved_share
from blis_sim.engine.specs import GpuSpec
from blis_sim.options.files import read_text
from blis_sim.options.yaml_text import YamlError, load_yaml

_COLUMN_OF_NODES = {1: 1, 2: 2, 4: 3, 8: 4, 16: 5, 32: 6, 64: 7, 128: 8, 9: 9}
_USUAL_COLUMN = 5
"""Column of 16 nodes, for all other numbers of nodes."""


@dataclass(frozen=True, slots=True)
class RatioTable:
    """One table: ascending sizes in bytes, and for each of them a ratio by column."""

    sizes: tuple[int, ...]
    ratios: tuple[tuple[float, ...], ...]

    def ratio(self, num_nodes: int, size_bytes: int) -> float:
        """Return the share of the bandwidth, relative to that of the largest size."""
        if not size_bytes:
            return 1.0
        column = _COLUMN_OF_NODES.get(num_nodes, _USUAL_COLUMN)
        values = [row[column - 1] for row in self.ratios]
        if not values[-1]:
            raise EngineError(f"the ratio tables have no figures for {num_nodes} nodes")
        if size_bytes < self.sizes[0]:
            return values[0] / values[-1]
        low = min(bisect_right(self.sizes, size_bytes) - 1, len(self.sizes) - 2)
        share = (size_bytes - self.sizes[low]) / (self.sizes[low + 1] - self.sizes[low])
        return (values[low] + (values[low + 1] - values[low]) * share) / values[-1]


@dataclass(frozen=True, slots=True)
class Ratios:
    """The three tables of a folder."""

    nic: RatioTable
    nvlink: RatioTable
    all_to_all: RatioTable


def read_ratios(folder: str) -> Ratios:
    """Read nic_ratio.csv, nvlink_ratio.csv and ata_ratio.csv of a folder. Raises EngineError."""
    return Ratios(*(_read(Path(folder) / f"{name}_ratio.csv") for name in ("nic", "nvlink", "ata")))


def _read(path: Path) -> RatioTable:
    try:
        rows = [row for row in csv.reader(read_text(path).splitlines()) if any(row)][1:]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EngineError(f"{path}: expected a table of ratios by size, {error}") from None
    if len(rows) < 2:
        raise EngineError(f"{path}: expected a line of names and at least 2 rows of ratios, got {len(rows)} rows")
    sizes: list[int] = []
    ratios: list[tuple[float, ...]] = []
    width = max(_COLUMN_OF_NODES.values())
    for line, row in enumerate(rows, 2):
        try:
            sizes.append(int(row[0]))
            ratios.append(tuple(float(cell or 0) for cell in [*row[1:], *[""] * width][:width]))
        except ValueError:
            raise EngineError(f"{path} line {line}: expected a size and ratios, got {','.join(row)[:60]}") from None
        if (line > 2 and sizes[-1] <= sizes[-2]) or not all(0 <= value <= 1 for value in ratios[-1]):
            raise EngineError(f"{path} line {line}: expected an ascending size and ratios from 0 to 1, got {row[0]}")
    return RatioTable(tuple(sizes), tuple(ratios))


@dataclass(frozen=True, slots=True)
class BusBandwidths:
    """Times by measured bandwidths, in 1e9 bytes per second."""

    path: str
    gb_s: Mapping[Group, Mapping[Collective, float]]

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        if num_gpus < 2 or not size_bytes:
            return 0.0
        gb_s = self.gb_s.get(group, {}).get(collective)
        if gb_s is None:
            raise EngineError(f"{self.path}: expected a bandwidth for {group.value}: {collective.value}, found none")
        return size_bytes * moved_share(collective, num_gpus) / gb_s


def read_busbw(path: str) -> BusBandwidths:
    """Read a file with groups such as TP and bandwidths such as `allreduce,: 300`. Raises EngineError.

    The first line may be a name, and what follows a comma is ignored, as older files have a size there.
    """
    try:
        lines = read_text(path).splitlines()
        named = [line for line in lines if line.strip() and (":" in line or line.startswith("#"))]
        content = load_yaml("\n".join(f" {line}" if _is_item(line) else line for line in named))
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path}: expected a file of bandwidths, {error}") from None
    except YamlError as error:
        raise EngineError(f"{path}: expected YAML, {error.problem}") from None
    if not isinstance(content, Mapping):
        raise EngineError(f"{path}: expected groups such as TP with bandwidths of collectives")
    found: dict[Group, dict[Collective, float]] = {}
    for group in Group:
        for key, value in _items(content.get(group.value), f"{path}: {group.value}"):
            name = str(key).split(",")[0].strip()
            if name not in set(Collective):
                raise EngineError(f"{path}: {group.value} must have {', '.join(Collective)}, got {name!r}")
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise EngineError(f"{path}: {group.value}: {name} must be GB/s above 0 or null, got {value!r}")
            found.setdefault(group, {})[Collective(name)] = float(value)
    if not found:
        raise EngineError(f"{path}: expected a group among {', '.join(Group)} with a bandwidth, found none")
    return BusBandwidths(path, found)


def _is_item(line: str) -> bool:
    """Return whether a line without indentation belongs to the group above it, as in SimAI's own file."""
    return not line.startswith((" ", "#")) and line.split(":")[0].strip() not in (*Group, "PP")


def _items(section: object, where: str) -> list[tuple[object, object]]:
    if section is None:
        return []
    if not isinstance(section, Mapping):
        raise EngineError(f"{where} must have bandwidths of collectives, got {section!r}")
    return list(section.items())


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
