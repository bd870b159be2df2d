"""`blis` as a process of its own: loaded modules, output and exit codes."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from blis_sim.cli.commands import COMMANDS
from tests.replay.small_traces import row, written

PROJECT = Path(__file__).resolve().parents[2]

LOADED = """
import sys
from blis_sim.cli.main import run
code = run(sys.argv[1:])
sys.stderr.write("\\n" + " ".join(sys.modules))
sys.exit(code)
"""
SIMULATED = ("--model", "qwen/qwen3-14b", "--hardware", "H100")


LOADED_BY_HELP = """
import sys
from blis_sim.cli.main import run
libraries = {"aiohttp", "jsonschema", "matplotlib", "numpy", "prometheus_client", "pydantic", "scipy", "uvloop"}
for command in sys.argv[1:]:
    code = run([*command.split(), "--help"])
    if code or not libraries.isdisjoint(sys.modules):
        sys.exit(f"{command} --help: {code} {libraries & sys.modules.keys()}")
"""
"""Names the first command whose help loads one of these libraries."""


def python(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=PROJECT, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a command has loaded when it ends."""
    process = python("-W", "error", "-c", LOADED, *arguments)
    assert process.returncode == 0, process.stderr
    return set(process.stderr.splitlines()[-1].split())


def among(names: Iterable[str], loaded: set[str]) -> list[str]:
    """Return those of the modules, and of all within them, that are loaded."""
    return [each for each in sorted(loaded) if any(f"{each}.".startswith(f"{name}.") for name in names)]


def test_help_loads_neither_a_command_nor_what_commands_need() -> None:
    depths = {"blis_sim": 2}
    loaded = {".".join(name.split(".")[: depths.get(name.partition(".")[0], 1)]) for name in loaded_by("--help")}
    assert {"blis_sim.cli", "blis_sim.options"} <= loaded
    ours = {"blis_sim.engine", "blis_sim.bench", "traces", "replay", "calibrate", "observe", "mockserve"}
    others = {"aiohttp", "matplotlib", "numpy", "orjson", "prometheus_client", "scipy", "uvloop", "yaml"}
    assert loaded & (ours | others | {"asyncio"}) == set()
    assert loaded & {"attr", "markdown_it", "pygments"} == set()  # what Markdown and tracebacks in colours need


@pytest.mark.parametrize("part", [0, 1, 2])
def test_the_help_of_a_command_loads_no_library_that_the_command_works_with(part: int) -> None:
    process = python("-W", "error", "-c", LOADED_BY_HELP, *list(COMMANDS)[part::3])
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""


