"""Commands that simulate many times say of each simulation what `blis run` says of it."""

from pathlib import Path

import pytest

from blis_sim.bench.points import Outcome, Point, notes_of_points
from blis_sim.cli.main import run

Captured = pytest.CaptureFixture[str]

TWO_MODELS = """
version: "2"
aggregate_rate: 20
num_requests: 60
clients:
- {id: a, rate_fraction: 0.5, model: other, arrival: {process: poisson},
   input_distribution: {type: constant, params: {value: 300}},
   output_distribution: {type: constant, params: {value: 9}}}
- {id: b, rate_fraction: 0.5, arrival: {process: poisson}, input_distribution: {type: constant, params: {value: 30}},
   output_distribution: {type: constant, params: {value: 5}}}
"""
ONE_DEPLOYMENT = ("--gpus", "H100", "--tp-sizes", "1", "--shapes", "aggregated", "--precisions", "checkpoint")
MODEL = ("--model", "qwen/qwen3-14b")


@pytest.fixture
def spec(tmp_path: Path) -> list[str]:
    path = tmp_path / "two.yaml"
    path.write_text(TWO_MODELS)
    return [*MODEL, "--workload-spec", str(path)]


def said(capsys: Captured, program: str, *words: str, code: int = 0) -> list[str]:
    """The lines beside the answer, without those about files and the name of the command."""
    assert run([*program.split(), *words]) == code
    lines = capsys.readouterr().err.splitlines()
    lines = [line.removeprefix(f"blis {program}: ") for line in lines]
    return [line for line in lines if "points" not in line and not line.startswith("error: ")]


def test_a_sweep_says_what_was_left_out_and_which_steps_are_out_of_range(
    spec: list[str], tmp_path: Path, capsys: Captured
) -> None:
    left_out, outside = said(capsys, "run", *spec, "--json")
    assert left_out.startswith("left out ")
    assert "outside the range" in outside
    more = ("--vary", "max_num_seqs=8,256", "--output", str(tmp_path / "s.csv"), "--processes", "1")
    assert said(capsys, "sweep", *spec, *more) == [left_out, outside]
    assert said(capsys, "sweep", *spec, *more) == [left_out, outside]  # from the file


def test_a_sweep_names_the_point_where_others_are_within_the_range(tmp_path: Path, capsys: Captured) -> None:
    load = ("--num-requests", "20", "--prompt-tokens-stdev", "0", "--output-tokens", "5", "--output-tokens-stdev", "0")
    more = ("--vary", "prompt_tokens=30,500", "--output", str(tmp_path / "s.csv"), "--processes", "1")
    (note,) = said(capsys, "sweep", *MODEL, *load, *more)
    assert note.startswith("prompt_tokens=30: warning: outside the range of ")


@pytest.mark.slow
@pytest.mark.parametrize(("ttft", "code"), [("10s", 0), ("1ms", 1)])
def test_a_plan_says_so_of_its_winner_and_without_one_of_its_load(
    spec: list[str], tmp_path: Path, capsys: Captured, ttft: str, code: int
) -> None:
    left_out, outside = said(capsys, "run", *spec, "--json")
    file = ("--output", str(tmp_path / "plan.jsonl"))
    words = [*spec, *ONE_DEPLOYMENT, "--step-tokens", "0", "--ttft-p99", ttft, "--processes", "1", *file]
    assert said(capsys, "plan", *words, code=code) == [left_out, outside]
    assert said(capsys, "plan", *words, code=code) == [left_out, outside]  # from the file


def test_a_search_of_settings_says_which_steps_are_out_of_range(capsys: Captured) -> None:
    load = ("--num-requests", "20", "--prompt-tokens", "30", "--prompt-tokens-stdev", "0", "--output-tokens", "5")
    more = ("--output-tokens-stdev", "0", "--vary", "max_num_seqs=8,256", "--e2e-p99", "5s", "--processes", "1")
    (note,) = said(capsys, "bench tune", *MODEL, *load, *more)
    assert note.startswith("warning: outside the range of ")


def test_many_unlike_notes_are_cut_and_like_ones_are_said_once() -> None:
    points = [Point(number, {"rate": number}, {}) for number in range(20)]
    unlike = [(each, Outcome(notes=(f"warning: {each.number}",))) for each in points]
    *shown, last = notes_of_points(unlike)
    assert shown == [f"rate={number}: warning: {number}" for number in range(10)]
    assert last == "warning: and 10 more like these"
    assert notes_of_points([(each, Outcome(notes=("one", "one"))) for each in points]) == ["one"]
    some = [(each, Outcome(notes=("one",) if each.number > 16 else ())) for each in points]
    assert notes_of_points(some) == ["rate=17 and 2 more: one"]
