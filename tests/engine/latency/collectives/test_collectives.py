"""Times of collectives: SimAI's published run and tables, measured bandwidths, and a packet simulation."""

import csv
import sys
from pathlib import Path

import pytest

from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.choice import NetworkOptions
from blis_sim.engine.latency.collectives import (
    NIC_GB_S,
    NVLINK_GB_S,
    Analytical,
    Collective,
    Fabric,
    Group,
    Placement,
    all_reduce_workload,
    exposed_us,
    fabric_of,
    network_of,
    read_busbw,
    read_ratios,
)
from blis_sim.engine.specs import GpuSpec
from blis_sim.options import OptionError
from tests.engine.latency.collectives import stand_in
from tests.engine.latency.collectives.simai_workload import read_workload

MIB = 1 << 20
STAND_IN = f"{sys.executable} {stand_in.__file__}"


def h100() -> GpuSpec:
    """Return a GPU of SimAI's table."""
    return load_gpu("H100", None)


def test_the_published_run_takes_7_545_619_us(reference: Path) -> None:
    folder = reference / "golden" / "vidur-data" / "simai"
    workload = read_workload(folder / "workload" / "workload_analytical.txt.gz")
    fabric = Fabric(nvlink_gb_s=360, nic_gb_s=48.5, tp=workload.tp, ep=workload.ep)
    assert round(workload.time_us(Analytical(fabric, read_ratios(str(folder / "ratio"))))) == 7_545_619


