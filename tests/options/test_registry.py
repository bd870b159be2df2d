"""Policies of other packages, by `module:Class` and by entry point, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from blis_sim.options.registry import Registry
from tests import fork_server
from tests.docs.pages import PROJECT
from traces import read_trace

STRANGER = '''
from blis_sim.engine.cluster.routing import Choice
from blis_sim.engine.scheduler.vllm import VllmScheduler
from blis_sim.engine.scheduler.policies import by_prompt_length


class EvenLengths:
    """Prompts of even lengths go to the first instance, all others to the second."""

    reads_snapshots = reads_in_flight = reads_caches = reads_adapters = False

    def __init__(self, settings):
        self.ties = settings.ties

    def choose(self, request, state):
        return Choice(request.input_tokens % 2)


class StaticBatches(VllmScheduler):
    def __init__(self, instance, reports_steps=True):
        super().__init__(instance, reports_steps)
        self._order = by_prompt_length

    def may_admit(self):
        return self.num_running == 0


def read_lengths(options):
    """Import a line for each request: prompt tokens, one a second."""
    from traces.importers import Imported
    from traces.rows import TraceRow

    lengths = map(int, options.path.read_text().split())
    return Imported(
        rows=[
            TraceRow(request_id=place, arrival_time_us=place * 1_000_000, input_tokens=length, output_tokens=5)
            for place, length in enumerate(lengths)
        ]
    )


class Lengths:
    """A format that reads and writes."""

    convert = staticmethod(read_lengths)

    @staticmethod
    def export(given):
        from traces.exporters import Exported

        given.path.write_text("".join(f"{row.input_tokens}\\n" for row in given.rows))
        return Exported(notes=("times are not written",))


broken = 1 / 0 if __name__ == "stranger_broken" else None
'''
ENTRY_POINTS = """
[blis.routers]
even-lengths = stranger:EvenLengths
missing = stranger:Nothing

[blis.schedulers]
static-batches = stranger:StaticBatches

[blis.formats]
lengths = stranger:read_lengths
both-ways = stranger:Lengths
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder on the search path with a distribution that has entry points."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    (tmp_path / "stranger_broken.py").write_text(STRANGER)
    (tmp_path / "stranger-1.dist-info").mkdir()
    (tmp_path / "stranger-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (tmp_path / "stranger-1.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def blis(folder: Path, *words: str, path: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(PROJECT), path)))}
    load = ("--model", "qwen3-14b", "--num-requests", "20", "--rate", "50", "--output-tokens-stdev", "0")
    command = [sys.executable, "-m", "blis_sim.cli", "run", *load, "--output-tokens", "20", "--json", *words]
    return fork_server.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


SPLIT = ("--num-instances", "2", "--trace-level", "decisions", "--summarize-trace")


@pytest.mark.slow
def test_an_entry_point_and_a_class_of_a_module_are_the_same_router(installed: Path) -> None:
    by_entry_point = blis(installed, *SPLIT, "--routing-policy", "even-lengths", path=str(installed))
    by_class = blis(installed, *SPLIT, "--routing-policy", "stranger:EvenLengths")
    assert by_entry_point.returncode == by_class.returncode == 0, by_entry_point.stderr + by_class.stderr
    assert by_entry_point.stdout == by_class.stdout
    assert by_class.stdout != blis(installed, *SPLIT).stdout


@pytest.mark.slow
def test_a_scheduler_of_another_package_is_an_engine(installed: Path) -> None:
    static = blis(installed, "--engine", "static-batches", path=str(installed))
    assert static.returncode == 0, static.stderr
    assert static.stdout != blis(installed).stdout


def convert(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(PROJECT), str(folder)))}
    command = [sys.executable, "-m", "blis_sim.cli", "convert", *words]
    return fork_server.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_format_of_another_package_is_read_and_written(installed: Path) -> None:
    (installed / "lengths.txt").write_text("7\n9\n")
    assert convert(installed, "both-ways", "lengths.txt", "--output", "read").returncode == 0
    assert [row.input_tokens for row in read_trace(installed / "read.yaml").rows] == [7, 9]
    written = convert(installed, "trace", "read.yaml", "--to", "both-ways", "--output", "written.txt")
    assert (written.returncode, (installed / "written.txt").read_text()) == (0, "7\n9\n"), written.stderr
    assert "2 requests written to written.txt\nnote: times are not written\n" in written.stderr


def test_a_function_is_a_format_that_reads_alone(installed: Path) -> None:
    (installed / "lengths.txt").write_text("7\n9\n")
    assert convert(installed, "lengths", "lengths.txt", "--output", "read").returncode == 0
    refused = convert(installed, "trace", "read.yaml", "--to", "lengths", "--output", "written.txt")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--to lengths: the format has no function export(to_export) to write with" in refused.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stranger:Nothing", "stranger:Nothing cannot be imported: AttributeError"),
        ("no_such_module:Router", "no_such_module:Router cannot be imported: ModuleNotFoundError"),
        ("stranger_broken:EvenLengths", "stranger_broken:EvenLengths cannot be imported: ZeroDivisionError"),
        ("missing", "the entry point missing of blis.routers cannot be loaded: AttributeError"),
        ("{'type': 'x'}", "--routing-policy must be one of round-robin, least-loaded"),
        ("roundrobin", "--routing-policy must be one of round-robin, least-loaded"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_one_line(installed: Path, name: str, message: str) -> None:
    done = blis(installed, *SPLIT, "--routing-policy", name, path=str(installed))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("flag", ["--engine", "--latency-model", "--routing-policy", "--admission-policy"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math:pi", "math:pi must be a class or a function, got float"),
        ("blis_sim.engine.core:Engine", "blis_sim.engine.core:Engine must have a method "),
    ],
)
def test_an_object_of_another_kind_is_refused_in_one_line(tmp_path: Path, flag: str, name: str, message: str) -> None:
    done = blis(tmp_path, *SPLIT, flag, name)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


def test_a_table_has_its_own_rows_alone_when_it_is_listed() -> None:
    table = Registry[int]("blis.nothing") | {"one": 1}
    assert (list(table), table["one"], "two" in table) == (["one"], 1, False)
    with pytest.raises(KeyError):
        table["two"]
    assert table["math:pi"] == pytest.approx(3.14159)
