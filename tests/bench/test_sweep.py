import csv
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from blis_sim.bench.points import Outcome, Point, Row
from blis_sim.bench.sweep_command import SweepOptions, run
from blis_sim.bench.sweep_report import frontier
from blis_sim.options import BlisError
from blis_sim.report.figures import frontier as best_points
from tests import fork_server
from tests.children import num_importing
from tests.docs.pages import PROJECT
from tests.patience import PATIENCE_S, wait_until

Sweep: TypeAlias = Callable[..., Any]
BASE = ("--model", "qwen/qwen3-14b", "--num-requests", "20", "--output-tokens", "20")


@pytest.fixture
def sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """Run `blis sweep` over rates with these options; gives `code`, what it `printed` and said, and its `rows`."""

    def swept(**options: Any) -> SimpleNamespace:
        path = tmp_path / "sweep.csv"
        given: dict[str, Any] = {"simulation": BASE, "vary": ("rate=1,4", "tp=1,2"), "processes": 1}
        code = run(SweepOptions(**(given | options), output=str(path)))
        written = capsys.readouterr()
        rows = list(csv.DictReader(path.read_text().splitlines()))
        return SimpleNamespace(code=code, printed=written.out, said=written.err, rows=rows, path=path)

    return swept


def test_every_point_is_a_row_in_order(sweep: Sweep) -> None:
    found = sweep()
    assert found.code == 0
    assert [(row["rate"], row["tp"], row["num_gpus"]) for row in found.rows] == [
        ("1.0", "1", "1"), ("1.0", "2", "2"), ("4.0", "1", "1"), ("4.0", "2", "2")
    ]  # fmt: skip
    assert all(row["completed_requests"] == "20" and row["error"] == "" for row in found.rows)
    assert "cost_per_hour" not in found.rows[0]


@pytest.mark.slow
def test_the_bytes_are_the_same_whatever_the_number_of_processes(sweep: Sweep) -> None:
    alone = sweep().path.read_bytes()
    assert sweep(processes=2, overwrite=True).path.read_bytes() == alone


def test_a_sweep_that_was_cut_goes_on_and_ends_with_the_same_bytes(sweep: Sweep) -> None:
    whole = sweep().path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path = sweep().path
    path.write_bytes(b"".join([lines[0], lines[3], lines[2][:30]]))
    again = sweep()
    assert "has 1 of 4 points already" in again.said
    assert again.path.read_bytes() == whole


def test_a_point_that_is_there_twice_counts_once(sweep: Sweep) -> None:
    path = sweep().path
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines(keepends=True)[-1])
    again = sweep()
    assert "has 4 of 4 points already" in again.said
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ((b"\n", b"\r", 1), "expected comma-separated cells, new-line character seen"),
        ((b",20,", b",many,", 1), "column completed_requests: expected a number, got 'many'"),
        ((b",20,", b",nan,", 1), "column completed_requests: expected a number, got 'nan'"),
        ((b",20,", b",", 1), "cells as in the header, got"),
    ],
)
def test_rows_that_were_damaged_are_one_line_and_stay_as_they_are(
    sweep: Sweep, damage: tuple[bytes, bytes, int], message: str
) -> None:
    path = sweep(vary=("rate=1,4",)).path
    damaged = path.read_bytes().replace(*damage)
    path.write_bytes(damaged)
    with pytest.raises(BlisError, match=message):
        sweep(vary=("rate=1,4",))
    assert path.read_bytes() == damaged


def test_points_that_serve_no_request_are_computed_all_the_same(sweep: Sweep, tmp_path: Path) -> None:
    plot = tmp_path / "frontier.svg"
    found = sweep(vary=("admission_policy=reject-all",), plot=str(plot))
    assert found.code == 0
    assert "reject-all     1        20" in found.printed
    assert "no point served any request" in found.said
    assert [row["rejected_requests"] for row in found.rows] == ["20"]
    assert not plot.exists()


def test_a_setting_is_varied_or_given(sweep: Sweep) -> None:
    with pytest.raises(BlisError, match=r"--vary rate and one value for it exclude each other, got 3\.0"):
        sweep(simulation=(*BASE, "--rate", "3"))


@pytest.mark.slow
def test_a_sweep_that_is_interrupted_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    with long_sweep(path) as process:
        wait_until(lambda: num_lines(path) >= 3)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said == f"blis sweep: {num_lines(path) - 1} of 3000 points are in {path}; the same command goes on there\n"


