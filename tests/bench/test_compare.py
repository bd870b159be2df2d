"""`blis compare` runs the same requests through several configurations."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from blis_sim.bench.compare_command import rewritten
from blis_sim.bench.comparison import paired_difference
from blis_sim.cli.main import run

SHORT = ("--workload", "steady", "--rate", "20", "--duration", "2")
Captured = pytest.CaptureFixture[str]


def test_the_flags_after_each_dash_pair_are_one_configuration() -> None:
    assert rewritten(["--seed", "1", "--", "--a", "b c", "--", "--d"]) == ["--seed", "1", "--", "--a 'b c'", "--d"]


def test_both_configurations_get_the_same_requests(capsys: Captured) -> None:
    arguments = ["compare", *SHORT, "--json", "--repeat", "2", "--", "--max-num-seqs", "1", "--", "--max-num-seqs", "8"]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["A", "B"]
    for before, after in zip(found["A"]["runs"], found["B"]["runs"], strict=True):
        assert before["Requests"] == after["Requests"] == after["Completed"]
        assert before["Queue depth, mean"] > after["Queue depth, mean"]
    assert found["A"]["runs"][0] != found["A"]["runs"][1]


@pytest.mark.slow
def test_differences_have_intervals_and_files_are_written(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    assert run(["compare", "--baseline", "fifo", *SHORT, "--repeat", "3", "--html", str(page)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step times of all by adaptive-toy: error not known")
    assert [line.split() for line in lines if " - " in line] == [["fifo", "-", "adaptive"]]
    assert ["±" in line for line in lines if line.startswith("TTFT p50")] == [False, True]
    assert max(len(line) for line in lines if "±" in line) <= 80
    assert "<title>Comparison of adaptive and fifo</title>" in page.read_text()
    assert "<svg" in page.read_text()


@pytest.mark.slow
def test_latencies_have_the_intervals_of_servers_like_it(capsys: Captured) -> None:
    sides = ("--names", "a,b", "--", "--max-num-seqs", "32", "--", "--max-num-seqs", "64")
    assert run(["compare", *SHORT, *sides]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("TTFT p50 (ms)")]
    assert [line.count(" to ") for line in rows] == [0, 2]
    for form in ("csv", "markdown", "html"):
        assert run(["compare", "--format", form, *SHORT, *sides]) == 0
        assert "TTFT p50 (ms)" in capsys.readouterr().out
    assert run(["compare", "--format", "blis", *SHORT, *sides]) == 2
    assert "--format must be one of table, json, csv, markdown, html, got 'blis'" in capsys.readouterr().err


def test_a_live_table_ends_with_all_requests(capsys: Captured) -> None:
    assert run(["compare", "--baseline", "fifo", *SHORT, "--live"]) == 0
    printed = capsys.readouterr().out
    frames = printed.split("s of simulated time")
    assert len(frames) == 5
    last = [line.split() for line in frames[-1].splitlines() if line.startswith(("Completed", "Queue"))]
    table = [line.split() for line in printed.splitlines() if line.startswith("Completed  ")]
    assert last[0][2:] == table[0][1:]
    assert last[1][2:] == ["0", "0"]


def test_the_hit_rate_is_that_of_all_prompt_tokens_whichever_instances_get_them(
    capsys: Captured, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    sizes = "{type: constant, params: {value: 20}}"
    spec.write_text(f"""
version: "2"
aggregate_rate: 5
num_requests: 20
clients:
  - {{id: a, rate_fraction: 1, prefix_group: p, prefix_length: 1600, arrival: {{process: poisson}},
     input_distribution: {sizes}, output_distribution: {sizes}}}
