"""Exchanges of --collectives in the step times of each latency model."""

from pathlib import Path

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.choice import NetworkOptions
from blis_sim.engine.latency.collectives import Collective, Group, expert_workload, network_of
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import WrappedLatency, with_joint_steps
from tests.engine.latency.collectives import stand_in
from tests.engine.latency.collectives.test_collectives import STAND_IN, h100
from tests.engine.latency.operators.test_vidur_tables import write

MODEL = "meta-llama/llama-3.1-70b-instruct"
HIDDEN, LAYERS = 8192, 80
PROMPT = BatchShape(1, 1000, 1_000_000, 0, 0, 1_000_000)


def step_us(collectives: str, latency_model: str, operators: str | None = None) -> int:
    """Return the time of a step with one prompt."""
    network = NetworkOptions(collectives=collectives)
    options = DeploymentOptions(
        model=MODEL, hardware="H100", tp=4, network=network, latency_model=latency_model, operators=operators
    )
    return resolve(options).latency.step_time(PROMPT)


def busbw(folder: Path, gb_s: float) -> str:
    """Write a file with one bandwidth."""
    path = folder / f"busbw-{gb_s}.yaml"
    path.write_text(f"TP:\n  allreduce: {gb_s}\n")
    return f"busbw:{path}"


@pytest.mark.parametrize("source", ["kernels", "operators", "trained-physics", "roofline"])
def test_a_slower_bus_adds_the_time_of_two_exchanges_in_every_layer(tmp_path: Path, source: str) -> None:
    operators = f"vidur-tables:{write(tmp_path)}" if source == "operators" else None
    fast, slow = (step_us(busbw(tmp_path, gb_s), source, operators) for gb_s in (400.0, 100.0))
    exchange_us = 1000 * HIDDEN * 2 * 1.5 * (1 / 100.0 - 1 / 400.0) / 1e3
    assert slow - fast == pytest.approx(2 * LAYERS * exchange_us, rel=0.03)


def test_analytical_exchanges_take_the_place_of_measured_ones() -> None:
    measured, computed = (step_us(name, "kernels") for name in ("tables", "analytical"))
    assert measured != computed
    assert computed == pytest.approx(measured, rel=0.25)


def test_the_exchanges_of_trained_physics_make_way_for_those_of_the_network(tmp_path: Path) -> None:
    """Bandwidth without end leaves the time of a step without exchanges, and the roofline has none."""
    endless = busbw(tmp_path, 1e12)
    assert step_us(endless, "trained-physics") < step_us("tables", "trained-physics")
    assert step_us(endless, "roofline") == step_us("tables", "roofline")


def test_other_models_of_step_times_have_no_exchanges_to_replace() -> None:
    needed = "--collectives needs --latency-model kernels, operators, trained-physics or roofline, the model is fitted"
    with pytest.raises(EngineError, match=needed):
        step_us("analytical", "fitted")


EXPERTS, EXPERTS_HIDDEN, EXPERT_LAYERS, CHOSEN = "qwen/qwen3-30b-a3b", 2048, 48, 8


def experts_latency(collectives: str, backend: str = "deepep_high_throughput", **network: str) -> LatencyModel:
    """Return the step times of four ranks that share experts."""
    options = DeploymentOptions(
        model=EXPERTS,
        hardware="H100",
        tp=2,
        dp=4,
        moe_comm_backend=backend,
        network=NetworkOptions(collectives=collectives, **network),
        latency_model="trained-physics",
    )
    return resolve(options).latency


def experts_busbw(folder: Path, gb_s: float) -> str:
    """Write a file with one bandwidth of experts."""
    path = folder / f"experts-{gb_s}.yaml"
    ways = "".join(f"  {name}: {gb_s}\n" for name in ("alltoall", "allgather", "reducescatter"))
    path.write_text(f"TP:\n  allreduce: 1000\nEP:\n{ways}")
    return f"busbw:{path}"


@pytest.mark.parametrize(("backend", "moved"), [("deepep_high_throughput", CHOSEN / 2), ("allgather_reducescatter", 4)])
def test_tokens_travel_to_the_experts_of_all_ranks_and_back(tmp_path: Path, backend: str, moved: float) -> None:
    """Each GPU of two sends its share of the copies of its rank's tokens, or all get the tokens of four ranks."""
    shapes = [BatchShape(1, 1000, 1_000_000, 0, 0, 1_000_000)] * 4
    times = []
    for gb_s in (100.0, 10.0):
        inner, _ = with_joint_steps(experts_latency(experts_busbw(tmp_path, gb_s), backend))
        while isinstance(inner, WrappedLatency):
            inner = inner.model
        times.append(inner.ranks_time(shapes))
    way_us = 1000 * EXPERTS_HIDDEN * 2 * moved * 7 / 8 * (1 / 10.0 - 1 / 100.0) / 1e3
    assert times[1] - times[0] == pytest.approx(EXPERT_LAYERS * 2 * way_us, rel=0.01)


def test_a_missing_bandwidth_of_experts_is_reported_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected a bandwidth for EP: alltoall, found none"):
        experts_latency(busbw(tmp_path, 100.0))


def test_many_decode_steps_with_exchanges_take_what_each_takes_alone(tmp_path: Path) -> None:
    model = experts_latency(experts_busbw(tmp_path, 10.0))
    shape = BatchShape(0, 0, 0, 0, 0, 0, 8, 8000)
    alone = [model.step_time(shape._replace(decode_context_tokens=8000 + 8 * step)) for step in range(20)]
    assert model.decode_times(shape, 20).tolist() == alone


def test_the_packet_simulation_exchanges_among_the_gpus_that_share_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "SimAI.conf").write_text("ENABLE_QCN 1\n")
    network = network_of(
        NetworkOptions(collectives=f"ns3:{STAND_IN}", network_config=str(tmp_path / "SimAI.conf")), h100(), tp=2
    )
    assert network is not None
    size = 1 << 20
    found_ns = network.time_ns(Collective.ALL_TO_ALL, Group.EP, 16, size)
    assert found_ns == pytest.approx(stand_in.LATENCY_US * 1e3 + size / stand_in.GB_S)
    header, number, line, _ = expert_workload(Collective.ALL_TO_ALL, 16, size).split("\n")
    assert "model_parallel_NPU_group: 1 ep: 16" in header
    assert (number, line.split("\t")[3:5]) == ("1", ["ALLTOALL_EP", str(size)])
