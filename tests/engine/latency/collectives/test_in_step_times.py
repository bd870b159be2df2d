"""All-reduces of --collectives in the step times of measured kernels and of tables of operators."""

from pathlib import Path

import pytest

from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.engine.errors import EngineError
from blis_sim.engine.network_options import NetworkOptions
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
    deployment = resolve(options)
    return deployment.latency.step_time(PROMPT)


def busbw(folder: Path, gb_s: float) -> str:
    """Write a file with one bandwidth."""
    path = folder / f"busbw-{gb_s}.yaml"
    path.write_text(f"TP:\n  allreduce: {gb_s}\n")
    return f"busbw:{path}"


@pytest.mark.parametrize("source", ["kernels", "operators"])
def test_a_slower_bus_adds_the_time_of_two_exchanges_in_every_layer(tmp_path: Path, source: str) -> None:
    operators = f"vidur-tables:{write(tmp_path)}" if source == "operators" else None
    fast, slow = (step_us(busbw(tmp_path, gb_s), source, operators) for gb_s in (400.0, 100.0))
    exchange_us = 1000 * HIDDEN * 2 * 1.5 * (1 / 100.0 - 1 / 400.0) / 1e3
    assert slow - fast == pytest.approx(2 * LAYERS * exchange_us, rel=0.03)


def test_analytical_exchanges_take_the_place_of_measured_ones() -> None:
    measured, computed = (step_us(name, "kernels") for name in ("tables", "analytical"))
    assert measured != computed
    assert computed == pytest.approx(measured, rel=0.25)


def test_other_models_of_step_times_have_no_exchanges_to_replace() -> None:
    with pytest.raises(EngineError, match="--collectives needs --latency-model operators or kernels"):
        step_us("analytical", "fitted")
