"""Exchanges of --collectives in the step times of each latency model."""

from pathlib import Path

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue_reader import load_model
from blis_sim.engine.latency.choice import NetworkOptions
from blis_sim.engine.latency.collectives import (
    Collective,
    ExchangingSteps,
    Group,
    StepExchanges,
    expert_workload,
    network_of,
)
from blis_sim.engine.latency.model import LatencyModel
from blis_sim.engine.latency.wrapped import ApiServers, SlowedLatency, with_joint_steps
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


class OfAnotherPackage(LatencyModel):
    """A latency model that has everything outside of steps."""

    output_turn_us = 30.0
    growth_requests = 4
    output_token_time = 200
    output_sequence_time = 7
    post_decode_time = 90
    operation_names = ("matmul",)

    def step_time(self, shape: BatchShape) -> int:
        return 1000

    def idle_start_time(self, idle_us: int) -> int:
        return idle_us // 10

    def operation_times_ms(self, shape: BatchShape) -> tuple[float, ...]:
        return (3.0,)


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


def test_what_happens_outside_of_steps_is_that_of_the_model_with_exchanges(tmp_path: Path) -> None:
    """Also a model of another package may have an API server process, idle starts or operations."""
    network = network_of(NetworkOptions(collectives=experts_busbw(tmp_path, 10.0)), h100(), tp=2)
    assert network is not None
    model = OfAnotherPackage()
    exchanging = ExchangingSteps(model, StepExchanges(network, load_model(EXPERTS), 2, 4, "deepep_high_throughput"))
    for name in ("output_turn_us", "growth_requests", "output_token_time", "output_sequence_time", "post_decode_time"):
        assert getattr(exchanging, name) == getattr(model, name) > 0
    assert exchanging.idle_start_time(500) == 50
    assert ApiServers(exchanging, 2).output_turn_us == model.output_turn_us / 2
    assert exchanging.operation_times_ms(PROMPT) == (3.0,)
    assert exchanging.step_time(PROMPT) > model.step_time(PROMPT)


def test_a_wrapper_that_times_ranks_stays_within_the_joint_steps(tmp_path: Path) -> None:
    slowed, steps = with_joint_steps(SlowedLatency(experts_latency(experts_busbw(tmp_path, 10.0)), factor=2.0))
    assert isinstance(slowed, SlowedLatency)
    assert slowed.model is steps
    assert isinstance(steps.model, ExchangingSteps)


@pytest.mark.parametrize(("backend", "moved"), [("deepep_high_throughput", CHOSEN / 2), ("allgather_reducescatter", 4)])
def test_tokens_travel_to_the_experts_of_all_ranks_and_back(tmp_path: Path, backend: str, moved: float) -> None:
    """Each GPU of two sends its share of the copies of its rank's tokens, or all get the tokens of four ranks."""
    shapes = [BatchShape(1, 1000, 1_000_000, 0, 0, 1_000_000)] * 4
    times = []
    for gb_s in (100.0, 10.0):
        _, steps = with_joint_steps(experts_latency(experts_busbw(tmp_path, gb_s), backend))
        times.append(steps.model.ranks_time(shapes))
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
