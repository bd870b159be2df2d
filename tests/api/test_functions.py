"""The Python interface does what the commands do, and neither prints, exits nor asks for a guard."""

import inspect
import json
import math
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import blis_sim
from blis_sim.api.commands import KINDS, OMITTED_SETTINGS, Table, options_from_kwargs
from blis_sim.cli.commands import COMMANDS
from blis_sim.cli.main import run as main
from blis_sim.engine.cluster.routing import Choice, RouterSettings
from blis_sim.engine.cluster.state import RoutingState
from blis_sim.engine.request import Request
from blis_sim.installation import install_command
from blis_sim.options import options_of
from replay.run_command import RunOptions

MODEL = "qwen/qwen3-14b"


class LastInstance:
    """A router that picks the last candidate."""

    reads_snapshots = False
    reads_in_flight = False
    reads_caches = False
    reads_adapters = False

    def __init__(self, settings: RouterSettings) -> None:
        self.settings = settings

    def choose(self, request: Request, state: RoutingState) -> Choice:
        return Choice(len(state.candidates) - 1)


def script(folder: Path, text: str) -> str:
    """The output of a script in a folder, both streams."""
    path = folder / "script.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, cwd=folder)
    return done.stdout + done.stderr


def test_a_run_has_the_figures_that_the_command_prints(capfd: pytest.CaptureFixture[str]) -> None:
    found = blis_sim.run(model=MODEL, rate=30.0, num_requests=40, hardware="H100", goodput="ttft:50ms", seed=3)
    assert capfd.readouterr() == ("", "")
    words = ("--rate", "30", "--num-requests", "40", "--hardware", "H100", "--slo-ttft", "default=50ms", "--seed", "3")
    assert main(["run", "--model", MODEL, *words, "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert json.loads(json.dumps(found.to_dict())) == printed
    assert (found.ttft.p99_ms, found.itl.mean_ms) == (printed["ttft_p99_ms"], printed["itl_mean_ms"])
    assert found.slo_attainment == printed["slo_attainment"]


def test_latencies_of_a_run_are_those_of_its_requests() -> None:
    found = blis_sim.run(model=MODEL, rate=20, num_requests=31)
    ttft_ms = sorted(found.requests["ttft_ms"])
    assert found.ttft.p50_ms == ttft_ms[15]
    assert found.ttft.mean_ms == pytest.approx(sum(ttft_ms) / 31)
    assert set(found.requests["outcome"]) == {"completed"}
    frame = found.to_pandas()
    assert list(frame.columns) == list(found.requests.columns)
    assert found.to_arrow().num_rows == len(frame) == found.num_completed == 31


@pytest.mark.slow
def test_a_replay_and_its_calibration_need_no_file_between_them(tmp_path: Path) -> None:
    trace = tmp_path / "recorded.yaml"
    blis_sim.run(model=MODEL, rate=10, num_requests=20, trace_output=tmp_path / "recorded")
    replayed = blis_sim.replay(trace, model=MODEL, results_path=tmp_path / "results.json", phase_average=2)
    in_memory = blis_sim.calibrate(trace, replayed)
    from_file = blis_sim.calibrate(trace, sim_results=tmp_path / "results.json")
    assert in_memory.to_dict() == from_file.to_dict()
    assert in_memory.metrics["e2e"].grade == "excellent"
    assert in_memory.requests["recorded_e2e_ms"][0] == pytest.approx(replayed.requests["e2e_ms"][0], rel=0.05)
    with pytest.raises(TypeError, match="either the result of replay"):
        blis_sim.calibrate(trace, replayed, sim_results=tmp_path / "results.json")


def test_a_sweep_of_a_trace_writes_nothing_unless_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blis_sim.run(model=MODEL, rate=10, num_requests=10, trace_output="recorded")
    before = sorted(tmp_path.iterdir())
    found = blis_sim.sweep({"max_num_seqs": [1, 8]}, trace="recorded.yaml", model=MODEL, processes=1)
    assert sorted(tmp_path.iterdir()) == before
    alone = blis_sim.replay("recorded.yaml", model=MODEL, max_num_seqs=8)
    assert found.points[1].figures["ttft_p99_ms"] == alone.ttft.p99_ms
    assert found.points[0].figures["ttft_p99_ms"] > alone.ttft.p99_ms  # type: ignore[operator]
    assert found.points[1] in found.frontier
    assert found.to_pandas().max_num_seqs.to_list() == [1, 8]


@pytest.mark.slow
def test_a_script_without_a_guard_sweeps_on_several_processes(tmp_path: Path) -> None:
    text = "import blis_sim\nprint('once')\nfound = blis_sim.sweep({'rate': [2, 4]}, model='qwen/qwen3-14b', "
    printed = script(tmp_path, text + "num_requests=5, processes=2)\nprint(len(found.points))\n")
    assert printed == "once\n2\n"


def test_modules_of_the_users_with_names_of_ours_are_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "replay.py").write_text("raise SystemExit('the module of the user')")
    assert script(tmp_path, "import blis_sim\nprint(blis_sim.run.__name__)\n") == "run\n"
    (tmp_path / "replay.py").write_text("")
    printed = script(tmp_path, "import replay, blis_sim\nblis_sim.run\n")
    assert "BrokenInstallationError" in printed.splitlines()[-1]


def test_a_class_may_stand_in_the_place_of_the_name_of_a_policy() -> None:
    found = blis_sim.run(model=MODEL, rate=20, num_requests=6, num_instances=3, routing_policy=LastInstance)
    assert set(found.requests["instance"]) == {2}
    with pytest.raises(blis_sim.OptionError, match="--routing-policy must be a name, or a class or function"):
        blis_sim.run(model=MODEL, routing_policy=lambda settings: LastInstance(settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": -1}, "--rate must be above 0"),
        ({"num_requests": 2.5}, "--num-requests must be a whole number, got '2.5'"),
        ({"detectors": 3}, "--detectors must be "),
        ({"workload": "chat"}, "--workload must be one of"),
        ({"results_path": "/no/such/folder/results.json"}, "--results-path must be in a folder that exists"),
    ],
)
def test_a_value_that_is_not_allowed_is_an_option_error(settings: dict[str, object], message: str) -> None:
    with pytest.raises(blis_sim.OptionError, match=message):
        blis_sim.run(model=MODEL, **settings)  # type: ignore[arg-type]


def test_a_name_that_is_no_setting_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"run\(\) got an unexpected keyword argument 'rats', did you mean 'rate'"):
        blis_sim.run(model=MODEL, rats=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="under two names, the second is 'tensor_parallel_size'"):
        blis_sim.run(model=MODEL, tp=1, tensor_parallel_size=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'json'"):
        blis_sim.run(model=MODEL, json=True)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"sweep\(\) got an unexpected keyword argument 'trp'"):
        blis_sim.sweep({"trp": [1]}, model=MODEL)
    with pytest.raises(TypeError, match=r"server\(\) chooses the port"), blis_sim.server(MODEL, port=80):
        pass


