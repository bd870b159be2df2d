"""Conclusions of pages, pictures and notebooks from a simulation hold with ten times as many requests.

The nightly run shows this. Every day, the commands of the pages print the figures that the pages show.
"""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from replay.closed_loop import FIRST_LENGTH
from tests.docs.pages import PROJECT, fences
from tests.examples import is_nightly

Captured = pytest.CaptureFixture[str]
PAGES_WITH_CONCLUSIONS = ("quick-start.md", "tutorial-capacity.md", "sweep.md")
TIMES = 10
every_night = pytest.mark.skipif(not is_nightly(), reason="runs of ten times the length are for the nightly run")
NOTEBOOK_LOAD = "--prompt-tokens 1000 --output-tokens 200"
NOTEBOOK_SWEEP = f"blis sweep --model qwen/qwen3-14b --hardware H100 --vary rate=2,4,8,12 {NOTEBOOK_LOAD}"
NOTEBOOK_PLAN = (
    f"blis plan --model qwen/qwen3-14b --rate 12 {NOTEBOOK_LOAD} --ttft-p99 500ms --gpus H100,H200 --tp-sizes 1,2 "
    "--shapes aggregated --step-tokens 0 --precisions checkpoint"
)


def commands(start: str) -> list[str]:
    return [
        command.text.partition(" --plot")[0] if " -o " not in command.text else command.text
        for name in PAGES_WITH_CONCLUSIONS
        for fence in fences(PROJECT / "docs" / name)
        for command in fence.commands
        if command.text.startswith(start)
    ]


SWEEPS = [*commands("blis sweep --model"), NOTEBOOK_SWEEP]


def without(arguments: list[str], *flags: str) -> list[str]:
    """The arguments without these flags and their values."""
    return [
        each
        for place, each in enumerate(arguments)
        if each not in flags and (not place or arguments[place - 1] not in flags)
    ]


