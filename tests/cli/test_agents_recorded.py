"""Agents sent to a server, recorded and replayed: the hit rate of the simulated prefix cache is that of the server."""

import json
import shlex
from pathlib import Path

import pytest

from blis_sim.cli.main import run
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from tests.agent_traces import agents
from tests.docs.pages import PAGES, fences
from tests.replay.small_traces import written
from tests.wire.serving import running_server
from traces import read_trace

MODEL = "qwen/qwen3-14b"


@pytest.mark.slow
@pytest.mark.parametrize(("api", "mode"), [("chat", "closed-loop"), ("completions", "fixed")])
def test_a_replay_of_agents_has_the_hit_rate_of_the_server(
    api: str, mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Helpers also share what a chat template has between turns, which is less than a block for each."""
    rows, prefix = agents(2, question_tokens=500), str(tmp_path / "recorded")
    header = str(written(tmp_path, rows))
    latency = resolve(DeploymentOptions(model=MODEL, hardware="H100", tp=1)).latency
    with running_server(latency, model=MODEL, speed=1.0) as server:
        asked = ["--url", server.url, "--trace", header, "--session-mode", mode, "--api-format", api, "-o", prefix]
        assert run(["observe", *asked, "--scrape-metrics"]) == 0
    recorded = read_trace(f"{prefix}.yaml")
    assert {row.status for row in recorded.rows} == {"ok"}
    assert len(recorded.rows) == len(rows)
    results, metrics = tmp_path / "results.json", tmp_path / "metrics.json"
    asked = [f"{prefix}.yaml", "--model", MODEL, "--hardware", "H100", "--tp", "1", "--session-mode", mode]
    assert run(["replay", *asked, "--results-path", str(results), "--metrics-path", str(metrics)]) == 0
    capsys.readouterr()
    assert len(json.loads(results.read_text())) == len(rows)
    assert recorded.header.observed_kv_metrics is not None
    observed = recorded.header.observed_kv_metrics["hit_rate"]
    assert observed > 0.25
    assert json.loads(metrics.read_text())["cache_hit_rate"] == pytest.approx(observed, abs=0.02)


def test_the_commands_of_the_page_record_and_replay_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (page,) = (each for each in PAGES if each.name == "agents.md")
    marked = [fence for fence in fences(page) if fence.executed_by is not None]
    monkeypatch.chdir(tmp_path)
    written(tmp_path, agents(1)).rename("agent.yaml")
    Path("trace.csv").rename("agent.csv")
    latency = resolve(DeploymentOptions(model=MODEL, hardware="H100", tp=1)).latency
    with running_server(latency, model=MODEL, speed=20.0) as server:
        for command in marked[0].commands:
            words = shlex.split(command.text.replace("http://localhost:8000", server.url))
            assert run([*words[1:], *(["--model", MODEL] if words[1] == "replay" else [])]) == 0
    assert len(read_trace("recorded.yaml").rows) == len(agents(1))


SPEC = """
version: "2"
seed: 3
aggregate_rate: 2
num_requests: 12
clients:
  - id: coder
    rate_fraction: 1
    prefix_group: instructions
    prefix_length: 300
    streaming: true
    arrival: {process: constant}
    input_distribution: {type: gaussian, params: {mean: 60, std_dev: 20, min: 20, max: 120}}
    output_distribution: {type: gaussian, params: {mean: 15, std_dev: 5, min: 4, max: 30}}
    agent:
      turns_distribution: {type: constant, params: {value: 3}}
      helpers_distribution: {type: constant, params: {value: 2}}
      tool_time_ms_distribution: {type: constant, params: {value: 40}}
"""


def test_agents_of_a_workload_spec_are_simulated_as_they_are_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two agents of seven requests each; both ways have the same graph, and prefix caches that are as lucky."""
    spec, prefix, ran = tmp_path / "agents.yaml", str(tmp_path / "recorded"), str(tmp_path / "ran")
    spec.write_text(SPEC)
    latency = resolve(DeploymentOptions(model=MODEL, hardware="H100", tp=1)).latency
    with running_server(latency, model=MODEL, speed=10.0) as server:
        asked = ["--url", server.url, "--workload-spec", str(spec), "-o", prefix, "--scrape-metrics"]
        assert run(["observe", *asked, "--api-format", "completions"]) == 0
    metrics, deployment = tmp_path / "metrics.json", ["--model", MODEL, "--hardware", "H100", "--tp", "1"]
    asked = ["--workload-spec", str(spec), "--metrics-path", str(metrics), "--trace-output", ran]
    assert run(["run", *asked, *deployment]) == 0
    capsys.readouterr()
    recorded = read_trace(f"{prefix}.yaml")
    graph = {row.request_id: (row.parents, row.context_of) for row in recorded.rows}
    assert graph == {row.request_id: (row.parents, row.context_of) for row in read_trace(f"{ran}.yaml").rows}
    assert len(graph) == 14
    assert {row.status for row in recorded.rows} == {"ok"}
    assert recorded.header.observed_kv_metrics is not None
    observed = recorded.header.observed_kv_metrics["hit_rate"]
    assert observed > 0.5
    assert json.loads(metrics.read_text())["cache_hit_rate"] == pytest.approx(observed, abs=0.02)
