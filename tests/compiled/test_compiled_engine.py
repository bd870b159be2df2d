"""The engine compiled to C is the engine: built as `pip install` builds it, it gives the same bytes."""

import json
import sysconfig
from pathlib import Path
from shutil import copy

import pytest

from tests.architecture.project import PROJECT, pyproject
from tests.compiled.builds import compiled_installation, demand_compiler, python
from tests.examples import is_nightly

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("compiled")]

MODULES = [
    file.removesuffix(".py").replace("/", ".")
    for file in pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
]
FILE_OF_EACH = """
import importlib, importlib.util, sys
origins = [importlib.util.find_spec(name).origin for name in sys.argv[1:]]
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*origins)
"""
RUN_EACH = """
import contextlib, json, os, sys
from blis_sim.cli.main import run
for name, flags in json.loads(sys.argv[1]).items():
    os.mkdir(name)
    os.chdir(name)
    with open("run.txt", "w") as said, contextlib.redirect_stdout(said):
        code = run(["run", *flags, "--results-path", "run.json", "--trace-output", "trace", "--json"])
    model = flags[: flags.index("--tp") + 2]
    with open("replay.txt", "w") as said, contextlib.redirect_stdout(said):
        code += run(["replay", "trace.yaml", *model, "--results-path", "replay.json", "--json"])
    assert code == 0, name
    os.chdir("..")
"""
"""Return the output and files of each run, and of a replay of its trace."""
PYTEST_WITH_IT = """
import sys, blis_sim.engine.core, pytest
assert not blis_sim.engine.core.__file__.endswith(".py")
already = "ignore:Module already imported"  # the package has a pytest plugin, whose asserts pytest would rewrite
sys.exit(pytest.main(["-W", already, *sys.argv[1:]]))
"""
TESTS_OF_PLAIN_CLASSES = ("tests/engine/scheduler/test_instances_without_dictionary.py",)
"""Tests of `__slots__`, which compiled classes do not use."""
WITHOUT_COMPILED_PARTS = (
    "tests/engine/catalogue",
    "tests/engine/latency/collectives",
    "tests/engine/kv_cache/test_mirroring.py",
    "tests/engine/latency/operators",
    "tests/engine/memory",
    "tests/laws/test_controlled_laws.py",
    "tests/laws/test_ways_of_composing.py",
)
"""A catalogue, a memory plan and what steers a cluster are not compiled; the others replace a compiled class."""
IN_THE_BYTES = () if is_nightly() else ("tests/laws/test_cpu_memory.py", "tests/laws/test_group_cohort.py")
"""Laws of parts whose recorded runs, in tests/engine and below, have the bytes of the plain engine."""
MORE = ("tests/golden",) if is_nightly() else ("-m", "not slow")
"""Reference results hold for it as for the plain engine, with which it shares the bytes of all runs below."""
TESTS = (("tests/engine", *MORE), ("tests/laws", "tests/wings/vidur/test_batch_laws.py"))
PROFILE = "daily" if is_nightly() else "tenth"
"""The plain engine passes all of these tests: what compiling can break shows in a tenth of the random examples."""
QWEN = ("--model", "qwen/qwen3-14b", "--hardware", "H100", "--tp", "1")
MIXTRAL = ("--model", "mistralai/mixtral-8x7b-v0.1", "--hardware", "H100", "--tp", "2")
STAGES = ("--model", "qwen/qwen3-14b", "--hardware", "H100", "--pp", "2", "--tp", "1")
WINDOWS = ("--model", "openai/gpt-oss-20b", "--hardware", "H100", "--tp", "1")
RANKS = ("--model", "mistralai/mixtral-8x7b-v0.1", "--hardware", "H100", "--dp", "2", "--tp", "2")
OFFLOADED = ("--model", "qwen/qwen3-14b", "--total-kv-blocks", "500", "--kv-offloading-size", "4", "--tp", "1")
LLAMA = ("--model", "meta-llama/llama-3.1-8b-instruct", "--tp", "2", "--workload", "chatbot", "--num-requests", "150")
TIGHT = ("--total-kv-blocks", "300", "--rate", "30", "--num-requests", "150")
DRAFTS = '{"method": "eagle3", "model": "a/head", "num_speculative_tokens": 3}'
POOLS = ("--prefill-instances", "1", "--decode-instances", "3")
RUNS = {
    "one instance": (*QWEN, "--rate", "10", "--num-requests", "200"),
    "more than it can serve": (*QWEN, "--rate", "60", "--num-requests", "400", "--timeout", "5"),
    "users who wait for replies": (*LLAMA, "--concurrency", "8", "--think-time-ms", "100"),
    "a storm of preemptions": (*QWEN, *TIGHT),
    "priorities": (*QWEN, *TIGHT, "--scheduler", "priority-fcfs", "--preemption-policy", "priority"),
    "shared prefixes": (*QWEN, "--rate", "20", "--num-requests", "150", "--prefix-tokens", "1000"),
    "classes and conversations": (
        *QWEN,
        "--workload-spec",
        str(PROJECT / "examples" / "workload.yaml"),
        "--num-requests",
        "40",
    ),
    "BLIS's scheduling": (*QWEN, *TIGHT, "--engine", "blis"),
    "BLIS's with CPU memory": (*QWEN, *TIGHT[:-1], "50", "--engine", "blis", "--kv-cpu-blocks", "200"),
    "speculative decoding": (
        *(*QWEN, "--rate", "5", "--num-requests", "40"),
        *("--speculative-config", DRAFTS, "--speculative-acceptance-rate", "0.8,0.6,0.5"),
    ),
    "synchronous steps": (*QWEN, "--rate", "10", "--num-requests", "200", "--no-async-scheduling"),
    "pipeline stages": (*STAGES, *TIGHT[:-1], "60"),
    "groups of KV caches": (*WINDOWS, "--rate", "10", "--num-requests", "200", "--prefix-tokens", "500"),
    "data-parallel ranks with experts": (*RANKS, "--rate", "10", "--num-requests", "100"),
    "KV blocks in CPU memory": (
        *(*OFFLOADED, "--hardware", "H100", "--rate", "10", "--num-requests", "50", "--prefix-tokens", "1000"),
    ),
    "learned step times": (*QWEN, "--latency-model", "fitted", "--rate", "10", "--num-requests", "150"),
    "learned step times with experts": (*MIXTRAL, "--latency-model", "fitted", "--rate", "2", "--num-requests", "60"),
    "step times from peak rates": (*QWEN, "--latency-model", "roofline", "--rate", "10", "--num-requests", "150"),
    "a cluster in turn": (*LLAMA, "--rate", "50", "--num-instances", "4", "--routing-policy", "round-robin"),
    "a cluster by scores": (*LLAMA, "--rate", "50", "--num-instances", "4", "--routing-policy", "weighted"),
    "a cluster with pools": (*LLAMA, "--rate", "50", "--num-instances", "4", *POOLS),
}


