"""`blis plan` with the engine, on small loads."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from blis_sim.bench.candidates import read_prices
from blis_sim.bench.plan_command import PlanOptions, run
from blis_sim.bench.plan_report import served_name
from blis_sim.bench.points import Job, compute
from blis_sim.cli.main import run as main
from blis_sim.options import BlisError
from blis_sim.options.command_line import parse_command_line
from blis_sim.options.option import parse_value

LOAD = (
    *("--model", "qwen3-14b", "--rate", "12", "--num-requests", "150", "--prompt-tokens", "800"),
    *("--prompt-tokens-stdev", "0", "--output-tokens", "60", "--output-tokens-stdev", "0", "--arrival", "poisson"),
)
SMALL: dict[str, Any] = {
    "simulation": LOAD,
    "ttft_p99": "400ms",
    "itl_p99": "60ms",
    "gpus": ("H100",),
    "tp_sizes": (1, 2),
    "precisions": ("checkpoint",),
    "step_tokens": (0, 1024),
    "shapes": ("aggregated",),
    "processes": 1,
}


def planned(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, Any]]:
    code = run(PlanOptions(**(SMALL | {"format": "json"} | options)))
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_answer_costs_no_more_than_the_cheapest_of_all_settings(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = planned(capsys)
    assert code == 0
    from replay.run_command import RunOptions

    base = parse_command_line(RunOptions, LOAD, parse_value).values
    base = {**base, "latency_model": found["cheapest"]["latency_model"]}
    met = []
    for tp in (1, 2):
        for tokens in (None, 1024):
            for count in (1, 2, 3, 4):
                varied = {"hardware": "H100", "tp": tp, "num_instances": count, "max_num_batched_tokens": tokens}
                settings = base | {name: value for name, value in varied.items() if value is not None}
                figures = compute(Job("", "run", settings)).figures
                if (figures["ttft_p99_ms"] or 0) <= 400 and (figures["itl_p99_ms"] or 0) <= 60:
                    met.append(tp * count)
    assert found["cheapest"]["gpus"] <= min(met)
    assert found["cheapest"]["figures"]["ttft_p99_ms"] <= 400
    assert found["cheapest"]["figures"]["itl_p99_ms"] <= 60


@pytest.mark.slow
def test_a_widest_placement_that_is_refused_is_reported_and_narrower_ones_are_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ("--model", "minimax-m2.5", "--vllm-version", "0.23", "--rate", "2", "--num-requests", "60")
    options = {"simulation": load, "gpus": ("H200",), "tp_sizes": (4, 8), "step_tokens": (0,), "ttft_p99": "9s"}
    code, found = planned(capsys, **options, itl_p99="1s")
    assert code == 0
    assert "--tensor-parallel-size 4" in str(found["cheapest"])
    assert "is not divisible by weight quantization block_n = 128" in str(found)


@pytest.mark.slow
def test_a_plan_goes_on_with_the_simulations_in_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.jsonl"
    _, first = planned(capsys, output=str(path), tp_sizes=(1,))
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    _, second = planned(capsys, output=str(path), tp_sizes=(1,))
    _, third = planned(capsys, output=str(path), tp_sizes=(1,))
    assert 0 < second["simulations"] < first["simulations"]
    assert third["simulations"] == 0
    for each in (first, second, third):
        each["simulations"] = 0
    assert first == second == third


@pytest.mark.slow
def test_how_many_processes_compute_does_not_change_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (planned(capsys, processes=count) for count in (1, 2))
    commands = [found.pop("provenance")["command"] for _, found in (one, two)]
    assert commands[0] == commands[1].replace("--processes 2", "--processes 1")
    assert one == two


@pytest.mark.slow
def test_pools_of_prefill_and_decode_are_searched_and_have_command_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = planned(capsys, shapes=("pd",), tp_sizes=(1,), step_tokens=(0,), manifests=str(tmp_path / "k8s"))
    assert code == 0
    best = found["cheapest"]
    assert best["shape"] == "P/D"
    assert [each["pool"] for each in best["commands"]] == ["prefill", "decode"]
    assert [each["count"] for each in best["commands"]] == best["counts"]
    assert "--kv-transfer-config" in best["commands"][0]["command"]
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "k8s").iterdir()}
    assert sorted(written) == [
        "decode-deployment.json",
        "decode-service.json",
        "prefill-deployment.json",
        "prefill-service.json",
    ]
    assert written["decode-deployment.json"]["spec"]["replicas"] == best["counts"][1]


@pytest.mark.slow
def test_table_and_page_name_the_cheapest_and_what_was_tried_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert run(PlanOptions(**SMALL, html=str(tmp_path / "plan.html"), plot=str(tmp_path / "plan.png"))) == 0
    printed = capsys.readouterr().out
    page = (tmp_path / "plan.html").read_text()
    assert '<li class="good">cheapest: ' in page
    assert page.count("<svg") == 2
    assert "<pre>" in page
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    for text in (
        "H100  aggregated",
        "cheapest: ",
        "with 30% more requests: ",
        "with bursts",
        "how sure: ",
        "vllm serve",
        "H100 $2.99 (Lambda on demand, 2025-11)",
    ):
        assert " ".join(text.split()) in " ".join(printed.split())


def test_targets_that_no_gpu_can_meet_end_with_exit_code_1_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(PlanOptions(**SMALL | {"itl_p99": "1ms"}))
    written = capsys.readouterr()
    assert code == 1
    assert "not tried: H100 tp 1: one request alone has" in written.out
    assert "no deployment that was tried meets the targets" in written.err


@pytest.mark.slow
def test_prices_of_a_file_take_the_place_of_those_that_ship(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("gpus: {h100: 1000}\n")
    _, found = planned(capsys, prices=str(path))
    assert found["cheapest"]["dollars_per_hour"] == 1000 * found["cheapest"]["gpus"]
    assert found["prices"]["H100"] == {"per_hour": 1000.0, "source": "prices.yaml", "as_of": "no date"}


def test_each_price_has_a_source_and_a_date(tmp_path: Path) -> None:
    assert all(
        price.source and re.fullmatch(r"20\d\d-\d\d", price.as_of) for price in read_prices(None).by_gpu.values()
    )
    (tmp_path / "own.yaml").write_text("as_of: 2030-02\ngpus: {H100: 2, L4: {per_hour: 1, as_of: 2031-03}}\n")
    found = read_prices(str(tmp_path / "own.yaml")).by_gpu
    assert [found[gpu].as_of for gpu in ("H100", "L4")] == ["2030-02", "2031-03"]
    assert found["T4"] == read_prices(None).by_gpu["T4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ttft_p99": None, "itl_p99": None}, "a plan needs a target"),
        ({"ttft_p99": "40"}, "--ttft-p99 must be a duration"),
        ({"ray": True}, "--processes and --ray exclude each other"),
        ({"ray_address": "auto"}, "--ray-address needs --ray"),
        ({"gpus": ()}, "--gpus must name at least one value"),
        ({"tp_sizes": (1, 1)}, "each once"),
        ({"tp_sizes": (0,)}, "--tp-sizes must be at least 1, got 0"),
        ({"gpus": ("H1000",)}, "H1000"),
        ({"simulation": (*LOAD, "--tp", "2")}, "--tp is what a plan searches: give --tp-sizes"),
        ({"simulation": (*LOAD, "--num-instances", "2")}, "--num-instances is what a plan searches"),
        ({"simulation": ("--rate", "3")}, "--model"),
        ({"simulation": (*LOAD, "--rate", "nan")}, "--rate must be a finite number, got nan"),
        ({"simulation": (*LOAD, "--rate", "inf")}, "--rate must be a finite number, got inf"),
        ({"simulation": (*LOAD, "--rate", "1e999")}, "--rate must be a finite number, got inf"),
        ({"simulation": (*LOAD, "--rate", "-1")}, "--rate must be above 0, got -1.0"),
    ],
)
def test_an_impossible_plan_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message.replace("(", r"\(")):
        run(PlanOptions(**SMALL | options))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("gpus: {H100: free}", "key gpus.H100.per_hour: expected a number above 0, got 'free'"),
        (
            "gpus: {H100: {per_hour: 2, since: 1}}",
            " unknown key 'since' of gpus.H100, known are per_hour, source, as_of",
        ),
        ("H100: 2", " unknown key 'H100', known are gpus, as_of"),
        ("gpus: {}\nwhen: now", " unknown key 'when'"),
    ],
)
def test_a_wrong_price_is_named_by_file_and_key(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(content)
    with pytest.raises(BlisError, match=f"{path.name}:? {message.strip()}"):
        run(PlanOptions(**SMALL | {"prices": str(path)}))


def test_a_file_that_is_no_list_of_simulations_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("something of mine\n")
    with pytest.raises(BlisError, match="which does not hold simulations of a plan"):
        run(PlanOptions(**SMALL | {"output": str(path)}))
    assert path.read_text() == "something of mine\n"


def test_flags_of_the_simulation_may_stand_anywhere() -> None:
    line = "--model m --ttft-p99 1s --rate=3 --gpus H100"
    assert parse_command_line(PlanOptions, line.split(), passes_flags_on=True).values == {
        "ttft_p99": "1s",
        "gpus": ("H100",),
        "simulation": ("--model", "m", "--rate=3"),
    }


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ("qwen3-14b", "Qwen/qwen3-14b"),
        ("llama-3.3-70b-instruct", "meta-llama/llama-3.3-70b-instruct"),
        ("some/folder", "some/folder"),
    ],
)
def test_the_command_line_names_the_model_as_a_hub_does(model: str, served: str) -> None:
    assert served_name(model) == served


def test_a_family_without_a_base_model_is_named_with_its_suffix() -> None:
    assert served_name("llama-3.3-70b") == "meta-llama/llama-3.3-70b-instruct"


def test_a_target_that_is_met_by_less_than_chance_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "plan --model qwen3-14b --rate 4 --prompt-tokens 600 --output-tokens 60 --gpus H100 --tp-sizes 1 --shapes "
        "aggregated --precisions checkpoint --step-tokens 0 --num-requests 200 --routing-policy round-robin "
        f"--max-num-seqs 64 --processes 1 -o {tmp_path}/plan.jsonl --e2e-p90"
    ).split()
    assert main([*words, "10s", "--json"]) == 0
    far = json.loads(capsys.readouterr().out)["cheapest"]
    (planned_ms, found) = far["figures"]["e2e_p90_ms"], far["ranges"]["e2e_p90_ms"]
    assert found["low_ms"] < planned_ms < found["high_ms"] < 1.2 * planned_ms
    assert main([*words, "10s"]) == 0
    assert "less than chance" not in capsys.readouterr().out
    assert main([*words, f"{1.002 * planned_ms:.1f}ms"]) == 0
    assert "E2E p90 meets its target by 0.2%, less than chance makes of 200" in " ".join(
        capsys.readouterr().out.split()
    )
    assert main([*words, f"{1.002 * planned_ms:.1f}ms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cheapest"]["ranges"]["e2e_p90_ms"] == found  # read from the file
