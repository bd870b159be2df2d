"""Times of collectives from `--collectives`: SimAI's analytical backend, its packet simulation and topology files."""

import csv
import dataclasses
import hashlib
import re
import shlex
import shutil
import subprocess
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import TABLES, NetworkOptions
from blis_sim.engine.latency.decode_sums import DecodeSums
from blis_sim.engine.latency.kernels import TOKEN_CLASSES, KernelGrids
from blis_sim.engine.latency.operators import Line
from blis_sim.engine.latency.step_work import ALL_TO_ALL_BACKENDS
from blis_sim.engine.latency.wrapped import WrappedLatency
from blis_sim.engine.specs import GpuSpec, ModelSpec
from blis_sim.engine.units import Micros
from blis_sim.options.files import read_text
from blis_sim.options.yaml_text import YamlError, load_yaml

# The interface between collectives and the models of their times.


class Collective(StrEnum):
    """Exchanges among a group of GPUs, by the names that busbw.yaml and workload files have for them."""

    ALL_REDUCE = "allreduce"
    ALL_GATHER = "allgather"
    REDUCE_SCATTER = "reducescatter"
    ALL_TO_ALL = "alltoall"


class Group(StrEnum):
    """Why GPUs form a group, which decides where they are."""

    TP = "TP"
    EP = "EP"
    DP = "DP"
    DP_EP = "DP_EP"


class Network(Protocol):
    """A source of times of collectives."""

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        """Return the time of one collective among `num_gpus`. Raises EngineError when it cannot be known."""
        ...


def moved_share(collective: Collective, num_gpus: int) -> float:
    """Return how many times its size a collective moves over the bus."""
    share = (num_gpus - 1) / num_gpus
    return 2 * share if collective is Collective.ALL_REDUCE else share


# Times of collectives from the bandwidth of buses, as SimAI's analytical backend computes them.
#
# Facts: astra-sim, network_frontend/analytical, system/calbusbw, system/AstraNetworkAPI and the tables in
# inputs/ratio.

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


# Topology files of SimAI's packet simulation: servers, switches and links; templates of known networks, and a check.
#
# Format: `nodes gpus_per_server nv_switches other_switches links gpu_type`, the ids of all switches, and a line
# `source destination bandwidth latency error_rate` for each link. GPUs have the first ids.