@pytest.fixture(scope="module")
def loaded_by_a_replay(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """By that of one request on one instance, with nothing special asked for."""
    path = written(tmp_path_factory.mktemp("trace"), [row()])
    return loaded_by("replay", str(path), *SIMULATED)


def test_a_replay_loads_no_library_that_it_has_no_use_for(loaded_by_a_replay: set[str]) -> None:
    others = ["aiohttp", "asyncio", "matplotlib", "prometheus_client", "pydantic", "rich", "scipy", "uvloop"]
    others += ["gzip", "hashlib", "importlib.metadata", "numpy.ma", "socket"]
    assert "numpy" in loaded_by_a_replay
    assert among(others, loaded_by_a_replay) == []


def test_a_replay_on_one_instance_loads_nothing_of_a_cluster_but_its_flags(loaded_by_a_replay: set[str]) -> None:
    parts = (
        "admission",
        "assembly",
        "autoscaler",
        "cluster",
        "disaggregation",
        "gateway",
        "policy_file",
        "routing",
        "state",
    )
    of_a_cluster = [f"blis_sim.engine.cluster.{part}" for part in parts]
    assert all(find_spec(each) for each in of_a_cluster)
    assert among(of_a_cluster, loaded_by_a_replay) == []


def test_a_replay_loads_one_scheduling_and_one_latency_model(loaded_by_a_replay: set[str]) -> None:
    schedulings = [
        f"blis_sim.engine.scheduler.{name}" for name in ("blis", "drafter", "fixed_timing", "offloader", "vllm")
    ]
    models = [f"blis_sim.engine.latency.{name}" for name in ("blackbox", "fitted", "roofline", "trained_physics")]
    assert all(find_spec(each) for each in [*schedulings, *models])
    assert among(schedulings, loaded_by_a_replay) == ["blis_sim.engine.scheduler.vllm"]
    assert among(models, loaded_by_a_replay) == ["blis_sim.engine.latency.fitted"]


def test_a_replay_loads_no_figures_that_are_shown_on_demand_only(loaded_by_a_replay: set[str]) -> None:
    on_demand = [
        "replay.analysis.on_demand",
        "traces.saturation",
    ]
    assert all(find_spec(each) for each in on_demand)
    assert among([*on_demand, "traces.workload", "traces.importers"], loaded_by_a_replay) == []


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--help"], ["--version"]])
def test_a_closed_reader_of_the_output_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = python("-m", "blis_sim.cli", *arguments, stdout=writing)
    finally:
        os.close(writing)
    assert process.stderr == ""
    assert process.returncode in (0, 1)


def test_a_mistake_ends_the_process_with_code_2_and_one_line() -> None:
    process = python("-W", "error", "-m", "blis_sim.cli", "replay", "absent.yaml", "--model", "qwen/qwen3-14b")
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "blis replay: error: absent.yaml: no such file\n"


def test_the_console_script_is_the_same_program() -> None:
    script = Path(sys.executable).with_name("blis")
    if not script.is_file():
        pytest.skip("the project is not installed beside this interpreter")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == python("-m", "blis_sim.cli", "--version").stdout


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-", "2>/dev/full"])
def test_a_recording_takes_the_place_of_no_stream_that_was_closed(closed: str, tmp_path: Path) -> None:
    flags = f"--model qwen/qwen3-14b --num-requests 3 --trace-output {tmp_path / 'out'}"
    command = f"exec {sys.executable} -m blis_sim.cli run {flags} {closed}"
    assert subprocess.run(["bash", "-c", command], cwd=PROJECT, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert (tmp_path / "out.yaml").read_text().startswith("trace_version: ")
    refused = f"exec {sys.executable} -m blis_sim.cli nonsense {closed}"
    assert subprocess.run(["bash", "-c", refused], cwd=PROJECT, stdout=subprocess.DEVNULL, check=False).returncode == 2


def short_of_memory() -> None:
    """Limit the memory to what suffices for a small simulation."""
    resource.setrlimit(resource.RLIMIT_AS, (650_000_000, 650_000_000))


@pytest.mark.slow
def test_a_lack_of_memory_is_one_line() -> None:
    command = [sys.executable, "-m", "blis_sim.cli", "run", "--model", "qwen/qwen3-14b", "--num-requests", "20000000"]
    one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=PROJECT, env=one_thread, preexec_fn=short_of_memory, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "blis run: error: out of memory\n")


@pytest.mark.parametrize(
    ("raised", "code", "said"), [("KeyboardInterrupt", 130, ""), ("MemoryError", 1, "out of memory")]
)
@pytest.mark.parametrize("module", ["blis_sim.cli.app", "traces.convert_command", "yaml"])
def test_ends_in_one_line_where_an_import_is_cut_short(raised: str, code: int, said: str, module: str) -> None:
    text = f"""
import sys
from importlib.abc import MetaPathFinder
from blis_sim.cli.main import main

class Cutting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise {raised}

sys.meta_path.insert(0, Cutting())
sys.argv[1:] = ["convert", "inference-perf", "nothing.yaml"]
main()
"""
    process = python("-c", text)
    assert process.returncode == code
    assert process.stderr.count("\n") == bool(said)
    assert process.stderr.rstrip().endswith(said)


def test_an_interrupt_is_not_lost_in_an_import_that_hides_it() -> None:
    text = """
import signal, sys
from importlib.abc import MetaPathFinder
from blis_sim.cli.main import main

class Hiding(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("hidden")

sys.meta_path.insert(0, Hiding())
sys.argv[1:] = ["run", "--model", "qwen3-14b", "--num-requests", "2", "--arrival", "poisson"]
main()
"""
    process = python("-c", text)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


@pytest.mark.parametrize(("handler", "code"), [("signal.SIG_IGN", 0), ("signal.default_int_handler", 130)])
def test_an_interrupt_that_is_ignored_at_the_start_stays_ignored(handler: str, code: int) -> None:
    text = f"""
import signal, sys
from blis_sim.cli import app
from blis_sim.cli.main import main

def run_program(arguments, program, row):
    signal.raise_signal(signal.SIGINT)
    return 0

signal.signal(signal.SIGINT, {handler})
app.run_program = run_program
main()
"""
    process = python("-c", text)
    assert (process.returncode, process.stderr) == (code, "")


def test_ends_in_one_line_where_a_library_finds_no_memory() -> None:
    text = """
import sys
from importlib.abc import MetaPathFinder
from blis_sim.cli.main import main

class Failing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "numpy":
            raise ImportError("numpy is broken") from ImportError("x.so: failed to map segment from shared object")

sys.meta_path.insert(0, Failing())
sys.argv[1:] = ["run", "--model", "qwen3-14b", "--num-requests", "2", "--arrival", "poisson"]
main()
"""
    process = python("-c", text)
    assert (process.returncode, process.stderr) == (1, "blis run: error: out of memory\n")
