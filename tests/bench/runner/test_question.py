"""Points of a sweep, a search or a plan are one question, whose step times all come from one latency model."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench.compare_options import CompareOptions
from blis_sim.bench.comparison import sides_of
from blis_sim.bench.plan_command import PlanOptions
from blis_sim.bench.plan_command import run as run_plan
from blis_sim.bench.points import AskedPoints, asked, plan_of
from blis_sim.bench.sweep_command import SweepOptions
from blis_sim.bench.sweep_command import run as run_sweep
from blis_sim.bench.tune import best_of, not_covered, table_of
from blis_sim.cli.main import run
from blis_sim.engine.errors import EngineError
from blis_sim.engine.latency import registry
from blis_sim.engine.latency.choice import LatencyChoice
from blis_sim.engine.latency.roofline import Roofline

Captured = pytest.CaptureFixture[str]
REAL = dict(registry.LATENCY_MODELS)
BASE = ("--model", "qwen3-14b", "--num-requests", "10", "--output-tokens", "20", "--rate", "2")


def kernels(choice: LatencyChoice) -> Roofline:
    """Cover up to two GPUs."""
    if choice.tp > 2:
        raise EngineError(f"no kernels were measured with tp {choice.tp}")
    return Roofline(choice.model, choice.gpu, choice.tp)


def refuse(_: LatencyChoice) -> Roofline:
    raise EngineError("it times nothing")


@pytest.fixture
def _kernels_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LATENCY_MODELS", {**REAL, "kernels": kernels})


@pytest.fixture
def _kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {**REAL, "kernels": kernels, "fitted": refuse, "trained-physics": refuse}
    monkeypatch.setattr(registry, "LATENCY_MODELS", names)


def points(*vary: str, simulation: tuple[str, ...] = BASE) -> AskedPoints:
    plan = plan_of(simulation, vary, None, SweepOptions)
    return asked(plan.simulation, plan.points())


def taken(found: AskedPoints) -> list[Any]:
    return [point.settings.get("latency_model") for point in found.points]


@pytest.mark.usefixtures("_kernels_of_some")
def test_all_points_get_the_name_of_one_latency_model() -> None:
    assert taken(points("tp=1")) == ["fitted"]
    assert taken(points("tp=1,2")) == ["kernels", "kernels"]
    assert taken(points("tp=4,2,1")) == ["fitted", "fitted", "fitted"]  # kernels do not cover tp 4


@pytest.mark.usefixtures("_kernels_of_some")
def test_a_latency_model_per_point_is_by_request_only() -> None:
    found = points("tp=1,2", "latency_model=fitted,kernels")
    assert taken(found) == ["fitted", "kernels", "fitted", "kernels"]
    assert found.text == ""
    assert taken(points("tp=1,2", simulation=(*BASE, "--latency-model", "roofline"))) == ["roofline", "roofline"]


@pytest.mark.usefixtures("_kernels_of_some")
def test_another_engine_keeps_the_step_times_that_belong_to_it() -> None:
    found = points("engine=vllm,blis", "tp=2")
    assert taken(found) == ["kernels", None]
    assert found.text.startswith("step times of 1 of 2 points by kernels: ")


@pytest.mark.usefixtures("_kernels_alone")
def test_a_point_that_is_not_covered_is_a_row_that_says_so(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "sweep.csv"
    run_sweep(SweepOptions(simulation=BASE, vary=("tp=1,2,4",), processes=1, output=str(path)))
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["latency_model"] for row in rows] == ["kernels", "kernels", ""]
    assert [row["error"] for row in rows] == [
        *("", ""),
        "not covered by step times of kernels: no kernels were measured with tp 4",
    ]
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("step times of all by kernels: median error TTFT ")
    assert first.endswith("; 1 not covered")


@pytest.mark.usefixtures("_kernels_alone")
def test_a_combination_that_is_not_covered_is_named_in_the_table_of_a_search() -> None:
    found = points("tp=2,4")
    (combination,) = [not_covered(point, found.refusals[1]) for point in found.points if point.number == 1]
    assert best_of([combination]) is None
    assert table_of([combination], ["tp"]).rows[0][-1] == "not covered"


@pytest.mark.usefixtures("_kernels_of_some")
def test_sides_of_a_comparison_are_timed_alike() -> None:
    sides = sides_of(CompareOptions(sides=("--tp 1", "--tp 2"))).covered
    assert [side.deployment.latency_name for side in sides] == ["kernels", "kernels"]
    named = sides_of(CompareOptions(sides=("--tp 1 --latency-model fitted", "--tp 2"))).covered
    assert [side.deployment.latency_name for side in named] == ["fitted", "kernels"]


@pytest.mark.usefixtures("_kernels_alone")
def test_a_side_that_is_not_covered_says_so_beside_the_others(capsys: Captured) -> None:
    sides = ("--", "--tp", "4", "--", "--tp", "1", "--", "--tp", "2")
    load = ("compare", "--workload", "steady", "--rate", "20", "--duration", "2")
    assert run([*load, *sides]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("; 1 not covered")
    assert lines[2].split() == ["B", "C"]
    assert lines[-1] == "A: --tp 4: not covered by step times of kernels: no kernels were measured with tp 4"
    assert run([*load, "--json", *sides]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(found[name]["runs"]) for name in "ABC"] == [0, 1, 1]
    assert found["A"]["not_covered"].startswith("not covered by step times of kernels")


@pytest.mark.usefixtures("_kernels_of_some")
def test_pools_of_a_cluster_are_timed_alike(capsys: Captured) -> None:
    pools = ("--num-instances", "2", "--prefill-instances", "1", "--decode-instances", "1", "--pd-decider", "always")
    for tp, name in (("2", "kernels"), ("4", "fitted")):
        assert run(["run", *BASE, *pools, "--decode-tp", tp, "--format", "report"]) == 0
        assert json.loads(capsys.readouterr().out)["provenance"]["latency_model"] == name


@pytest.mark.usefixtures("_kernels_of_some")
def test_pools_are_said_to_be_unlike_what_was_measured(capsys: Captured) -> None:
    pools = "--num-instances 2 --prefill-instances 1 --decode-instances 1 --pd-decider always"
    said = "unlike in pools of prefill and decode"
    assert run(["run", *BASE, *pools.split(), "--format", "report"]) == 0
    assert said in json.loads(capsys.readouterr().out)["provenance"]["sureness"]["text"]
    assert said in points("tp=1", simulation=(*BASE, *pools.split())).text
    plain, split = sides_of(CompareOptions(sides=("--tp 1", pools))).covered
    assert (plain.sureness.unlike, split.sureness.unlike) == ((), ("pools of prefill and decode",))


PLAN: dict[str, Any] = {
    "simulation": (*BASE, "--seed", "1"),
    "ttft_p99": "2s",
    "gpus": ("H100",),
    "tp_sizes": (1, 2),
    "precisions": ("checkpoint",),
    "step_tokens": (0,),
    "shapes": ("aggregated",),
    "max_gpus": 2,
    "processes": 1,
}


@pytest.mark.usefixtures("_kernels_of_some")
def test_a_plan_times_all_candidates_alike_and_names_the_model_first(capsys: Captured) -> None:
    assert run_plan(PlanOptions(**PLAN)) == 0
    assert capsys.readouterr().out.startswith("step times of all by kernels: median error TTFT ")


def test_models_run_and_plan_make_one_statement(capsys: Captured) -> None:
    assert run(["models", "qwen3-14b", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert run(["run", *BASE, "--format", "report"]) == 0
    report = json.loads(capsys.readouterr().out)["provenance"]
    assert run(["run", *BASE]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    assert run_plan(PlanOptions(**{**PLAN, "tp_sizes": (1,), "format": "json"})) == 0
    cheapest = json.loads(capsys.readouterr().out)["cheapest"]
    stated = plan["latency_models"][plan["latency_model"]]
    assert stated == report["sureness"] == cheapest["sureness"]
    assert stated["text"] in title
