"""Standard output of a simulation: a table for people, or the given format."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from functools import partial

import pytest

from blis_sim.cli.main import run
from replay.report_options import ReportOptions
from tests.architecture.project import PROJECT

RUN = ("run", "--model", "qwen3-14b", "--num-requests", "20", "--rate", "5")
Captured = pytest.CaptureFixture[str]


def printed(capsys: Captured, *flags: str) -> str:
    assert run([*RUN, *flags]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "form"),
    [
        (ReportOptions(), "table"),
        (ReportOptions(json=True), "json"),
        (ReportOptions(format="csv"), "csv"),
        (ReportOptions(format="blis"), "blis"),
    ],
)
def test_the_format_depends_on_flags_alone(options: ReportOptions, form: str) -> None:
    assert options.printed_format == form


def test_the_flag_for_json_and_its_format_print_equal_bytes(capsys: Captured) -> None:
    assert printed(capsys, "--json") == printed(capsys, "--format", "json")
    assert json.loads(printed(capsys, "--format", "json"))["completed_requests"] == 20


def test_a_pipe_gets_a_table_and_the_text_of_blis_with_its_format(capsys: Captured) -> None:
    assert printed(capsys) == printed(capsys, "--format", "table")
    assert printed(capsys).startswith("qwen3-14b on ")
    assert printed(capsys, "--format", "blis").startswith("=== Simulation Metrics ===\n{")


def test_a_terminal_and_a_pipe_get_equal_bytes(capsys: Captured) -> None:
    controller, terminal = pty.openpty()
    try:
        command = [sys.executable, "-m", "blis_sim.cli", *RUN]
        done = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE, cwd=PROJECT, timeout=120, check=False)
        os.close(terminal)
        assert done.returncode == 0
        shown = b"".join(iter(partial(_read, controller), b""))
    finally:
        os.close(controller)
    assert shown.decode().replace("\r\n", "\n") == printed(capsys)


def _read(controller: int) -> bytes:
    """Return what a terminal shows next, nothing at its end."""
    try:
        return os.read(controller, 65536)
    except OSError:
        return b""


def test_two_formats_at_once_are_refused(capsys: Captured) -> None:
    assert run([*RUN, "--json", "--format", "csv"]) == 2
    assert "--json and --format csv exclude each other" in capsys.readouterr().err


def test_a_cluster_has_one_block_with_a_line_for_each_instance(capsys: Captured) -> None:
    pools = ("--num-instances", "2", "--prefill-instances", "1", "--decode-instances", "1", "--pd-decider", "always")
    text = printed(capsys, *pools, "--format", "table")
    assert text.count("latency, ms") == 1
    lines = [line.split()[:3] for line in text.splitlines() if line.startswith("instance_")]
    assert lines[:2] == [["instance_0", "prefill", "20"], ["instance_1", "decode", "20"]]
    assert [line[:2] for line in lines[2:]] == [line[:2] for line in lines[:2]]
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert "prefill/decode: 20 of 20 prompts computed by prefill instances" in text


def test_the_csv_has_a_row_for_the_run_and_one_for_each_instance(capsys: Captured) -> None:
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "--num-instances", "2", "--format", "csv"))))
    assert [row["instance"] for row in rows] == ["cluster", "instance_0", "instance_1"]
    assert int(rows[0]["completed"]) == sum(int(row["completed"]) for row in rows[1:]) == 20
    metrics = json.loads(printed(capsys, "--num-instances", "2", "--json"))
    assert float(rows[0]["ttft_p99_ms"]) == metrics["ttft_p99_ms"]


def test_a_cell_of_the_csv_with_several_values_is_json(capsys: Captured) -> None:
    (row,) = csv.DictReader(io.StringIO(printed(capsys, "--format", "csv")))
    assert json.loads(row["sureness"])["latency_model"] == row["latency_model"]
