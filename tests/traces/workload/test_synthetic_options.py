"""The load that flags describe: means are kept, and every command draws the same requests from equal flags."""

from typing import Any

import numpy as np
import pytest

from blis_sim.engine.cluster.options import ClusterOptions
from blis_sim.engine.deployment_options import DeploymentOptions
from blis_sim.options import OptionError
from observe.errors import ObserveError
from observe.options import ObserveOptions
from observe.workload import plan_of
from replay.run_command import RunOptions, spec_of
from traces.workload.distributions import sample
from traces.workload.generate import generate
from traces.workload.presets import Lengths, SyntheticOptions, largest_deviation, solved

NUM_DRAWS = 200_000


def drawn(lengths: Lengths) -> np.ndarray:
    return sample(lengths.distribution(), np.random.default_rng(7), NUM_DRAWS)


@pytest.mark.parametrize(
    ("mean", "stdev", "bounds"),
    [
        (300, 256, {}),
        (50, 256, {}),
        (50, 20, {"prompt_tokens_min": 2}),
        (9000, 3000, {}),
        (300, 100, {"prompt_tokens_max": 320}),
        (300, 5000, {"prompt_tokens_min": 100, "prompt_tokens_max": 7000}),
        (3, 1, {"prompt_tokens_min": 2}),
        (512, 0, {}),
    ],
)
def test_the_mean_is_kept_whatever_the_deviation_and_the_bounds(
    mean: int, stdev: float, bounds: dict[str, Any]
) -> None:
    lengths = SyntheticOptions(prompt_tokens=mean, prompt_tokens_stdev=stdev, **bounds).lengths.prompt
    tokens = drawn(lengths)
    noise = 4 * float(tokens.std()) / NUM_DRAWS**0.5 / mean
    assert tokens.mean() == pytest.approx(mean, rel=0.005 + noise)
    assert lengths.least <= tokens.min() <= tokens.max() <= lengths.most


@pytest.mark.parametrize(
    ("mean", "stdev", "low", "high"), [(300, 256, 1, 1e8), (300, 60, 2, 320), (1000, 900, 1, 4000)]
)
def test_the_deviation_is_kept_where_bounds_allow_it(mean: float, stdev: float, low: float, high: float) -> None:
    assert stdev <= largest_deviation(mean, low, high)
    curve = solved(mean, stdev, low, high)
    tokens = np.clip(np.random.default_rng(1).normal(curve.mu, curve.sigma, NUM_DRAWS), low, high)
    assert tokens.std() == pytest.approx(stdev, rel=0.02)


def test_a_curve_that_no_bound_touches_is_left_as_it_is() -> None:
    assert solved(512, 20, 1, 1e8) == (512, 20)
    assert solved(512, 0, 1, 1e8) == (512, 0)


def test_without_a_deviation_all_lengths_are_the_mean() -> None:
    assert set(drawn(SyntheticOptions(output_tokens=77).lengths.output)) == {77}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_tokens": 5, "prompt_tokens_min": 9}, "--prompt-tokens must be between --prompt-tokens-min (9) and"),
        ({"output_tokens": 5, "output_tokens_max": 4}, r"and --output-tokens-max \(4\), got 5"),
        ({"output_tokens_min": 5, "output_tokens_max": 4}, r"must be at most --output-tokens-max \(4\), got 5"),
    ],
)
def test_a_mean_that_bounds_exclude_is_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("(9)", r"\(9\)")):
        SyntheticOptions(**given).check_load()


def run_options(engine: str = "vllm", **load: Any) -> RunOptions:
    deployment = DeploymentOptions(model="qwen/qwen3-14b", engine=engine)
    return RunOptions(cluster=ClusterOptions(deployment=deployment), **load)


def test_blis_draws_its_own_lengths_whose_means_its_bounds_shift() -> None:
    lengths = run_options("blis", prompt_tokens=50).lengths.prompt
    assert lengths.distribution().params == {"mean": 50, "std_dev": 256, "min": 2, "max": 7000}
    assert drawn(lengths).mean() == pytest.approx(130, rel=0.02)


LOADS: list[dict[str, Any]] = [
    {"rate": 7.0},
    {"rate": 40.0, "prompt_tokens": 300, "prompt_tokens_stdev": 256.0, "output_tokens": 1, "seed": 9},
    {"rate": 3.0, "workload": "chatbot", "arrival": "gamma", "arrival_cv": 3.0, "seed": 0},
    {"rate": 5.0, "arrival": "constant", "prefix_tokens": 640, "output_tokens": 90, "output_tokens_stdev": 20.0},
]


@pytest.mark.parametrize("load", LOADS)
def test_run_and_observe_send_the_same_requests(load: dict[str, Any]) -> None:
    simulated = generate(spec_of(run_options(num_requests=60, **load))).requests
    sent = plan_of(ObserveOptions(url="http://h:1", output="out", num_requests=60, **load)).requests
    fields = ("input_tokens", "output_tokens", "prefix_group", "prefix_tokens", "client_id")
    ours = [(each.arrival_us, *(getattr(each, name) for name in fields)) for each in simulated]
    assert [(each.at_us, *(getattr(each, name) for name in fields)) for each in sent] == ours


def test_a_duration_says_how_many_requests_are_sent_and_stages_without_any_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given: dict[str, Any] = {"url": "http://h:1", "output": "out"}
    sent = plan_of(ObserveOptions(**given, rate=8.0, horizon=3_000_000)).requests
    simulated = generate(spec_of(run_options(rate=8.0, horizon=3_000_000))).requests
    assert [each.at_us for each in sent] == [each.arrival_us for each in simulated]
    assert capsys.readouterr().err == ""
    with pytest.raises(ObserveError, match="the workload has no requests: nothing arrives before its end"):
        plan_of(ObserveOptions(**given, stages=("0.001:1ms",)))
    with pytest.raises(ObserveError, match="--warmup-requests must be below the 4 requests of --stages, got 9"):
        plan_of(ObserveOptions(**given, stages=("5:1s",), warmup_requests=9, seed=4))


@pytest.mark.parametrize("load", LOADS)
def test_sweep_and_plan_read_the_flags_of_a_run(load: dict[str, Any]) -> None:
    from blis_sim.bench.points import plan_of as sweep_plan_of
    from blis_sim.bench.simulation_commands import simulation

    flags = [f"--{name.replace('_', '-')}={value}" for name, value in load.items()]
    found = sweep_plan_of(["--model", "qwen/qwen3-14b", "--num-requests=60", *flags], ("max_num_seqs=64,128",), None)
    expected = generate(spec_of(run_options(num_requests=60, **load))).requests
    for point in found.points():
        options = simulation("run").options_with(point.settings)
        assert generate(spec_of(options)).requests == expected
