"""`blis fleet`: an autoscaler, cold starts and kills under a load, and a verdict as exit code."""

import csv
import io
import json
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from blis_sim.cli.main import run as blis
from blis_sim.wings.fleet.command import _watched
from tests import fork_server
from tests.patience import PATIENCE_S

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
    failed = found["fleet"]["completed_share"]
    assert 0.9 < failed < 1, "the requests of the killed instance failed"


def test_an_instance_that_is_gone_dies_no_second_time(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--count", "2", "--autoscaler", hpa, "--cold-start", "5s", "--rate", "6", "--num-requests", "400")
    found = []
    for kills in ("10s:1", "10s:1,40s:1"):
        assert fleet(*words, "--kill", kills, "--min-completed", "0.9", "--json") == 0
        found.append(json.loads(capsys.readouterr().out)["fleet"])
    assert found[0] == found[1]


def test_an_instance_to_kill_that_there_is_not_is_named(hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    note = "blis fleet: --kill names instance 2: at the beginning there are 2, from 0 on\n"
    words = ("--count", "2", "--rate", "6", "--num-requests", "20", "--kill", "1s:2", "--min-completed", "0")
    assert fleet(*words) == 0
    assert note in capsys.readouterr().err
    assert fleet(*words, "--autoscaler", hpa) == 0
    assert "--kill names" not in capsys.readouterr().err, "the autoscaler may add it"


def test_a_kill_of_an_instance_that_was_killed_has_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--count", "2", "--rate", "6", "--num-requests", "60", "--min-completed", "0")
    assert fleet(*words, "--kill", "1s:1,3s:1") == 0
    warning = "warning: --kill at 3 s killed nothing: that instance had been killed, or none served"
    assert capsys.readouterr().err.count(warning) == 1


def test_a_kill_after_the_end_of_the_run_has_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("--count", "2", "--rate", "6", "--num-requests", "20", "--kill", "1h") == 0
    assert "warning: --kill at 3600 s killed nothing, the run had ended at " in capsys.readouterr().err


@pytest.mark.parametrize("zero", ["0", "0s", "00ms"])
def test_an_instance_may_be_gone_at_the_beginning(zero: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fleet("--count", "2", "--rate", "6", "--num-requests", "20", "--kill", zero, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["fleet"]["changes"] == [
        {"at_s": 0.0, "instance": 0, "state": "killed", "num_serving": 1, "num_loading": 0}
    ]


def test_rows_of_csv_have_the_verdict_and_a_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--count", "2", "--rate", "6", "--num-requests", "20", "--ttft-p99", "1ms")
    assert fleet(*words, "--format", "csv") == 1
    first, *instances = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["is_met"], first["completed_share"], first["ttft_p99_ms_is_met"]) == ("False", "1.0", "False")
    assert float(first["ttft_p99_ms"]) > float(first["ttft_p99_ms_limit"]) == 1
    assert {each["is_met"] for each in instances} == {""}
    program, command, *rest = shlex.split(first["command"])
    assert (program, command) == ("blis", "fleet")
    assert blis([command, *rest]) == 1


@pytest.mark.parametrize("value", ["9" * 400, "5e9999999", "nan", "-1", ""])
def test_a_quantity_that_is_no_number_is_refused(value: str, hpa: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(hpa)
    path.write_text(HPA.replace('"20"', f'"{value}"'))
    assert fleet("--autoscaler", hpa, "--rate", "6", "--num-requests", "5") == 2
    assert "averageValue: must be a quantity above 0 such as" in capsys.readouterr().err


def test_keys_in_a_manifest_are_in_no_output(
    hpa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    secrets = "metadata: {name: x, annotations: {token: planted-1}}\nenv: [{name: KEY, value: sk-plantedplanted0123}]\n"
    Path(hpa).write_text(f"{HPA}{secrets}---\nkind: Secret\ndata: {{key: planted-2}}\n")
    words = ("--autoscaler", "hpa.yaml", "--count", "2", "--rate", "6", "--num-requests", "20", "--html", "a.html")
    files = ("--results-path", "a.json", "--trace-output", "t", "--provenance", "p.json", "--json")
    assert fleet(*words, *files) == 0
    Path(hpa).write_text("kind: Secret\ndata: {key: planted-3}\n")
    assert fleet(*words) == 2
    shown = "".join(map(str, capfd.readouterr()))
    written = [each for each in tmp_path.rglob("*") if each.is_file() and each.name != "hpa.yaml"]
    assert len(written) > 3
    assert "planted" not in shown + "".join(each.read_text(errors="replace") for each in written)


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
        (("--kill", f"{'9' * 400}s"), f"--kill must be a duration such as 40ms or 1s, got '{'9' * 400}s'"),
        (("--kill", f"{'9' * 304}s"), f"--kill must be a duration such as 40ms or 1s, got '{'9' * 304}s'"),
        (("--autoscaler", "f", "--cold-start", "25h"), "--cold-start must be at most 86400 s, got '25h'"),
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


class Lives(BaseHTTPRequestHandler):
    """Answers about instances as a server does: one after the other of `answers`, the last of them again and again."""

    answers: ClassVar[list[dict[int, str]]] = []

    def do_GET(self) -> None:
        lives = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(200)
        self.end_headers()
        instances = [{"instance": number, "life": life} for number, life in lives.items()]
        self.wfile.write(json.dumps({"instances": instances}).encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_each_state_of_an_instance_is_seen_in_real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blis_sim.wings.fleet.command._POLL_S", 0.01)
    Lives.answers = [
        {0: "ready", 1: "ready"}, {0: "draining", 1: "ready", 2: "ready"}, {0: "drained", 1: "killed", 3: "loading"},
    ]  # fmt: skip
    with HTTPServer(("127.0.0.1", 0), Lives) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with _watched(f"http://127.0.0.1:{server.server_port}", 2) as changes:
            deadline_s = time.monotonic() + 10
            while len(changes) < 4 and time.monotonic() < deadline_s:
                time.sleep(0.01)
        server.shutdown()
    assert [change[1:] for change in changes] == [(0, "drained"), (2, "serving"), (1, "killed"), (3, "loading")]


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


@pytest.mark.slow
def test_in_real_time_a_flag_wins_over_the_file_in_server_and_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A value that is the default is in no command line of theirs, so they must not read the file again."""
    (tmp_path / "blis.toml").write_text("max_model_len = 10\n")
    monkeypatch.chdir(tmp_path)
    words = ("--count", "1", "--rate", "20", "--num-requests", "3", "--real-time", "--json")
    assert fleet(*words, "--max-model-len", "0") == 0
    assert json.loads(capsys.readouterr().out)["observed"]["completed"] == 3


def test_in_real_time_no_other_model_is_served(capsys: pytest.CaptureFixture[str]) -> None:
    assert blis(["fleet", "--model", "nobody/nothing", "--count", "2", "--real-time"]) == 2
    assert "model 'nobody/nothing' is not in the catalogue" in capsys.readouterr().err


@pytest.mark.slow
def test_sigterm_ends_server_and_load_of_a_fleet_in_real_time() -> None:
    words = [sys.executable, "-m", "blis_sim.cli", "fleet", *MODEL, "--count", "2", "--real-time"]
    with fork_server.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[4].rstrip(":")
        process.terminate()
        try:
            assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        finally:
            process.kill()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)
