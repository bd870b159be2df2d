"""Topologies for packet simulations: the templates, and what the check finds."""

import gzip
from pathlib import Path

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.collectives import TEMPLATES, Links, check_topology, topology

SPECTRUM = TEMPLATES["spectrum-x"]


def test_the_template_of_spectrum_x_writes_the_published_topologies(reference: Path) -> None:
    folder = reference / "golden" / "vidur-data" / "simai" / "topo"
    published = gzip.decompress((folder / "Rail_Opti_SingleToR_16gpu_H20.txt.gz").read_bytes()).decode()
    assert topology(SPECTRUM, 16, "H20", links=Links(nvlink="2400Gbps", nic="200Gbps")) == published
    links = Links(nvlink="900Gbps", nic="200Gbps", nic_latency="0.001ms")
    published = (folder / "Rail_Opti_SingleToR_16g_8gps_200Gbps_H20.txt").read_text()
    assert topology(SPECTRUM, 16, "H20", links=links, num_spines=8) == published


@pytest.mark.parametrize(
    ("name", "num_tors", "num_links"),
    [
        ("spectrum-x", 8, 256 + 256 + 8 * 64),
        ("hpn-single-plane", 16, 256 + 2 * 256 + 16 * 120),
        ("hpn-dual-plane", 16, 256 + 2 * 256 + 16 * 60),
        ("dcn-plus-single-tor", 2, 256 + 256 + 2 * 8),
        ("dcn-plus-dual-tor", 4, 256 + 2 * 256 + 4 * 8),
    ],
)
def test_every_template_gives_a_topology_that_passes_the_check(name: str, num_tors: int, num_links: int) -> None:
    template = TEMPLATES[name]
    text = topology(template, 256, "H100")
    check_topology(text, name)
    nodes, _, num_nv, switches, links, _ = text.split("\n")[0].split()
    assert (int(num_nv), int(switches), int(links)) == (32, num_tors + template.num_spines, num_links)
    assert int(nodes) == 256 + 32 + num_tors + template.num_spines


def test_the_adapters_of_a_rail_share_a_switch_and_those_of_dcn_are_of_one_server() -> None:
    def tor_of(name: str, gpu: int) -> str:
        text = topology(TEMPLATES[name], 16, "H100")
        return [line.split()[1] for line in text.split("\n")[2:] if line.startswith(f"{gpu} ")][1]

    assert tor_of("spectrum-x", 3) == tor_of("spectrum-x", 11) != tor_of("spectrum-x", 4)
    assert tor_of("dcn-plus-single-tor", 3) == tor_of("dcn-plus-single-tor", 4)


def test_part_of_a_server_has_no_topology() -> None:
    with pytest.raises(EngineError, match="whole servers of 8 GPUs, got 12"):
        topology(SPECTRUM, 12, "H100")


GOOD = topology(SPECTRUM, 8, "H100", num_spines=2)
LONELY = "\n".join(line for line in GOOD.replace(" 32 H100", " 24 H100").split("\n") if " 18 400" not in line)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1: expected nodes"),
        (GOOD.replace(" 32 H100", " 33 H100"), "expected 33 links, as line 1 says, got 32"),
        (GOOD.replace("8 9 10", "9 10"), "line 2: expected the switches 8 to 18"),
        (GOOD.replace("0 8 2880Gbps", "0 8 fast"), "line 3: expected `source"),
        (GOOD.replace("0 8 2880Gbps", "0 99 2880Gbps"), "line 3: expected two of the 19 nodes"),
        (GOOD.replace("0 8 2880Gbps", "0 9 2880Gbps"), "joined twice|no link to the NVLink switch"),
        (LONELY, "no way leads from GPU 0 to node 18"),
    ],
)
def test_a_topology_with_a_fault_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(EngineError, match=problem):
        check_topology(text, "topo")


def test_a_topology_without_faults_passes() -> None:
    check_topology(GOOD, "topo")