@pytest.fixture(scope="module")
def compiled() -> Path:
    """The folder of an installation with a compiled engine."""
    demand_compiler()
    return compiled_installation()


def test_each_of_the_modules_is_compiled_and_no_other(compiled: Path, tmp_path: Path) -> None:
    files = python(compiled, tmp_path, "-W", "error", "-c", FILE_OF_EACH, *MODULES).stdout.split()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert files == [f"{compiled}/{name.replace('.', '/')}{suffix}" for name in MODULES]
    assert len(list(compiled.rglob(f"*{suffix}"))) == len(MODULES) + 1  # what they share


def test_the_version_names_the_compiled_engine(compiled: Path, tmp_path: Path) -> None:
    said = python(compiled, tmp_path, "-m", "blis_sim.cli", "--version").stdout
    assert said == f"{pyproject()['project']['version']} (compiled engine)\n"


@pytest.fixture(scope="module")
def written(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of all runs, by the kind of engine."""
    folders = {"compiled": tmp_path_factory.mktemp("by_compiled"), "plain": tmp_path_factory.mktemp("by_plain")}
    for kind, site in (("compiled", compiled), ("plain", PROJECT)):
        done = python(site, folders[kind], "-c", RUN_EACH, json.dumps(RUNS))
        assert done.returncode == 0, done.stderr
    return folders


@pytest.mark.parametrize("name", RUNS)
def test_the_compiled_engine_gives_equal_bytes(name: str, written: dict[str, Path]) -> None:
    ours, theirs = ({path.name: path.read_bytes() for path in (folder / name).iterdir()} for folder in written.values())
    assert {"run.txt", "run.json", "trace.csv", "replay.txt", "replay.json"} <= ours.keys()
    assert ours == theirs


def test_a_scheduler_of_ones_own_works_with_it(compiled: Path, tmp_path: Path) -> None:
    copy(PROJECT / "examples" / "short_prompts_first.py", tmp_path)
    own = ("--engine", "short_prompts_first:ShortPromptsFirst", "--rate", "6", "--num-requests", "200", "--json")
    command = ("-m", "blis_sim.cli", "run", *QWEN, *own)
    with_it, without = (python(site, tmp_path, *command) for site in (compiled, PROJECT))
    assert (with_it.returncode, without.returncode) == (0, 0), with_it.stderr + without.stderr
    assert with_it.stdout == without.stdout


def test_a_class_that_cannot_be_inherited_from_is_refused_in_one_line(compiled: Path, tmp_path: Path) -> None:
    text = "from blis_sim.engine.kv_cache.vllm_cache import VllmKVCache\nclass Mine(VllmKVCache):\n    pass\n"
    (tmp_path / "own.py").write_text(text)
    done = python(compiled, tmp_path, "-m", "blis_sim.cli", "run", *QWEN, "--engine", "own:Mine", "--num-requests", "2")
    assert done.returncode == 2
    assert "own:Mine inherits from VllmKVCache, which is compiled to C here: inherit from" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_policies_of_ones_own_work_with_it(compiled: Path, tmp_path: Path) -> None:
    example = str(PROJECT / "examples" / "cluster_policies.py")
    with_it, without = (python(site, tmp_path, example) for site in (compiled, PROJECT))
    assert (with_it.returncode, with_it.stderr) == (0, "")
    assert with_it.stdout == without.stdout


@pytest.mark.parametrize("tests", TESTS, ids=["engine", "laws"])
def test_the_tests_of_the_engine_pass_with_it(tests: tuple[str, ...], compiled: Path) -> None:
    options = ["-o", f"pythonpath={compiled} .", "-p", "no:cacheprovider", "-p", "no:xdist", "--cpu-budget-s", "100"]
    options += ["--hypothesis-profile", PROFILE]
    options += [f"--deselect={test}" for test in TESTS_OF_PLAIN_CLASSES]
    options += [f"--ignore={path}" for path in (*WITHOUT_COMPILED_PARTS, *IN_THE_BYTES)]
    done = python(compiled, PROJECT, "-P", "-c", PYTEST_WITH_IT, *options, *tests)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