def test_values_of_python_become_those_of_settings() -> None:
    given = {"model": Path("folder"), "tensor_parallel_size": 2, "detectors": ["threshold"], "rate": 3}
    options = options_from_kwargs(
        RunOptions, {**given, "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "run"
    )
    deployment = options.cluster.deployment
    assert (deployment.model, deployment.tp, options.rate) == ("folder", 2, 3.0)
    assert options.report.saturation.detectors == ("threshold",)
    assert deployment.speculation is not None
    assert deployment.speculation.num_tokens == 2


@pytest.mark.slow
def test_a_server_takes_lists_and_infinite_speed_and_refuses_bad_settings_at_once() -> None:
    with blis_sim.server(MODEL, speed=math.inf, served_model_name=["a", "b,c"], max_num_seqs=4) as running:
        assert running.count("vllm:num_requests_running", model_name="a") == 0
    with pytest.raises(blis_sim.OptionError, match="--speed must be"), blis_sim.server(MODEL, speed=-1):
        pass


def test_a_missing_library_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(blis_sim.MissingExtraError, match=re.escape(f"pandas is missing: {install_command('pandas')}")):
        Table({"a": [1]}).to_pandas()


@pytest.mark.parametrize("name", KINDS)
def test_the_signature_of_a_function_has_the_settings_of_its_command(name: str) -> None:
    row = COMMANDS[name]
    settings = options_of(getattr(import_module(row.module), row.options))
    shown = {each.name for each in settings if not each.option.hidden and not each.option.positional}
    function = getattr(blis_sim, "server" if name == "serve" else name)
    assert shown - set(OMITTED_SETTINGS) - set(inspect.signature(function).parameters) == set()


def test_stable_names_are_there_and_no_others() -> None:
    assert blis_sim.__all__ == [
        "BlisError", "CalibrationResult", "Coefficient", "FitResult", "Latency", "MetricError", "MissingExtraError",
        "OptionError", "PlanResult", "PlannedDeployment", "RunResult", "Server", "ServerError", "SweepPoint",
        "SweepResult", "Table", "__version__", "calibrate", "fit", "plan", "replay", "run", "server", "sweep",
    ]  # fmt: skip
    for name in blis_sim.__all__:
        assert getattr(blis_sim, name) is not None
    assert (Path(str(blis_sim.__file__)).parent / "py.typed").is_file()


def test_the_second_argument_of_a_calibration_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a file as sim_results, got"):
        blis_sim.calibrate(tmp_path / "recorded.yaml", "results.json")  # type: ignore[arg-type]