def test_bus_bandwidths_are_those_of_the_original(reference: Path) -> None:
    with (reference / "golden" / "vidur-data" / "simai" / "busbw_golden.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1320
    for row in rows:
        given = [float(row[name]) for name in ("nvlink_bw_arg", "nic_bw_arg")]
        nvlink = given[0] if given[0] > 0 else NVLINK_GB_S[row["gpu_type"]]
        fabric = Fabric(nvlink_gb_s=nvlink, nic_gb_s=given[1] if given[1] > 0 else NIC_GB_S[row["nic_type"]])
        placement = Placement(*(int(row[name]) for name in ("node_count", "gpus_per_node", "nics_per_server")))
        bus = fabric.bus(Collective(row["collective"]), placement)
        assert bus.gb_s == pytest.approx(float(row["busbw_GBps"]), rel=1e-6)
        assert bus.is_nvlink == (row["is_nvlink"] == "1")


def test_ratios_are_those_of_the_original(reference: Path) -> None:
    folder = reference / "golden" / "vidur-data" / "simai"
    ratios = read_ratios(str(folder / "ratio"))
    tables = {"nic": ratios.nic, "nvlink": ratios.nvlink, "ata": ratios.all_to_all}
    with (folder / "ratio_golden.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 144
    for row in rows:
        ratio = tables[row["table"]].ratio(int(row["nodes"]), int(row["size"]))
        assert ratio == pytest.approx(float(row["ratio"]), rel=1e-6)


def test_an_all_reduce_within_a_server_moves_its_size_nearly_twice_over_nvlink() -> None:
    network = Analytical(fabric_of(h100(), tp=8))
    time_ns = network.time_ns(Collective.ALL_REDUCE, Group.TP, 8, 64 * MIB)
    assert time_ns == pytest.approx(64 / 1024 / 370.8 * 1e9 * 2 * 7 / 8, abs=1)
    assert network.time_ns(Collective.ALL_REDUCE, Group.TP, 8, 4096) == 15_000
    assert network.time_ns(Collective.ALL_REDUCE, Group.TP, 1, 64 * MIB) == 0


def test_a_group_across_servers_is_limited_by_its_network_adapters() -> None:
    network = Analytical(fabric_of(h100(), tp=16))
    across = network.time_ns(Collective.ALL_REDUCE, Group.TP, 16, 64 * MIB)
    assert across == pytest.approx(64 / 1024 / min(370.8 * 8 / 7, 8 * 48.5) * 1e9 * 2 * 15 / 16, abs=1)
    experts = Analytical(fabric_of(h100(), tp=1, ep=16))
    placement = experts.fabric.placement(Group.EP, 16)
    assert placement == (2, 8, 8)
    assert experts.fabric.bus(Collective.ALL_TO_ALL, placement).gb_s == pytest.approx(8 * 48.5 / 8 * 15 / 8)


@pytest.mark.parametrize("style", ["plain", "indented"])
def test_bandwidths_of_a_file_give_times_and_a_missing_one_is_named(tmp_path: Path, style: str) -> None:
    indent = "  " if style == "indented" else ""
    path = tmp_path / "busbw.yaml"
    path.write_text(f"test\nTP:\n{indent}allreduce,: 300\n{indent}alltoall,0: null\nPP:\n{indent}busbw: 47.5\n")
    network = read_busbw(str(path))
    assert network.time_ns(Collective.ALL_REDUCE, Group.TP, 4, 3_000_000) == pytest.approx(15_000)
    with pytest.raises(EngineError, match="TP: alltoall, found none"):
        network.time_ns(Collective.ALL_TO_ALL, Group.TP, 4, 3_000_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("TP:\n allreduce: -3\n", "must be GB/s above 0"),
        ("TP:\n allsum: 3\n", "must have allreduce"),
        ("TP: 3\n", "must have bandwidths"),
        ("[1, 2]\n", "found none|expected groups"),
        ("TP:\n allreduce: [\n", "expected YAML"),
    ],
)
def test_a_file_of_bandwidths_that_makes_no_sense_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "busbw.yaml").write_text(text)
    with pytest.raises(EngineError, match=problem):
        read_busbw(str(tmp_path / "busbw.yaml"))


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NetworkOptions:
    """Return the settings of a packet simulation by the stand-in, with a cache of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "SimAI.conf").write_text("ENABLE_QCN 1\n")
    return NetworkOptions(collectives=f"ns3:{STAND_IN}", network_config=str(tmp_path / "SimAI.conf"))


def test_a_packet_simulation_gives_its_times_and_lines_between_them(simulated: NetworkOptions, tmp_path: Path) -> None:
    network = network_of(simulated, h100(), tp=8)
    assert network is not None
    exact_ns = stand_in.LATENCY_US * 1e3 + MIB / stand_in.GB_S
    assert network.time_ns(Collective.ALL_REDUCE, Group.TP, 8, MIB) == pytest.approx(exact_ns)
    assert network.time_ns(Collective.ALL_REDUCE, Group.TP, 8, 3 * MIB // 2) == pytest.approx(
        exact_ns + MIB / 2 / stand_in.GB_S
    )
    assert len(list(tmp_path.glob(".cache/blis/packet-simulations/*.csv"))) == 2


def test_a_packet_simulation_is_not_run_again_for_the_same_content(simulated: NetworkOptions, tmp_path: Path) -> None:
    for expected in (1.0, 2.0):
        network = network_of(simulated, h100(), tp=8)
        assert network is not None
        found_ns = network.time_ns(Collective.ALL_REDUCE, Group.TP, 8, MIB)
        assert found_ns == pytest.approx(expected * (stand_in.LATENCY_US * 1e3 + MIB / stand_in.GB_S))
        (cached,) = tmp_path.glob(".cache/blis/packet-simulations/*.csv")
        cached.write_text(f"total exposed comm,{2 * exposed_us(cached.read_text(), '')}\n")


def test_a_missing_part_of_a_packet_simulation_is_reported_in_one_line(
    simulated: NetworkOptions, tmp_path: Path
) -> None:
    missing = NetworkOptions(collectives="ns3:SimAI_simulator", network_config=str(tmp_path / "SimAI.conf"))
    with pytest.raises(EngineError, match="SimAI_simulator is not installed"):
        network_of(missing, h100(), tp=8)
    with pytest.raises(OptionError, match="needs --network-config"):
        NetworkOptions(collectives="ns3:SimAI_simulator")
    (tmp_path / "SimAI.conf").write_text("fail")
    network = network_of(simulated, h100(), tp=8)
    assert network is not None
    with pytest.raises(EngineError, match="ended with code 1: no route to GPU 3"):
        network.time_ns(Collective.ALL_REDUCE, Group.TP, 8, MIB)


@pytest.mark.parametrize("text", ["busbw", "busbw:", "ns3", "analytical:", "nccl"])
def test_an_unknown_source_of_collectives_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--collectives must be tables"):
        NetworkOptions(collectives=text)


def test_the_workload_of_an_all_reduce_reads_back(tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_text(all_reduce_workload(4, 2, 12_345))
    workload = read_workload(tmp_path / "w.txt")
    assert (workload.tp, workload.pp, workload.num_gpus) == (4, 2, 8)
    (exchange, *rest) = workload.layers[0].exchanges
    assert exchange is not None
    assert (exchange.collective, exchange.size_bytes, rest) == (Collective.ALL_REDUCE, 12_345, [None, None])