_BANDWIDTH = re.compile(r"\d+(\.\d+)?[GMK]?bps")
_LATENCY = re.compile(r"\d+(\.\d+)?(ns|us|ms|s)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A kind of network, with the sizes of its published layout."""

    num_gpus: int
    nic_gbps: int
    nics_per_tor: int
    """Adapters that one top-of-rack switch joins."""
    num_spines: int
    is_rail_optimized: bool
    """Whether the adapters of one place in all servers share a switch, instead of those of a server."""
    num_tors_per_nic: int = 1
    """2 where both ports of an adapter go to switches of their own."""
    num_planes: int = 1
    """2 where each of the two switches has spines of its own."""


TEMPLATES: Mapping[str, Template] = {
    "spectrum-x": Template(num_gpus=4096, nic_gbps=400, nics_per_tor=64, num_spines=64, is_rail_optimized=True),
    "hpn-single-plane": Template(
        num_gpus=15360, nic_gbps=200, nics_per_tor=128, num_spines=120, is_rail_optimized=True, num_tors_per_nic=2
    ),
    "hpn-dual-plane": Template(
        num_gpus=15360,
        nic_gbps=200,
        nics_per_tor=128,
        num_spines=120,
        is_rail_optimized=True,
        num_tors_per_nic=2,
        num_planes=2,
    ),
    "dcn-plus-single-tor": Template(
        num_gpus=512, nic_gbps=400, nics_per_tor=128, num_spines=8, is_rail_optimized=False
    ),
    "dcn-plus-dual-tor": Template(
        num_gpus=512, nic_gbps=200, nics_per_tor=128, num_spines=8, is_rail_optimized=False, num_tors_per_nic=2
    ),
}
"""Templates by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Rates and latencies of links, as the file writes them."""

    nvlink: str = "2880Gbps"
    spine: str = "400Gbps"
    nvlink_latency: str = "0.000025ms"
    nic_latency: str = "0.0005ms"
    nic: str = ""
    """Empty for the rate of the template."""


def topology(
    template: Template,
    num_gpus: int,
    gpu_type: str,
    gpus_per_server: int = 8,
    links: Links = Links(),
    num_spines: int = 0,
) -> str:
    """Return the text of a topology of `num_gpus` GPUs. Raises EngineError for part of a server."""
    if num_gpus < 1 or num_gpus % gpus_per_server:
        raise EngineError(f"a topology needs whole servers of {gpus_per_server} GPUs, got {num_gpus} GPUs")
    spines = num_spines or template.num_spines
    if spines % template.num_planes:
        raise EngineError(f"the spines must be a multiple of the {template.num_planes} planes, got {spines}")
    num_servers = num_gpus // gpus_per_server
    tors = _tors_of(template, num_gpus, gpus_per_server)
    num_tors = 1 + max(tor for each in tors for tor in each)
    first_tor = num_gpus + num_servers
    first_spine = first_tor + num_tors
    lines: list[str] = []
    nic = links.nic or f"{template.nic_gbps}Gbps"
    for gpu in range(num_gpus):
        lines.append(f"{gpu} {num_gpus + gpu // gpus_per_server} {links.nvlink} {links.nvlink_latency} 0")
        lines += [f"{gpu} {first_tor + tor} {nic} {links.nic_latency} 0" for tor in tors[gpu]]
    per_plane = spines // template.num_planes
    for tor in range(num_tors):
        plane = tor % template.num_planes
        for spine in range(plane * per_plane, (plane + 1) * per_plane):
            lines.append(f"{first_tor + tor} {first_spine + spine} {links.spine} {links.nic_latency} 0")
    num_nodes = first_spine + spines
    switches = "".join(f"{node} " for node in range(num_gpus, num_nodes))
    header = f"{num_nodes} {gpus_per_server} {num_servers} {num_tors + spines} {len(lines)} {gpu_type}"
    return "\n".join([header, switches, *lines, ""])


def _tors_of(template: Template, num_gpus: int, gpus_per_server: int) -> list[tuple[int, ...]]:
    """Return the top-of-rack switches of each GPU's adapter, by number."""
    each = template.num_tors_per_nic
    found = []
    for gpu in range(num_gpus):
        if template.is_rail_optimized:
            segment = gpu // (template.nics_per_tor * gpus_per_server)
            first = (segment * gpus_per_server + gpu % gpus_per_server) * each
        else:
            first = gpu // template.nics_per_tor * each
        found.append(tuple(range(first, first + each)))
    return found


def check_topology(text: str, where: str) -> None:
    """Raise EngineError for a topology with wrong counts, unknown nodes, doubled links or parts without a way."""
    lines = [line for line in text.splitlines() if line.strip()]
    header = lines[0].split() if lines else []
    if len(header) != 6 or not all(word.isdecimal() for word in header[:5]):
        raise EngineError(f"{where} line 1: expected nodes, gpus_per_server, nv_switches, switches, links and gpu_type")
    num_nodes, gpus_per_server, num_nv, num_others, num_links = map(int, header[:5])
    switches = [int(word) for word in lines[1].split() if word.isdecimal()] if len(lines) > 1 else []
    num_gpus = num_nodes - num_nv - num_others
    if switches != list(range(num_gpus, num_nodes)):
        raise EngineError(f"{where} line 2: expected the switches {num_gpus} to {num_nodes - 1}, as line 1 says")
    if num_gpus != num_nv * gpus_per_server:
        raise EngineError(
            f"{where} line 1: {num_nv} NVLink switches of {gpus_per_server} GPUs are not for {num_gpus} GPUs"
        )
    if len(lines) - 2 != num_links:
        raise EngineError(f"{where}: expected {num_links} links, as line 1 says, got {len(lines) - 2}")
    _check_links(lines[2:], where, num_nodes, num_gpus, gpus_per_server)


def _check_links(lines: list[str], where: str, num_nodes: int, num_gpus: int, gpus_per_server: int) -> None:
    neighbours: dict[int, set[int]] = defaultdict(set)
    for number, (source, target) in enumerate(_links(lines, where), 3):
        if not 0 <= source < num_nodes or not 0 <= target < num_nodes or source == target:
            raise EngineError(f"{where} line {number}: expected two of the {num_nodes} nodes, got {source} {target}")
        if target in neighbours[source]:
            raise EngineError(f"{where} line {number}: the nodes {source} and {target} are joined twice")
        neighbours[source].add(target)
        neighbours[target].add(source)
    for gpu in range(num_gpus):
        if num_gpus + gpu // gpus_per_server not in neighbours[gpu]:
            raise EngineError(f"{where}: GPU {gpu} has no link to the NVLink switch of its server")
    lonely = set(range(num_nodes)) - _reached(neighbours)
    if lonely:
        raise EngineError(f"{where}: no way leads from GPU 0 to node {min(lonely)}")


def _links(lines: list[str], where: str) -> Iterator[tuple[int, int]]:
    for number, line in enumerate(lines, 3):
        words = line.split()
        is_valid = len(words) == 5 and words[0].isdecimal() and words[1].isdecimal()
        if not is_valid or not _BANDWIDTH.fullmatch(words[2]) or not _LATENCY.fullmatch(words[3]):
            raise EngineError(
                f"{where} line {number}: expected `source destination bandwidth latency error_rate` such as "
                f"`0 16 2400Gbps 0.000025ms 0`, got {line.strip()[:60]!r}"
            )
        yield int(words[0]), int(words[1])


def _reached(neighbours: Mapping[int, set[int]]) -> set[int]:
    """Return the nodes to which a way leads from node 0."""
    found, frontier = {0}, [0]
    while frontier:
        for node in neighbours[frontier.pop()] - found:
            found.add(node)
            frontier.append(node)
    return found


# Times of collectives from SimAI's packet simulation: workload files, a program run for each, and cached results.


def all_reduce_workload(tp: int, pp: int, size_bytes: int) -> str:
    """Return the text of a workload that is one all-reduce of tensor parallelism."""
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: 1 pp: {pp} vpp: 1 ga: 1 "
        f"all_gpus: {tp * pp} checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    return f"{header}\n1\nlayer0\t-1\t1\tALLREDUCE\t{size_bytes}\t0\tNONE\t0\t0\tNONE\t0\t100\n"


def expert_workload(collective: Collective, num_gpus: int, size_bytes: int) -> str:
    """Return the text of a workload that is one exchange among the GPUs that share experts."""
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 ep: {num_gpus} pp: 1 vpp: 1 ga: 1 "
        f"all_gpus: {num_gpus} checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
    )
    kind = f"{collective.value.upper()}_EP"
    return f"{header}\n1\nlayer0\t-1\t1\t{kind}\t{size_bytes}\t0\tNONE\t0\t0\tNONE\t0\t100\n"


