"""One schedule sent by the nodes of a real Ray cluster: equal requests and one recording, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from blis_sim.options import BlisError
from observe.command import run
from observe.options import ObserveOptions
from tests.children import descendants, words_of
from tests.frugal_ray import FRUGAL
from tests.observe.conftest import Holding
from tests.observe.run_in_process import code_for, started
from tests.observe.test_processes import (
    SETTINGS,
    check_complete,
    check_sent_again,
    options,
    wait_for_rows,
    wait_until_gone,
)
from tests.observe.workloads.test_conversations import talks
from tests.patience import PATIENCE_S
from traces import read_trace

Observe: TypeAlias = Callable[..., Any]
Seen: TypeAlias = Callable[[], list[dict[str, Any]]]

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray")]

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)

TWO_NODES = """
import subprocess, sys, time
import ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
a_day_ahead = ["unshare", "--time", "--monotonic", "86400", "--fork", "--kill-child"]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
try:  # as a machine whose clock reads something else, where one may have that
    subprocess.run([*a_day_ahead, "true"], check=True, **quiet)
except (OSError, subprocess.CalledProcessError):
    a_day_ahead = []
start = ["-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", "--address", cluster.address]
other = subprocess.Popen([*a_day_ahead, sys.executable, *start], **quiet)
ray.init(cluster.address, log_to_driver=False)
while len(ray.nodes()) < 2:
    time.sleep(0.1)