@pytest.mark.slow
def test_processes_that_are_still_starting_print_nothing_on_an_interrupt(tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    with long_sweep(path) as process:
        wait_until(lambda: num_importing(process.pid) == 2)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said == f"blis sweep: {num_lines(path) - 1} of 3000 points are in {path}; the same command goes on there\n"


@contextmanager
def long_sweep(path: Path) -> Iterator[subprocess.Popen[str]]:
    """One as at a terminal, where Ctrl-C reaches all processes, with more points than can be computed before it."""
    rates = ",".join(str(rate) for rate in range(1, 3001))
    command = [sys.executable, "-m", "blis_sim.cli", "sweep", *BASE, "--vary", f"rate={rates}", "-o", str(path)]
    command += ["--processes", "2"]
    with fork_server.Popen(command, stderr=subprocess.PIPE, text=True, cwd=PROJECT, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def num_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@pytest.mark.slow
def test_when_a_sweep_is_killed_its_processes_end_and_the_same_command_goes_on(tmp_path: Path) -> None:
    def command(name: str) -> list[str]:
        words = [sys.executable, "-m", "blis_sim.cli", "sweep", *BASE, "--vary", f"rate={rates}", "--processes", "2"]
        return [*words, "-o", str(tmp_path / name)]

    rates = ",".join(str(rate) for rate in range(1, 30))
    path = tmp_path / "killed.csv"
    process = fork_server.Popen(command("killed.csv"), stdout=subprocess.PIPE, cwd=PROJECT)
    wait_until(lambda: num_lines(path) >= 3)
    process.kill()
    process.communicate(timeout=PATIENCE_S)  # returns when no process holds the standard output any more
    for name in ("killed.csv", "whole.csv"):
        fork_server.run(command(name), cwd=PROJECT, check=True, capture_output=True)
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_points_that_are_there_are_not_computed_again(sweep: Sweep) -> None:
    path = sweep().path
    content = path.read_text()
    path.write_text(content.replace(",20,20,0,0,", ",19,20,0,0,"))
    assert [row["completed_requests"] for row in sweep(vary=("rate=1,2,4", "tp=1,2")).rows] == [
        "19", "19", "20", "20", "19", "19"
    ]  # fmt: skip


def test_points_that_failed_are_computed_again(sweep: Sweep) -> None:
    found = sweep(vary=("max_num_seqs=0,8",))
    assert found.code == 0
    assert "1 points failed, the first, max_num_seqs=0: --max-num-seqs must be at least 1, got 0" in found.said
    assert [row["error"] for row in found.rows] == ["--max-num-seqs must be at least 1, got 0", ""]
    assert "has 1 of 2 points already" in sweep(vary=("max_num_seqs=0,8",)).said


def short_of_memory() -> None:
    """Limit the memory to what suffices for a small simulation."""
    resource.setrlimit(resource.RLIMIT_AS, (650_000_000, 650_000_000))


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_point_that_fails_unexpectedly_keeps_no_other_from_being_computed(processes: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    command = [sys.executable, "-m", "blis_sim.cli", "sweep", *BASE[:2], "--vary", "num_requests=5,20000000,6"]
    command += ["--processes", processes, "-o", str(path)]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    for said_before in ("", f"blis sweep: {path} has 2 of 3 points already\n"):
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=one_thread,
            preexec_fn=short_of_memory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        reported = "blis sweep: 1 points failed, the first, num_requests=20000000: unexpected MemoryError"
        assert done.stderr.startswith(f"{said_before}{reported}")
        assert "Traceback" not in done.stderr
        rows = list(csv.DictReader(path.read_text().splitlines()))
        assert [(row["completed_requests"], row["error"][:22]) for row in rows] == [
            ("5", ""), ("", "unexpected MemoryError"), ("6", "")
        ]  # fmt: skip


def test_a_file_of_another_sweep_is_refused_unless_it_may_be_overwritten(sweep: Sweep) -> None:
    sweep()
    with pytest.raises(BlisError, match="has a point of other settings"):
        sweep(vary=("rate=1", "tp=1"))
    with pytest.raises(BlisError, match="is no sweep of these settings, it has no column max_num_seqs"):
        sweep(vary=("max_num_seqs=1,2",))
    assert len(sweep(vary=("rate=1", "tp=1"), overwrite=True).rows) == 1


def test_a_price_adds_costs_without_computing_anything_again(sweep: Sweep) -> None:
    sweep()
    priced = sweep(gpu_cost_per_hour=2.5)
    assert "has 4 of 4 points already" in priced.said
    assert [row["cost_per_hour"] for row in priced.rows] == ["2.5", "5.0", "2.5", "5.0"]
    assert "$/M" in priced.printed.split()


def test_a_sample_computes_some_of_the_points(sweep: Sweep) -> None:
    assert len(sweep(sample=3).rows) == 3


@pytest.mark.slow
def test_files_for_other_programs_are_written(sweep: Sweep, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    parquet = pytest.importorskip("pyarrow.parquet")
    sweep(plot=str(tmp_path / "sweep.svg"), parquet=str(tmp_path / "sweep.parquet"), gpu_cost_per_hour=1.0)
    table = parquet.read_table(tmp_path / "sweep.parquet").to_pydict()
    assert (table["rate"], table["tp"]) == ([1, 1, 4, 4], [1, 2, 1, 2])
    assert all(isinstance(value, float) for value in table["tokens_per_sec"])
    picture = (tmp_path / "sweep.svg").read_bytes()
    sweep(plot=str(tmp_path / "sweep.svg"), gpu_cost_per_hour=1.0)
    assert (tmp_path / "sweep.svg").read_bytes() == picture


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vary": ()}, "--vary NAME=VALUE,... must name what is to vary"),
        ({"processes": 2, "ray": True}, "--processes and --ray exclude each other"),
        ({"ray_address": "auto"}, "--ray-address needs --ray"),
        ({"sample_seed": 3}, "--sample-seed needs --sample"),
        ({"simulation": ("--num-requests", "3")}, "--model must be given"),
        ({"simulation": (*BASE, "--model", "nope")}, "model 'nope' is not in the catalogue"),
        ({"simulation": (*BASE, "--loud")}, "no such option: --loud"),
        ({"plot": "x.gif"}, "--plot must be a file that ends in"),
        ({"parquet": "/no/such/folder/x.parquet"}, "--parquet must be in a folder that exists"),
        ({"parquet": "/"}, "--parquet must be a file, got the folder /"),
        ({"sample": 0}, "--sample must be at least 1, got 0"),
    ],
)
def test_a_sweep_that_cannot_be_computed_is_refused(sweep: Sweep, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BlisError, match=message.replace("...", r"\.\.\.")):
        sweep(**options)


@pytest.mark.parametrize("flag", ["--output", "--parquet"])
def test_a_recording_that_is_replayed_is_not_written_over(tmp_path: Path, flag: str) -> None:
    if flag == "--parquet":
        pytest.importorskip("pyarrow")
    rows = tmp_path / "t.csv"
    rows.write_text("rows")
    given: dict[str, Any] = {"output": str(tmp_path / "sweep.csv"), flag.removeprefix("--"): str(rows)}
    words = ("replay", str(tmp_path / "t.yaml"), "--model", "qwen/qwen3-14b")
    with pytest.raises(BlisError, match=f"{flag} would write over {rows}, which belongs to what is read"):
        run(SweepOptions(simulation=words, vary=("max_num_seqs=1,2",), overwrite=True, **given))
    assert rows.read_text() == "rows"


def test_a_command_that_the_plan_names_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "command: replay\nsettings: {model: qwen/qwen3-14b}\nvary: {trace: [a.yaml, %s]}\n" % (tmp_path / "b.yaml")
    )
    rows = tmp_path / "b.csv"
    rows.write_text("rows")
    with pytest.raises(BlisError, match=f"--output would write over {rows}, which belongs to what is read"):
        run(SweepOptions(config=str(plan), output=str(rows), overwrite=True))
    assert rows.read_text() == "rows"


def test_rejected_requests_are_counted_beside_the_served_ones(sweep: Sweep) -> None:
    bucket = ("--admission-policy", "token-bucket", "--token-bucket-capacity", "2000")
    swept = sweep(simulation=(*BASE, *bucket), vary=("rate=4,8",))
    assert "GPUs  rejected  requests/s" in swept.printed
    assert all(int(row["rejected_requests"]) + int(row["completed_requests"]) == 20 for row in swept.rows)
    assert "rejected" not in sweep(overwrite=True).printed


def row(number: int, tokens_per_s: float, ttft_ms: float, itl_ms: float = 1, gpu_hours: float = 1) -> Row:
    figures = {
        "tokens_per_sec": tokens_per_s,
        "ttft_p99_ms": ttft_ms,
        "itl_p99_ms": itl_ms,
        "gpu_hours_per_million_tokens": gpu_hours,
    }
    return Row(str(number), Point(number, {}, {}), Outcome(figures))


def test_the_frontier_has_the_points_that_no_other_point_beats() -> None:
    rows = [
        row(0, 10, 5),
        row(1, 10, 6),
        row(2, 20, 50),
        row(3, 5, 5, gpu_hours=0.5),
        Row("4", Point(4, {}, {}), Outcome()),
    ]
    assert [each.point.number for each in frontier(rows)] == [0, 2, 3]
    assert best_points([(1, 1), (2, 3), (3, 2), (3, 5)]) == [(1, 1), (3, 2)]


def test_each_deployment_unlike_the_one_learned_from_is_named_once(sweep: Sweep) -> None:
    found = sweep(vary=("rate=1,4", "latency_model=trained-physics,fitted", "hardware=H100,A100-SXM"))
    assert [row["error"] for row in found.rows] == [""] * 8
    unlike, too_fast = (line for line in found.said.splitlines() if "warning: " in line)
    assert unlike.partition("not for ")[2].partition(";")[0] == "qwen3-14b on A100-SXM with tp 1"
    assert unlike.startswith("blis sweep: warning: the shipped coefficients were learned for qwen3-14b on H100")
    assert too_fast.startswith("blis sweep: rate=1.0 latency_model=trained-physics hardware=A100-SXM and 1 more: warn")
    assert "steps were predicted to be faster than the GPU's peak rates allow" in too_fast


@pytest.mark.slow
def test_many_warnings_are_cut_short(sweep: Sweep) -> None:
    found = sweep(
        simulation=("--model", "qwen/qwen3-14b", "--num-requests", "2", "--latency-model", "fitted"),
        vary=("tp=1,2,4,8", "hardware=H100,H200,A100-SXM", "max_num_seqs=8,16"),
    )
    warnings = [line for line in found.said.splitlines() if "warning: " in line and "outside the range" not in line]
    assert len(warnings) == 11
    assert warnings[-1] == "blis sweep: warning: and 1 more like these"
