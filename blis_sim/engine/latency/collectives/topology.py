"""Topology files of SimAI's packet simulation: servers, switches and links; templates of known networks, and a check.

Format: `nodes gpus_per_server nv_switches other_switches links gpu_type`, the ids of all switches, and a line
`source destination bandwidth latency error_rate` for each link. GPUs have the first ids.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from blis_sim.engine.errors import EngineError

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
