"""Reference cases of several instances: identical to the microsecond, given the draws that broke the ties."""

import shlex
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.options import options_from
from replay.command import replay
from replay.command import run as run_replay
from replay.replay_options import ReplayOptions
from tests.golden.cluster_cases import recorded_draws, replay_options
from tests.golden.same_files import assert_printed, assert_same_files, by_id, read_json

CASES = [
    "cluster4_rr",
    "cluster4_busiest",
    "cluster2_latencies",
    "cluster2_token_bucket",
    "cluster2_flow_control",
    "cluster4_pd",
    "cluster4_pd_threshold",
    "pd_exhausted",
]
LOADS_DECIDE = ["cluster4_ll_oracle", "cluster4_ll_stale"]
CACHES_DECIDE = ["cluster4_weighted", "cluster4_weighted_default"]
"""Cases decided by ties: of loads, and of the shares of a prompt that caches hold."""
FIGURES = [f"{of}_{figure}_ms" for of in ("ttft", "e2e", "itl") for figure in ("mean", "p90")]
SEEDS = range(42, 52)


@pytest.mark.parametrize("case", CASES)
def test_a_cluster_is_simulated_to_the_microsecond(
    case: str, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = next(iter((reference / "golden").glob(f"engine*/{case}")))
    flags = shlex.split((folder / "flags.txt").read_text())
    outputs = ["--results-path", str(tmp_path / "results.json"), "--metrics-path", str(tmp_path / "metrics.json")]
    form = ["--engine", "blis", "--format", "blis"]
    assert run(["replay", str(folder / "trace.yaml"), *flags, *form, *outputs]) == 0
    assert_same_files(tmp_path, folder)
    assert_printed(capsys.readouterr().out, folder / "stdout.txt")


@pytest.mark.parametrize("case", LOADS_DECIDE + CACHES_DECIDE)
def test_with_the_same_draws_ties_fall_as_in_the_original(
    case: str, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reference / "golden" / "engine" / case
    options = replay_options(
        folder, results_path=str(tmp_path / "results.json"), metrics_path=str(tmp_path / "metrics.json")
    )
    assert replay(options, recorded_draws(reference)) == 0
    assert_same_files(tmp_path, folder)
    assert_printed(capsys.readouterr().out, folder / "stdout.txt")


def drawn_anew(case: str, reference: Path, tmp_path: Path) -> tuple[list[dict[str, float]], dict[str, float]]:
    """The figures of a case with draws of ours, one for each seed, and those of the original."""
    folder, metrics_path = reference / "golden" / "engine" / case, tmp_path / "metrics.json"
    ours = []
    for seed in SEEDS:
        assert run_replay(replay_options(folder, metrics_path=str(metrics_path), seed=seed)) == 0
        ours.append(read_json(metrics_path))
    theirs = read_json(folder / "metrics.json")
    assert {each["completed_requests"] for each in ours} == {theirs["completed_requests"]}
    return ours, theirs


@pytest.mark.parametrize("case", LOADS_DECIDE)
@pytest.mark.slow
def test_other_draws_change_little_where_loads_decide(case: str, reference: Path, tmp_path: Path) -> None:
    ours, theirs = drawn_anew(case, reference, tmp_path)
    for name in FIGURES:
        assert [each[name] for each in ours] == pytest.approx([theirs[name]] * len(SEEDS), rel=0.03), name


@pytest.mark.slow
@pytest.mark.parametrize("case", CACHES_DECIDE)
def test_the_original_lies_among_other_draws_where_caches_decide(case: str, reference: Path, tmp_path: Path) -> None:
    """The instance that a first tie chose for a prefix keeps it, so that one draw moves the figures by up to a half."""
    ours, theirs = drawn_anew(case, reference, tmp_path)
    for name in FIGURES:
        found = [each[name] for each in ours]
        assert min(found) - 1e-6 <= theirs[name] <= max(found) + 1e-6, name
    deviations = [max(abs(each[name] / theirs[name] - 1) for name in FIGURES) for each in ours]
    assert min(deviations) < 0.03, "one draw gives the figures of the original"


def test_two_instances_print_what_the_original_prints(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reference / "golden" / "tools"
    requests = by_id(read_json(folder / "saturation" / "run_rate5.metrics.json")["requests"])
    lengths = [
        (each["num_prefill_tokens"], each["num_decode_tokens"])
        for each in (requests[f"request_{n}"] for n in range(60))
    ]
    options = options_from(
        ReplayOptions,
        trace=str(generated_at_20_per_s(tmp_path, lengths)),
        model="qwen/qwen3-14b",
        engine="blis",
        format="blis",
        num_instances=2,
        routing_policy="weighted",
        trace_level="decisions",
        summarize_trace=True,
        counterfactual_k=2,
        fitness_weights="throughput:0.5,p99_ttft:0.3",
        slo_ttft="default=60ms",
    )
    assert replay(options, recorded_draws(reference)) == 0
    assert_printed(capsys.readouterr().out, folder / "run" / "two_instances.stdout.txt")


def generated_at_20_per_s(folder: Path, lengths: list[tuple[int, int]]) -> Path:
    """A trace as the reference generates it from a rate, given the lengths: its gaps lose what is left of 50 ms."""
    rows = ["request_id,input_tokens,output_tokens,arrival_time_us,deadline_us"]
    for number, (input_tokens, output_tokens) in enumerate(lengths):
        at = (number + 1) * 49_999
        rows.append(f"{number},{input_tokens},{output_tokens},{at},{at + 300_000_000}")
    (folder / "t.yaml").write_text("trace_version: 3\nmode: generated\n")
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    return folder / "t.yaml"
