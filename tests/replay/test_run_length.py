"""Whether a run is steady, overloaded or too short, and how many requests a run without a number has."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from blis_sim.options import options_from
from blis_sim.options.progress import no_progress
from replay.analysis.result import result_of
from replay.analysis.steady import Steadiness
from replay.closed_loop import FIRST_LENGTH, GrowingRun
from replay.output.findings import FinishedRun
from replay.run_command import RunOptions, simulate_run
from tests.examples import is_nightly

Captured = pytest.CaptureFixture[str]
SMALL: dict[str, Any] = {
    "model": "qwen/qwen3-14b", "latency_model": "blackbox", "alpha_coeffs": (0.0, 0.0, 0.0),
    "beta_coeffs": (2000.0, 0.0, 1000.0),
    "total_kv_blocks": 4000, "max_model_len": 16000, "prompt_tokens": 20, "output_tokens": 10,
}  # fmt: skip
"""A step of 2 ms and 1 ms for each request in it, so that less than 100 requests of 10 tokens a second are served."""


def simulated(**settings: Any) -> FinishedRun:
    return simulate_run(options_from(RunOptions, **settings), lambda _: None, no_progress)


def judged(**settings: Any) -> Steadiness:
    found = simulated(**settings).judged
    assert found is not None
    return found


def test_a_load_within_capacity_is_steady_and_needs_no_more_than_the_first_length() -> None:
    outcome = simulated(**SMALL, rate=30.0)
    assert outcome.judged is not None
    assert outcome.judged.is_steady
    assert outcome.judged.overload is None
    assert len(outcome.simulated.requests) == FIRST_LENGTH


def test_a_load_near_its_capacity_gets_more_requests() -> None:
    assert len(simulated(**SMALL, rate=86.0).simulated.requests) > FIRST_LENGTH


def test_a_load_above_capacity_is_found_although_nothing_waits_to_be_scheduled() -> None:
    found = judged(**SMALL, rate=150.0, num_requests=800).overload
    assert found is not None
    assert found.offered_per_s == pytest.approx(150, rel=0.1)
    assert 75 < found.served_per_s < 120
    assert 60 * 30 < found.queue_growth_per_min < 60 * 75


def test_a_run_that_is_too_short_says_how_many_requests_would_do() -> None:
    outcome = simulated(**SMALL, rate=60.0, num_requests=40)
    assert outcome.judged is not None
    assert not outcome.judged.is_known
    assert outcome.judged.num_requests_enough in (160, 640)
    assert not result_of(outcome.simulated, {}, judged=outcome.judged).is_steady


@pytest.mark.parametrize("rate", [30.0, 60.0, 80.0, 92.0, 150.0])
@pytest.mark.parametrize("num_instances", [1, 2])
def test_a_run_that_grows_is_judged_as_runs_of_each_length_are(
    rate: float, num_instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = {**SMALL, "rate": rate * num_instances, "num_instances": num_instances, "num_requests": 50}
    growing = judged(**load)
    monkeypatch.setattr(GrowingRun, "time_scales", lambda *_: None)
    assert growing == judged(**load)


CLIENT = """
  - id: {name}
    rate_fraction: 0.3333
    arrival: {{process: constant}}
    input_distribution: {{type: constant, params: {{value: 20}}}}
    output_distribution: {{type: exponential, params: {{mean: 10}}}}
"""


@pytest.mark.parametrize("num_instances", [1, 2])
def test_a_run_grows_between_requests_of_one_instant(
    num_instances: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "spec.yaml"
    head = 'version: "2"\nseed: 1\nnum_requests: 50\naggregate_rate: 170\nclients:'
    spec.write_text(head + "".join(CLIENT.format(name=name) for name in "abc"))
    load = {name: value for name, value in SMALL.items() if not name.endswith("put_tokens") and "prompt" not in name}
    load |= {"workload_spec": str(spec), "num_instances": num_instances}
    growing = judged(**load)
    monkeypatch.setattr(GrowingRun, "time_scales", lambda *_: None)
    assert growing == judged(**load)


def flags(**settings: Any) -> list[str]:
    texts = {name: ",".join(map(str, each)) if isinstance(each, tuple) else each for name, each in SMALL.items()}
    return [f"--{name.replace('_', '-')}={value}" for name, value in {**texts, **settings}.items()]


def test_an_overload_is_in_the_table_the_json_the_labels_and_the_exit_code(capsys: Captured) -> None:
    load = flags(rate=160, num_requests=800)
    assert run(["run", *load]) == 0
    text = capsys.readouterr().out
    assert "overloaded: served " in text
    assert "load: 1" in text
    assert "prompts of 20 and outputs of 10 tokens (means)" in text
    assert run(["run", *load, "--json", "--detectors", "queue", "--fail-on", "overload"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["saturation"] == {"queue": "OVERLOADED"}
    assert printed["breakdown"]["overload"]["offered_per_s"] > 140
    assert printed["breakdown"]["load"]["prompt_tokens_mean"] == 20
    assert run(["run", *flags(rate=30), "--fail-on", "overload", "--detectors", "all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["saturation"]["queue"] == "STABLE"


def test_the_load_counts_shared_prefixes(capsys: Captured) -> None:
    assert run(["run", *flags(rate=20, prefix_tokens=640, num_requests=50)]) == 0
    assert "prompts of 660 and outputs of 10 tokens" in capsys.readouterr().out


def test_a_short_run_says_so_in_one_line(capsys: Captured) -> None:
    assert run(["run", *flags(rate=60, num_requests=40)]) == 0
    text = capsys.readouterr().out
    assert text.count("too short for a steady state") == 1
    assert "requests would be enough" in text


QWEN = {"model": "qwen/qwen3-14b", "latency_model": "fitted"}
LLAMA = {"model": "meta-llama/llama-3.1-8b-instruct", "latency_model": "fitted"}
DEPLOYMENTS: list[tuple[dict[str, Any], float]] = [
    ({**QWEN, "prompt_tokens": 500, "output_tokens": 200}, 23.0),
    ({**QWEN, "prompt_tokens": 2000, "output_tokens": 100}, 9.4),
    ({**QWEN, "workload": "chatbot"}, 30.0),
    ({**LLAMA, "prompt_tokens": 300, "output_tokens": 300}, 44.0),
    ({**LLAMA, "hardware": "H200", "prompt_tokens": 800, "prompt_tokens_stdev": 400.0, "output_tokens": 200}, 34.0),
]
"""Settings, and about how many requests a second they serve at most."""


SEEDS = (1, 2) if is_nightly() else (1,)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.5, 0.85])
@pytest.mark.parametrize(("settings", "capacity_per_s"), DEPLOYMENTS)
def test_no_stable_run_is_called_overloaded(
    settings: dict[str, Any], capacity_per_s: float, share: float, seed: int
) -> None:
    assert judged(**settings, rate=share * capacity_per_s, num_requests=600, seed=seed).overload is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("settings", "capacity_per_s"), DEPLOYMENTS)
def test_every_overload_is_found(settings: dict[str, Any], capacity_per_s: float, seed: int) -> None:
    assert judged(**settings, rate=1.3 * capacity_per_s, num_requests=1500, seed=seed).overload is not None


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_an_overload_is_found_where_all_requests_run_at_once(seed: int) -> None:
    load = {**LLAMA, "prompt_tokens": 300, "output_tokens": 360, "rate": 60.0, "num_requests": 1500}
    found = judged(**load, seed=seed).overload
    assert found is not None
    assert 25 < found.served_per_s < 45
