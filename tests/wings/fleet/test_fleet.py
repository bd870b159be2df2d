"""`blis fleet`: an autoscaler, cold starts and kills under a load, and a verdict as exit code."""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from blis_sim.cli.main import run as blis

HPA = """
kind: HorizontalPodAutoscaler
spec:
  minReplicas: 1
  maxReplicas: 4
  metrics:
    - {type: Pods, pods: {metric: {name: vllm_num_requests_running}, target: {type: AverageValue, averageValue: "20"}}}
"""
MODEL = ("--model", "qwen/qwen3-14b", "--output-tokens", "200")


def fleet(*words: str) -> int:
    return blis(["fleet", *MODEL, *words])


@pytest.fixture
def hpa(tmp_path: Path) -> str:
    path = tmp_path / "hpa.yaml"
    path.write_text(HPA)
    return str(path)


def test_a_killed_instance_is_replaced_after_its_cold_start(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--count", "2", "--autoscaler", hpa, "--cold-start", "7s", "--kill", "10s:1", "--rate", "6")
    code = fleet(*words, "--num-requests", "400", "--min-completed", "0.9", "--ttft-p99", "1s", "--json")
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["fleet"]["is_met"]
    assert found["fleet"]["changes"][:3] == [
        {"at_s": 10.0, "instance": 1, "state": "killed", "num_serving": 1, "num_loading": 0},
        {"at_s": 10.0, "instance": 2, "state": "loading", "num_serving": 1, "num_loading": 1},
        {"at_s": 17.0, "instance": 2, "state": "serving", "num_serving": 2, "num_loading": 0},
    ]
    failed = next(each["found"] for each in found["fleet"]["checks"] if each["name"] == "completed_share")
    assert 0.9 < failed < 1, "the requests of the killed instance failed"


def test_an_instance_that_is_killed_twice_is_replaced_once(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--count", "2", "--autoscaler", hpa, "--cold-start", "1s", "--kill", "2s:0,3s:0", "--rate", "5")
    fleet(*words, "--num-requests", "50", "--json")
    changes = json.loads(capsys.readouterr().out)["fleet"]["changes"]
    assert [(each["instance"], each["state"]) for each in changes] == [(0, "killed"), (2, "loading"), (2, "serving")]


def test_a_kill_of_an_instance_that_there_never_is_has_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("--count", "2", "--kill", "1s:7", "--num-requests", "5") == 0
    assert "warning: --kill names instance 7, but instances are 0 to 1\n" in capsys.readouterr().err


def test_the_fleet_grows_with_its_load(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("--autoscaler", hpa, "--cold-start", "5s", "--stages", "2:30s,24:60s", "--json") == 0
    changes = json.loads(capsys.readouterr().out)["fleet"]["changes"]
    assert max(each["num_serving"] for each in changes) == 4
    assert {each["at_s"] % 15 for each in changes if each["state"] == "loading"} == {0}, "it decides each 15 s"


def test_a_missed_target_is_the_exit_code(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "--autoscaler",
        hpa,
        "--cold-start",
        "60s",
        "--rate",
        "60",
        "--num-requests",
        "1500",
        "--ttft-p99",
        "200ms",
    )
    assert fleet(*words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("MISSED: TTFT p99") and line.endswith("at most 200.0 ms asked") for line in lines)
    assert "changes of the fleet" in lines


def test_same_seed_same_rehearsal(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--autoscaler", hpa, "--cold-start", "5s", "--stages", "2:20s,24:30s", "--kill", "15s", "--json")
    texts = []
    for _ in range(2):
        fleet(*words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cold-start", "5s"), "--cold-start needs --autoscaler"),
        (("--kill", "5"), "--kill must be a duration such as 40ms or 1s, got '5'"),
        (("--kill", "5s:x"), "--kill must be TIME or TIME:NUMBER such as 60s:2, got '5s:x'"),
        (("--dp", "10001"), "--dp must be at most 10000, got 10001"),
        (
            ("--num-instances", "101", "--dp", "100"),
            "--num-instances times --dp must be at most 10000, got 10100",
        ),
        (("--count", "2", "--num-instances", "3"), "--count is --num-instances (3), got 2"),
        (
            ("--real-time", "--results-path", "r.json"),
            "--results-path has no meaning with --real-time: it writes a simulated run",
        ),
    ],
)
def test_settings_that_contradict_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet(*words) == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")


@pytest.mark.slow
def test_in_real_time_clients_meet_the_same_fleet(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--count", "2", "--autoscaler", hpa, "--cold-start", "3s", "--kill", "6s:1", "--rate", "4")
    code = fleet(*words, "--num-requests", "60", "--min-completed", "0.5", "--real-time", "--json")
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    changes = [(each["instance"], each["state"]) for each in found["fleet"]["changes"]]
    assert [each for each in changes if each[0] == 1] == [(1, "killed")]
    assert [each for each in changes if each[0] == 2][:2] == [(2, "loading"), (2, "serving")]
    assert found["observed"]["completed"] + sum(found["observed"]["failed"].values()) == 60


def test_in_real_time_no_other_model_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert blis(["fleet", "--model", "nobody/nothing", "--count", "2", "--real-time"]) == 2
    assert "model 'nobody/nothing' is not in the catalogue" in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_ends_server_and_load_of_a_fleet_in_real_time() -> None:
    words = [sys.executable, "-m", "blis_sim.cli", "fleet", *MODEL, "--count", "2", "--real-time"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[4].rstrip(":")
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)