""")
    cached = ["--num-instances", "4", "--routing-policy", "weighted", "--routing-scorers", "cache-utilisation:1"]
    current = ["--snapshot-refresh-interval", "0", "--cache-signal-delay", "0"]
    arguments = ["--workload-spec", str(spec), "--json", "--", "--max-num-seqs", "9", "--", *cached, *current]
    assert run(["compare", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    rates = [found[side]["runs"][0]["KV hit rate, tokens (%)"] for side in "AB"]
    assert rates[0] > 90
    assert rates[1] > 85, "one or two of four instances have had all requests"


def test_the_published_schedulers_flags_mean_the_same(capsys: Captured) -> None:
    printed = []
    theirs = ["--scenario", "mixed_priority", "--rps", "40", "--kv-slots", "1024", "--batch-size", "8"]
    ours = ["--workload", "mixed-priority", "--rate", "40"]
    for arguments in (
        ["--compare-fifo", *theirs],
        ["--baseline", "fifo", *ours, "--", "--total-kv-blocks", "65", "--max-num-seqs", "8"],
    ):
        assert run(["compare", "--workers", "2", "--duration", "2", "--json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        printed.append({side: each["runs"] for side, each in found.items()})
    assert printed[0] == printed[1]


@pytest.mark.parametrize("scenario", ["steady", "burst", "mixed_priority"])
def test_the_hit_rate_of_the_published_scenarios_is_that_of_the_original(scenario: str, capsys: Captured) -> None:
    assert run(["compare", "--compare-fifo", "--scenario", scenario, "--duration", "10", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["adaptive"]["runs"][0]
    assert 8 <= figures["KV hit rate (%)"] <= 14, "8.5 to 11.4 in recorded runs, which differ from run to run"
    assert figures["KV hit rate, tokens (%)"] < figures["KV hit rate (%)"]


def test_live_tables_leave_standard_output_to_json(capsys: Captured) -> None:
    assert run(["compare", "--baseline", "fifo", *SHORT, "--live", "--json"]) == 0
    printed = capsys.readouterr()
    assert list(json.loads(printed.out)) == ["adaptive", "fifo"]
    assert printed.err.count("s of simulated time") == 4


def test_the_gain_of_drafts_is_beside_what_the_formulas_say(capsys: Captured) -> None:
    config = '{"method": "ngram", "num_speculative_tokens": 4, "draft_cost": 0.1, "gates": {}}'
    drafts = ["--speculative-config", config, "--speculative-acceptance-rate", "0.85"]
    assert run(["compare", *SHORT, "--json", "--", "--max-num-seqs", "256", "--", *drafts]) == 0
    found = json.loads(capsys.readouterr().out)
    (without,), (drafted,) = found["A"]["runs"], found["B"]["runs"]
    assert round(drafted["Accepted per draft, expected"], 2) == 2.71
    assert drafted["Accepted per draft"] == pytest.approx(2.71, abs=0.1)
    assert drafted["Speed-up of drafts, by formula"] == 4.0
    assert without["Speed-up of decoding"] == 1.0
    gained = without["TBT mean (ms)"] / drafted["TBT mean (ms)"]
    assert drafted["Speed-up of decoding"] == pytest.approx(gained, rel=1e-5)
    assert 1.5 < gained < 4.0


TWO_MODELS = """
version: "2"
aggregate_rate: 20
num_requests: 60
clients:
- {id: a, rate_fraction: 0.5, model: other, adapter: x, arrival: {process: poisson},
   input_distribution: {type: constant, params: {value: 300}},
   output_distribution: {type: constant, params: {value: 9}}}
- {id: b, rate_fraction: 0.5, adapter: x, arrival: {process: poisson}, input_distribution: {type: constant,
   params: {value: 30}}, output_distribution: {type: constant, params: {value: 5}}}