ray.shutdown()
print("at", cluster.address, flush=True)
sys.stdin.read()
other.terminate()
cluster.shutdown()
"""


@dataclass(frozen=True, slots=True)
class RunningCluster:
    address: str
    pid: int

    def senders(self) -> list[int]:
        """The processes that send, on all of its nodes."""
        return [pid for pid in descendants(self.pid) if b"ray::RemoteSender" in words_of(pid)]

    def options(self, server_url: str, folder: Path, **more: Any) -> ObserveOptions:
        return options(server_url, folder, **{"processes": None, "ray": True, "ray_address": self.address, **more})


@pytest.fixture(scope="module")
def cluster() -> Iterator[RunningCluster]:
    """Two nodes on this machine, with two CPUs and one; their monotonic clocks differ where that can be had."""
    code = [sys.executable, "-c", TWO_NODES]
    pipe = subprocess.PIPE
    quiet = subprocess.DEVNULL
    environment = {**os.environ, **FRUGAL}
    with subprocess.Popen(code, stdin=pipe, stdout=pipe, stderr=quiet, text=True, env=environment) as process:
        assert process.stdout is not None
        address = next(line for line in process.stdout if line.startswith("at ")).split()[1]
        yield RunningCluster(address, process.pid)


def test_every_node_sends_its_share_of_what_one_process_sends(
    cluster: RunningCluster, observe: Observe, seen: Seen
) -> None:
    given = {**SETTINGS, "num_requests": 40, "warmup_requests": 4}
    sent = []
    for name, more in (("alone", {}), ("nodes", {"ray": True, "ray_address": cluster.address})):
        run = observe(**given, **more, output=name)
        assert (run.code, run.summary["completed"], run.summary["not_sent"]) == (0, 36, 0)
        by_id = {row.x_request_id: row for row in run.trace.rows}
        bodies = {each["headers"].get("x-request-id"): each for each in seen()}
        sent.append({by_id[x].request_id: (by_id[x].arrival_time_us, bodies[x]["body"]) for x in by_id})
        for row in by_id.values():
            came_us = bodies[row.x_request_id]["came_us"]
            assert row.send_time_us - 100_000 <= came_us <= row.first_chunk_time_us + 100_000
        assert ("sending from 2 processes on 2 Ray nodes" in run.messages) == (name == "nodes")
        assert run.summary["output_tokens"] == 36 * 4
        latest = max((row.last_chunk_time_us - row.send_time_us) / 1000 for row in by_id.values())
        assert run.summary["e2e_ms"]["max"] == pytest.approx(latest, abs=0.002)
    assert sent[0] == sent[1]


def test_when_the_run_is_killed_senders_stop_and_resuming_sends_the_rest(
    cluster: RunningCluster,
    server_url: str,
    seen: Seen,
    holding: Holding,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    holding.after(20)
    with started(cluster.options(server_url, tmp_path, processes=3)) as process:
        wait_for_rows(tmp_path / "out.csv", 15)
        senders = cluster.senders()
        process.kill()
    assert len(senders) == 3
    wait_until_gone(senders)
    holding.release()
    before = {row.request_id: row.x_request_id for row in read_trace(tmp_path / "out.yaml").rows}
    assert len(before) >= 15
    seen()
    assert run(cluster.options(server_url, tmp_path, resume=True)) == 0
    check_complete(tmp_path)
    assert json.loads(capsys.readouterr().out)["recorded_earlier"] == len(before)
    check_sent_again(tmp_path, seen(), before)


def test_an_interrupt_writes_all_there_is(cluster: RunningCluster, server_url: str, tmp_path: Path) -> None:
    with started(cluster.options(server_url, tmp_path, num_requests=5000, model="ok-50-20")) as process:
        wait_for_rows(tmp_path / "out.csv", 20)
        process.send_signal(signal.SIGINT)
        printed, messages = process.communicate(timeout=PATIENCE_S)
    summary = json.loads(printed)
    rows = read_trace(tmp_path / "out.yaml").rows
    assert process.returncode == 130
    assert len([row for row in rows if row.status == "ok"]) == summary["completed"] >= 20
    assert len([row for row in rows if row.status != "ok"]) == summary["failed"].get("cancelled", 0)
    assert summary["not_sent"] == 5000 - len(rows)
    assert "interrupted by SIGINT" in messages
    assert "Traceback" not in messages


def test_a_sender_that_dies_is_named_with_what_it_owes(
    cluster: RunningCluster, server_url: str, holding: Holding, tmp_path: Path
) -> None:
    holding.after(20)
    with started(cluster.options(server_url, tmp_path, num_requests=600)) as process:
        wait_for_rows(tmp_path / "out.csv", 15)
        os.kill(cluster.senders()[0], signal.SIGKILL)
        printed, messages = process.communicate(timeout=PATIENCE_S)
    rows = read_trace(tmp_path / "out.yaml").rows
    assert process.returncode == 1
    assert "has died: " in messages
    assert "not sent; --resume sends what has no row" in messages
    assert "Traceback" not in messages
    assert len([row for row in rows if row.status == "ok"]) == json.loads(printed)["completed"] >= 15
    assert 0 < json.loads(printed)["not_sent"] <= 600 - len(rows)


def test_without_an_address_a_cluster_is_started_for_the_run_and_ended_by_ctrl_c(
    server_url: str, tmp_path: Path
) -> None:
    code = code_for(options(server_url, tmp_path, ray=True, num_requests=5000))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, start_new_session=True,
        env={**os.environ, **FRUGAL},
    ) as process:  # fmt: skip
        wait_for_rows(tmp_path / "out.csv", 20)
        its_cluster = list(descendants(process.pid))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        printed, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert json.loads(printed)["not_sent"] == 5000 - len(read_trace(tmp_path / "out.yaml").rows)
    assert "sending from 2 processes on 1 Ray nodes" in messages
    assert "Traceback" not in messages
    wait_until_gone(its_cluster)


def test_an_impossible_run_is_refused_in_one_line(
    cluster: RunningCluster, server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BlisError, match="--processes 4: the Ray cluster has 3 CPUs, one per sender"):
        run(cluster.options(server_url, tmp_path, processes=4))
    with pytest.raises(BlisError, match=r"--ray-address 127\.0\.0\.1:9: connection refused"):
        run(options(server_url, tmp_path, ray=True, ray_address="127.0.0.1:9"))
    capsys.readouterr()
    assert run(cluster.options("http://127.0.0.1:9", tmp_path)) == 1
    assert capsys.readouterr().err == "blis observe: error: cannot reach http://127.0.0.1:9: connection refused\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_concurrency": 5}, "--ray and --max-concurrency exclude each other"),
        ({"trace_data": "x.csv.gz", "trace_header": "x.yaml"}, "cannot be gzipped, got x.csv.gz"),
    ],
)
def test_options_that_several_senders_cannot_share_are_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BlisError, match=message):
        options("http://localhost", tmp_path, ray=True, **given)


def test_conversations_are_refused(server_url: str, tmp_path: Path) -> None:
    made = ObserveOptions(url=server_url, workload_spec=talks(tmp_path), output=str(tmp_path / "out"), ray=True)
    with pytest.raises(BlisError, match="--ray needs requests with times of their own"):
        run(made)
