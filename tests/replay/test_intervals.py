"""Intervals of a replay, by coefficients drawn within their spread."""

from pathlib import Path

import numpy as np
import pytest

from blis_sim.cli.main import run
from blis_sim.engine.batch_shape import BatchShape
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency.catalogue import load_gpu
from blis_sim.engine.latency.catalogue_reader import LEARNED_COEFFICIENTS, load_model
from blis_sim.engine.latency.coefficients_file import read_coefficients, read_content
from blis_sim.engine.latency.fitted import Fitted
from blis_sim.engine.latency.wrapped import PhaseShifted
from replay.output.ensemble import intervals_of, sampled_latency_models
from replay.simulation.uncertainty import latency_sampler, uncertainty_of
from tests.coefficients_file import written
from tests.replay.small_traces import row
from tests.replay.small_traces import written as written_trace

SERVER = ("--model", "qwen3-14b", "--hardware", "H100", "--tp", "1", "--engine", "vllm", "--latency-model", "fitted")
SPREAD = {"weights": 0.05, "output_us": 400.0, "step_us": 0.0}
CORRELATION = [[1.0], [-0.8, 1.0], [0.0, 0.0, 1.0]]


def replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str, **sections: object) -> str:
    trace = written_trace(tmp_path, [row(n, 50_000 * n, input_tokens=500, output_tokens=20) for n in range(30)])
    file = written(tmp_path, **sections)
    code = run(["replay", str(trace), *SERVER, "--coefficients", str(file), *arguments])
    said = capsys.readouterr()
    return said.err if code == 0 else f"{code}: {said.err}"


def test_intervals_are_printed_beside_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = replayed(tmp_path, capsys, "--intervals", "12", spread=SPREAD, correlation=CORRELATION).splitlines()
    lines = [line.removeprefix("blis replay: ") for line in lines]
    start = lines.index("90 % intervals, in ms")
    rows = {" ".join(line.split()[:2]): line.split()[2:] for line in lines[start + 1 : start + 13]}
    assert list(rows) == [
        f"{metric} {name}" for metric in ("TTFT", "E2E", "ITL") for name in ("mean", "p50", "p90", "p99")
    ]
    for figure, low, to, high in rows.values():
        assert to == "to"
        assert float(low) < float(figure) < float(high)
        assert float(high) / float(low) < 1.3


def test_intervals_need_the_correlation_of_coefficients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = replayed(tmp_path, capsys, "--intervals", "2", spread=SPREAD)
    assert said.startswith("2: blis replay: error: ")
    assert "correlation must have a row of numbers from -1 to 1 for each of the 3 coefficients in spread" in said


def test_the_shipped_coefficients_have_intervals() -> None:
    uncertainty = uncertainty_of(LEARNED_COEFFICIENTS, read_content(LEARNED_COEFFICIENTS))
    learned, generator = read_coefficients(LEARNED_COEFFICIENTS), np.random.default_rng(1)
    drawn = [uncertainty.drawn(learned, generator).step for _ in range(2000)]
    sums = np.array([each.tokens + each.tiles + each.small_tiles for each in drawn])
    assert np.std([each.tokens for each in drawn]) > 0.05
    assert sums.std() / sums.mean() < 0.02, "what a prompt costs in all is known far better than its parts"


def test_drawn_coefficients_vary_as_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path)
    uncertainty = uncertainty_of(path, {"spread": SPREAD, "correlation": CORRELATION})
    learned, generator = read_coefficients(path), np.random.default_rng(1)
    drawn = [uncertainty.drawn(learned, generator) for _ in range(4000)]
    weights, outputs = np.array([[each.step.weights, each.request.output_us] for each in drawn]).T
    assert weights.mean() == pytest.approx(learned.step.weights, abs=0.003)
    assert weights.std() == pytest.approx(0.05, rel=0.05)
    assert np.corrcoef(weights, outputs)[0, 1] == pytest.approx(-0.8, abs=0.03)
    assert {each.step.step_us for each in drawn} == {learned.step.step_us}
    assert min(outputs) >= 0


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"correlation": CORRELATION}, "spread must map"),
        ({"spread": {"weights": -1}, "correlation": [[1]]}, "spread must map"),
        ({"spread": SPREAD, "correlation": [[1.0], [2.0, 1.0], [0, 0, 1]]}, "correlation must have"),
        ({"spread": SPREAD, "correlation": [[1.0]]}, "correlation must have"),
        ({"spread": SPREAD, "correlation": CORRELATION, "servers": {"speed": 2}}, "servers must map"),
        ({"spread": SPREAD, "correlation": CORRELATION, "servers": {"memory": 0.1}}, "servers must map"),
        ({"spread": SPREAD, "correlation": CORRELATION, "servers": [0.1]}, "servers must map"),
    ],
)
def test_a_file_without_usable_spreads_is_refused(sections: dict[str, object], what: str) -> None:
    with pytest.raises(EngineError, match=f"^coefficients.yaml: {what}"):
        uncertainty_of("coefficients.yaml", sections)


def test_arithmetic_of_servers_differs_more_than_their_memory(tmp_path: Path) -> None:
    path = written(tmp_path)
    certain = uncertainty_of(path, {"spread": {"weights": 0.0}, "correlation": [[1.0]]})
    learned, generator = read_coefficients(path), np.random.default_rng(1)
    drawn = [certain.drawn(learned, generator) for _ in range(4000)]
    slower = np.array([each.step.tokens / learned.step.tokens for each in drawn])
    assert slower.mean() == pytest.approx(1, abs=0.001)
    assert slower.std() == pytest.approx(0.0115, rel=0.05)
    assert [each.step.tiles / learned.step.tiles for each in drawn] == pytest.approx(slower.tolist())
    assert {each.step.weights for each in drawn} == {learned.step.weights}


def test_servers_differ_as_the_file_says(tmp_path: Path) -> None:
    servers = {"speed": 0.02, "arithmetic": 0.0}
    file = written(tmp_path, spread={"weights": 0.0}, correlation=[[1.0]], servers=servers)
    latency = Fitted(load_model("qwen3-14b"), load_gpu("H100"), 1, *read_coefficients(file)[3:5])
    decodes, steps = BatchShape(decode_requests=8, decode_context_tokens=8_000), []
    for drawn in sampled_latency_models(latency_sampler(latency, str(file)), 500, 0):
        assert isinstance(drawn, PhaseShifted)
        steps.append(drawn.model.step_time(decodes) / latency.step_time(decodes))
    assert np.mean(steps) == pytest.approx(1, abs=0.003)
    assert np.std(steps) == pytest.approx(0.02, rel=0.1)


def test_runs_of_equal_figures_have_an_interval_without_width() -> None:
    assert intervals_of([{"E2E mean": 3.0}] * 101) == {"E2E mean": (3.0, 3.0)}
    assert intervals_of([]) == {}


@pytest.mark.parametrize("num_draws", [19, 30, 100])
def test_nine_further_runs_of_ten_lie_between_the_ends_of_an_interval(num_draws: int) -> None:
    generator = np.random.default_rng(1)
    inside = []
    for drawn in generator.standard_normal((2000, num_draws)):
        low, high = intervals_of([{"TTFT mean": float(value)} for value in drawn])["TTFT mean"]
        further = generator.standard_normal(20)
        inside.append((low < further) & (further < high))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.015)