"""


def test_a_comparison_simulates_and_warns_of_what_a_run_does(capsys: Captured, tmp_path: Path) -> None:
    spec = tmp_path / "two.yaml"
    spec.write_text(TWO_MODELS)
    sides = ("--", "--model", "qwen/qwen3-14b", "--", "--max-num-seqs", "2")
    assert run(["compare", "--workload-spec", str(spec), "--json", *sides]) == 0
    compared = capsys.readouterr()
    assert run(["run", "--model", "qwen/qwen3-14b", "--workload-spec", str(spec), "--json"]) == 0
    ran = capsys.readouterr()
    (of_run,) = json.loads(compared.out)["A"]["runs"]
    assert of_run["Requests"] == json.loads(ran.out)["injected_requests"] < 60
    left_out = next(line for line in ran.err.splitlines() if "left out" in line).removeprefix("blis run: ")
    outside = next(line for line in ran.err.splitlines() if "outside the range" in line).removeprefix("blis run: ")
    assert f"blis compare: {left_out}\n" in compared.err
    assert f"blis compare: A: {outside}\n" in compared.err
    assert "adapters change no time" in compared.err
    assert "were not sent" not in compared.err
    nobody = spec.read_text().replace("id: b,", "id: b, model: other,")
    spec.write_text(nobody)
    assert run(["compare", "--workload-spec", str(spec), *sides]) == 2
    assert "no request of the workload is for qwen/qwen3-14b" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--", "--max-num-seqs", "1"], "give two or more configurations"),
        (["--baseline", "fifo", "--", "a", "--", "b"], "--baseline takes one set of flags at most"),
        (["--speed", "1", "--baseline", "fifo"], "--speed needs --live"),
        (["--kv-slots", "99", "--", "--tp", "1", "--", "--tp", "2"], "--kv-slots needs --baseline"),
        (["--compare-fifo", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--names", "x,x", "--baseline", "fifo"], "--names must be 2 different names, got 'x,x'"),
        (["--", "--nonsense", "--", "--tp", "1"], "no such option: --nonsense"),
        (["--model", "qwen3-14b", "--", "--tp", "1", "--", "--tp", "2"], "--model describes a configuration: it must"),
        (["--tp=1", "--", "--tp", "1", "--", "--tp", "2"], "--tp describes a configuration: it must stand behind the"),
        (["--", "--help", "--", "--tp", "1"], "flags of a configuration are those of `blis run`"),
    ],
)
def test_impossible_comparisons_are_refused(arguments: list[str], problem: str, capsys: Captured) -> None:
    assert run(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert "Traceback" not in error


def test_an_interval_is_that_of_students_t() -> None:
    found = paired_difference([1.0, 2.0, 3.0], [2.0, 3.5, 3.5])
    assert found is not None
    assert found.mean == 1.0
    assert found.half_width == pytest.approx(4.303 * 0.5 / 3**0.5, rel=1e-3)
    assert not found.is_significant
    assert paired_difference([1.0], [2.0]) is None


@pytest.mark.parametrize("scenario", ["steady", "burst", "mixed-priority", "mixed_priority"])
def test_run_takes_the_scenarios_too(scenario: str, capsys: Captured) -> None:
    flags = ["--model", "qwen/qwen3-14b", "--priority-policy", "slo-urgency", "--num-requests", "20", "--json"]
    assert run(["run", "--workload", scenario, *flags]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["requests_with_deadline"] == metrics["completed_requests"] == 20


SIDES = ("--names", "alone,together", "--", "--max-num-seqs", "1", "--", "--max-num-seqs", "64")


@pytest.mark.parametrize(
    ("limit", "verdicts", "line", "code"),
    [
        ("1s", [False, True], "targets met by together", 0),
        ("1h", [True, True], "targets met by alone and together", 0),
        ("1us", [False, False], "targets MISSED by all configurations", 1),
    ],
)
def test_targets_have_a_verdict_for_each_configuration(
    limit: str, verdicts: list[bool], line: str, code: int, capsys: Captured
) -> None:
    targets = ("--ttft-p99", limit, "--repeat", "2")
    assert run(["compare", *SHORT, *targets, "--json", *SIDES]) == code
    found = json.loads(capsys.readouterr().out)
    assert [each["meets_targets"] for each in found.values()] == verdicts
    assert [each["targets"][0]["is_met"] for each in found.values()] == verdicts
    assert run(["compare", *SHORT, *targets, "--format", "csv", *SIDES]) == code
    rows = list(csv.DictReader(StringIO(capsys.readouterr().out)))
    assert [row["meets_targets"] for row in rows] == [str(each) for each in verdicts for _ in range(2)]
    assert run(["compare", *SHORT, *targets, *SIDES]) == code
    assert line in capsys.readouterr().out.splitlines()


def test_the_share_of_requests_within_targets_is_judged_by_class(capsys: Captured) -> None:
    targets = ("--goodput", "standard/e2e:20s", "--min-attainment", "0.9")
    assert run(["compare", *SHORT, *targets, "--json", *SIDES]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["classes"][0]["is_met"] for each in found.values()] == [False, True]
    assert found["together"]["runs"][0]["Within all targets (%)"] == 100
    assert run(["compare", *SHORT, *targets, *SIDES]) == 0
    printed = capsys.readouterr()
    assert "90 % of standard within its targets" in printed.out
    assert "requests have no targets" in printed.err


def test_a_wrong_target_is_named(capsys: Captured) -> None:
    assert run(["compare", *SHORT, "--ttft-p99", "soon", *SIDES]) == 2
    assert "--ttft-p99" in capsys.readouterr().err