def answer_of(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def concluded(found: dict[str, Any]) -> dict[str, Any]:
    """The verdict of a sweep on each point, and the point that it calls the cheapest."""
    return {
        "cheapest": [each["point"] for each in found["points"]].index(found["cheapest_point"])
        if found["cheapest_point"]
        else None,
        "points": [(each.get("meets_targets"), is_overloaded(each)) for each in found["points"]],
    }


def is_overloaded(point: dict[str, Any]) -> bool:
    return point["overload_queue_growth_per_min"] is not None


@pytest.mark.slow
@every_night
@pytest.mark.parametrize("text", SWEEPS)
def test_a_sweep_concludes_the_same_from_ten_times_as_many_requests(
    text: str, tmp_path: Path, capsys: Captured
) -> None:
    """Ten times as many as the longest run that is no overload, which is overloaded at any length."""
    arguments = without(shlex.split(text)[1:], "--plot", "-o", "--num-requests")
    shown = answer_of(capsys, *arguments, "-o", str(tmp_path / "shown.csv"))
    most = max(each["completed_requests"] for each in shown["points"] if not is_overloaded(each))
    assert most >= FIRST_LENGTH
    longer = answer_of(capsys, *arguments, "-o", str(tmp_path / "longer.csv"), "--num-requests", str(TIMES * most))
    assert concluded(longer) == concluded(shown)


@pytest.mark.slow
@every_night
@pytest.mark.parametrize("text", [*commands("blis plan --model"), NOTEBOOK_PLAN])
def test_a_plan_finds_the_same_deployments_from_ten_times_as_many_requests(text: str, capsys: Captured) -> None:
    arguments = without(shlex.split(text)[1:], "--num-requests")
    shown = answer_of(capsys, *arguments)
    requests = shown["cheapest"]["figures"]["completed_requests"]
    longer = answer_of(capsys, *arguments, "--num-requests", str(TIMES * requests))
    assert longer["cheapest"]["figures"]["completed_requests"] == TIMES * requests
    answers = [
        [(each["gpu"], each["shape"], each.get("label"), each.get("counts")) for each in found["answers"]]
        for found in (shown, longer)
    ]
    assert answers[0] == answers[1]


@pytest.mark.slow
@every_night
def test_one_deployment_of_the_tutorial_is_overloaded_at_any_length(capsys: Captured) -> None:
    load = ["run", "--model", "qwen/qwen3-14b", "--hardware", "H100", "--rate", "20", *NOTEBOOK_LOAD.split()]
    for more in ([], ["--num-requests", "300"], ["--num-requests", str(TIMES * FIRST_LENGTH)]):
        assert run([*load, "--fail-on", "overload", *more]) == 1
        assert "overloaded: served" in capsys.readouterr().out


@cache
def spec_of(name: str, times: int) -> str:
    text = (PROJECT / name).read_text(encoding="utf-8")
    longer, count = re.subn(r"num_requests: (\d+)", lambda found: f"num_requests: {times * int(found[1])}", text)
    assert count == 1
    return longer


def compared(names: str, times: int, folder: Path, capsys: Captured) -> list[dict[str, float]]:
    """The figures of each side of a comparison that the gallery draws, by its names on its page."""
    (text,) = (
        command.text
        for fence in fences(PROJECT / "docs" / "adaptive.md")
        for command in fence.commands
        if command.text.startswith(f"blis compare --names {names} ")
    )
    words = shlex.split(text)[2:]
    place = words.index("--workload-spec") + 1
    spec = folder / f"{times}.yaml"
    spec.write_text(spec_of(words[place], times), encoding="utf-8")
    words[place] = str(spec)
    first = words.index("--")
    assert run(["compare", *words[:first], "--json", *words[first:]]) == 0
    found = json.loads(capsys.readouterr().out)
    return [found[name]["runs"][0] for name in names.split(",")]


LATE = "SLO violations, critical (%)"


@pytest.mark.slow
@every_night
@pytest.mark.parametrize("times", [1, TIMES])
def test_urgency_spares_chats_and_costs_no_throughput_at_each_length(
    times: int, tmp_path: Path, capsys: Captured
) -> None:
    fifo, urgency, gap = compared("fifo,urgency,gap", times, tmp_path, capsys)
    assert fifo[LATE] > 50
    assert max(urgency[LATE], gap[LATE]) < 1
    assert urgency["Throughput (tok/s)"] == pytest.approx(fifo["Throughput (tok/s)"], rel=0.02)
    assert gap["Preemptions"] > 0 == urgency["Preemptions"] == fifo["Preemptions"]
    assert gap["TTFT p50 (ms)"] < urgency["TTFT p50 (ms)"] < fifo["TTFT p50 (ms)"]


@pytest.mark.slow
@every_night
@pytest.mark.parametrize("times", [1, TIMES])
def test_a_router_that_knows_caches_halves_late_questions_at_each_length(
    times: int, tmp_path: Path, capsys: Captured
) -> None:
    round_robin, cached = compared("round-robin,cache", times, tmp_path, capsys)
    assert cached[LATE] < round_robin[LATE] / 2
    assert cached["KV hit rate, tokens (%)"] > round_robin["KV hit rate, tokens (%)"] + 1


@pytest.mark.slow
@every_night
@pytest.mark.parametrize("times", [1, TIMES])
def test_drafts_behind_gates_make_decoding_faster_and_some_chats_late_at_each_length(
    times: int, tmp_path: Path, capsys: Captured
) -> None:
    none, gated = compared("none,gated", times, tmp_path, capsys)
    assert gated["TBT mean (ms)"] < none["TBT mean (ms)"] / 2
    assert gated["Throughput (tok/s)"] > none["Throughput (tok/s)"]
    assert none[LATE] < gated[LATE] < 2 * none[LATE]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, pytest.param(TIMES, marks=every_night)])
def test_long_prompts_apart_do_not_delay_short_ones_at_each_length(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conclusion of the tutorial about a policy and of the notebook about a router."""
    import blis_sim

    spec = tmp_path / "mixture.yaml"
    spec.write_text(spec_of("examples/mixture.yaml", times), encoding="utf-8")
    monkeypatch.syspath_prepend(str(PROJECT))
    p90_ms = {}
    for policy in ("round-robin", "examples.long_prompts_apart:LongPromptsApart"):
        found = blis_sim.run(
            model="qwen/qwen3-14b", num_instances=4, workload_spec=str(spec), routing_policy=policy
        ).to_pandas()
        p90_ms[policy] = found.groupby("tenant_id").ttft_ms.quantile(0.9)
    round_robin, apart = p90_ms.values()
    assert apart.chat < round_robin.chat / 4
    assert apart.documents > round_robin.documents