TIMEOUT_S = 3600
"""After this a run of the program is given up."""
_SETTINGS = {"AS_SEND_LAT": "6", "AS_NVLS_ENABLE": "1"}
"""Environment that SimAI sets: the latency of a send in nanoseconds, and NVLink SHARP."""


@dataclass(slots=True)
class PacketSimulation:
    """All-reduces of tensor parallelism and exchanges of experts, simulated by a program for powers of two.

    Sizes between two of them lie on the line between their times.
    """

    command: str
    topology_of: Callable[[int], str]
    """Returns the text of a topology with at least the given number of GPUs."""
    config: str
    """The text of SimAI.conf."""
    pp: int
    cache: Path
    """The folder of results of earlier runs, by content."""
    _known: dict[tuple[Collective, int, int], float] = field(default_factory=dict)

    def time_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        if num_gpus < 2 or not size_bytes:
            return 0.0
        if group not in (Group.TP, Group.EP):
            raise EngineError(f"--collectives ns3 simulates groups TP and EP only, got {group.value}")
        low = 1 << (size_bytes.bit_length() - 1)
        low_ns = self._simulated_ns(collective, group, num_gpus, low)
        if low == size_bytes:
            return low_ns
        high_ns = self._simulated_ns(collective, group, num_gpus, 2 * low)
        return low_ns + (high_ns - low_ns) * (size_bytes - low) / low

    def _simulated_ns(self, collective: Collective, group: Group, num_gpus: int, size_bytes: int) -> float:
        known = self._known.get((collective, num_gpus, size_bytes))
        if known is None:
            if group is Group.TP:
                workload, least = all_reduce_workload(num_gpus, self.pp, size_bytes), num_gpus * self.pp
            else:
                workload, least = expert_workload(collective, num_gpus, size_bytes), num_gpus
            text = self.topology_of(least)
            digest = hashlib.sha256("\0".join((self.command, workload, text, self.config)).encode()).hexdigest()
            path = self.cache / f"{digest[:32]}.csv"
            if path.is_file():
                result = path.read_text()
            else:
                result = self._run(workload, text)
                self.cache.mkdir(parents=True, exist_ok=True)
                aside = path.with_suffix(".part")
                aside.write_text(result)
                aside.replace(path)
            known = self._known[collective, num_gpus, size_bytes] = exposed_us(result, str(path)) * 1e3
        return known

    def _run(self, workload: str, topology: str) -> str:
        """Run the program in a folder of its own. Returns the text of its result."""
        with tempfile.TemporaryDirectory(prefix="blis-ns3-") as place:
            folder = Path(place)
            files = {"workload.txt": workload, "topology.txt": topology, "SimAI.conf": self.config}
            for name, text in files.items():
                (folder / name).write_text(text)
            (folder / "results").mkdir()
            words = shlex.split(self.command)
            settings = [f"{name}={value}" for name, value in _SETTINGS.items()]
            arguments = ["-t", "16", "-w", "workload.txt", "-n", "topology.txt", "-c", "SimAI.conf"]
            try:
                ended = subprocess.run(
                    ["/usr/bin/env", *settings, *words, *arguments],
                    cwd=folder,
                    capture_output=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise EngineError(f"--collectives ns3: {self.command} cannot be run: {error}") from None
            results = sorted(folder.rglob("*EndToEnd*.csv"))
            if ended.returncode or not results:
                said = ended.stderr.decode(errors="replace").strip().splitlines()
                why = said[-1][:200] if said else "it wrote no EndToEnd.csv"
                raise EngineError(f"--collectives ns3: {self.command} ended with code {ended.returncode}: {why}")
            return results[-1].read_text()


def exposed_us(result: str, where: str) -> float:
    """Return the exposed communication of a result, in microseconds: the second cell of its last row."""
    rows = [row for row in csv.reader(result.splitlines()) if any(row)]
    try:
        found = float(rows[-1][1])
    except (IndexError, ValueError):
        raise EngineError(f"{where}: expected a last row `total exposed comm,MICROSECONDS,...`") from None
    if found < 0:
        raise EngineError(f"{where}: expected microseconds of at least 0 in the last row, got {found}")
    return found


# From --collectives to times of exchanges, to the all-reduces of a latency model, and to steps with exchanges.


@dataclass(frozen=True, slots=True)
class StepExchanges:
    """The exchanges of all layers of a deployment.

    With data parallelism the GPUs of all ranks share the experts. Tokens go to those that they are routed to, or to all
    of them, as `moe_comm_backend` says, and the results come back. Without it they are summed up as after an MLP.
    """

    network: Network
    model: ModelSpec
    tp: int
    dp: int
    moe_comm_backend: str
    _known_us: dict[int, Micros] = field(default_factory=dict)

    def micros(self, num_tokens: int) -> Micros:
        """Return the time of the exchanges for the tokens of all ranks. Raises EngineError."""
        found = self._known_us.get(num_tokens)
        if found is None:
            found = self._known_us[num_tokens] = int(self._time_ns(num_tokens) / 1e3)
        return found

    def _time_ns(self, num_tokens: int) -> float:
        model = self.model
        rank_bytes = -(-num_tokens // self.dp) * model.hidden_size * model.bytes_per_activation
        num_reduced = model.num_layers + model.num_dense_layers
        if self.dp == 1:
            num_reduced += model.num_moe_layers
            experts_ns = 0.0
        else:
            experts_ns = model.num_moe_layers * self._experts_ns(rank_bytes)
        return num_reduced * self._of(Collective.ALL_REDUCE, Group.TP, self.tp, rank_bytes) + experts_ns

    def _experts_ns(self, rank_bytes: float) -> float:
        """Return the time of both ways to the experts of one layer and back."""
        num_gpus = self.tp * self.dp
        if self.moe_comm_backend in ALL_TO_ALL_BACKENDS:
            sent_bytes = rank_bytes * max(1, self.model.num_experts_per_tok) / self.tp
            return 2 * self._of(Collective.ALL_TO_ALL, Group.EP, num_gpus, sent_bytes)
        ways = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
        return sum(self._of(each, Group.EP, num_gpus, rank_bytes * self.dp) for each in ways)

    def _of(self, collective: Collective, group: Group, num_gpus: int, size_bytes: float) -> float:
        return self.network.time_ns(collective, group, num_gpus, int(size_bytes)) if num_gpus > 1 else 0.0


@dataclass(slots=True)
class ExchangingSteps(WrappedLatency):
    """`model`, which has no exchanges of its own, with those of a network.

    Ranks that share experts are timed together, their exchanges included.
    """

    exchanges: StepExchanges
    decode_sums: DecodeSums = field(default_factory=DecodeSums)

    def step_time(self, shape: BatchShape) -> Micros:
        return self.model.step_time(shape) + self.exchanges.micros(shape.num_tokens)

    def decode_times(self, shape: BatchShape, steps: int) -> npt.NDArray[np.int64]:
        times: npt.NDArray[np.int64] = self.model.decode_times(shape, steps)
        return times + self.exchanges.micros(shape.decode_requests)

    def ranks_time(self, shapes: Sequence[BatchShape]) -> Micros:
        largest = max(shape.num_tokens for shape in shapes)
        return self.model.ranks_time(shapes) + self.exchanges.micros(largest * self.exchanges.dp)


EXCHANGES_PER_LAYER = 2
"""All-reduces of a layer: after attention and after the MLP."""


def network_of(options: NetworkOptions, gpu: GpuSpec, tp: int, pp: int = 1) -> Network | None:
    """Return the network of the options; None where tables have the times. Raises EngineError.

    Experts are shared by GPUs side by side, those of tensor parallelism included.
    """
    name, _, place = options.collectives.partition(":")
    if name == TABLES:
        return None
    if name == "busbw":
        return read_busbw(place)
    if name == "analytical":
        return Analytical(fabric_of(gpu, 1), read_ratios(place) if place else None)
    return _packet_simulation(options, place, gpu, tp, pp)


class ExchangeLine(Line):
    """The time of an all-reduce over the tokens of a step, in milliseconds."""

    __slots__ = ("_bytes_per_token", "_network", "_tp")

    def __init__(self, network: Network, tp: int, bytes_per_token: float) -> None:
        super().__init__([1], [0.0])
        self._network = network
        self._tp = tp
        self._bytes_per_token = bytes_per_token

    def at(self, place: float) -> float:
        size_bytes = int(place * self._bytes_per_token)
        return self._network.time_ns(Collective.ALL_REDUCE, Group.TP, self._tp, size_bytes) / 1e6


def exchange_line(network: Network, model: ModelSpec, tp: int) -> ExchangeLine:
    """Return the line of a model's all-reduces."""
    return ExchangeLine(network, tp, model.hidden_size * model.bytes_per_activation)


def with_exchanges(grids: KernelGrids, network: Network, model: ModelSpec, tp: int) -> KernelGrids:
    """Return measured kernels with the all-reduces of a network in place of the measured ones."""
    line = exchange_line(network, model, tp)
    token_us = np.array(grids.token_us)
    exchanges_us = [line.at(tokens) * 1e3 * EXCHANGES_PER_LAYER * grids.num_layers for tokens in grids.tokens]
    token_us[TOKEN_CLASSES.index("all_reduce")] = exchanges_us
    return dataclasses.replace(grids, token_us=token_us)


def _packet_simulation(options: NetworkOptions, command: str, gpu: GpuSpec, tp: int, pp: int) -> PacketSimulation:
    words = shlex.split(command)
    found = shutil.which(words[0]) if words else None
    if found is None:
        raise EngineError(
            f"--collectives ns3: {command} is not installed; build SimAI_simulator of SimAI and give its path"
        )
    # The program runs in a folder of its own.
    rest = [str(Path(word).resolve()) if Path(word).is_file() else word for word in words[1:]]
    topology_of = partial(_topology, options.topology, gpu)
    topology_of(tp * pp)  # a wrong file is reported before the run
    return PacketSimulation(
        command=shlex.join([str(Path(found).absolute()), *rest]),
        topology_of=topology_of,
        config=_text(str(options.network_config), "--network-config"),
        pp=pp,
        cache=Path.home() / ".cache" / "blis" / "packet-simulations",
    )


def _topology(name: str, gpu: GpuSpec, num_gpus: int) -> str:
    template = TEMPLATES.get(name)
    if template is None:
        if not Path(name).is_file():
            raise EngineError(f"--topology must be a file or one of {', '.join(TEMPLATES)}, got {name}")
        text = _text(name, "--topology")
        check_topology(text, name)
        return text
    servers = -(-num_gpus // gpu.gpus_per_node)
    text = topology(template, servers * gpu.gpus_per_node, gpu.name.split("-")[0], gpu.gpus_per_node)
    check_topology(text, f"--topology {name}")
    return text


def _text(path: str, flag: str) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{flag} {path}: {error}") from None
