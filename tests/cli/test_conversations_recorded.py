"""Conversations with a server, recorded and replayed: the simulated prefix cache has the hit rate of the server."""

import json
from pathlib import Path

import pytest
import yaml

from blis_sim.cli.main import run
from blis_sim.engine.deployment import resolve
from blis_sim.engine.deployment_options import DeploymentOptions
from tests.wire.serving import running_server
from traces import read_trace

MODEL = "qwen/qwen3-14b"
NUM_ROUNDS = 3


def written(folder: Path, prefix_tokens: int) -> str:
    multi_turn = {"max_rounds": NUM_ROUNDS, "think_time_us": 20_000, "context_growth": "accumulate"}
    client = {
        "id": "c",
        "rate_fraction": 1,
        "arrival": {"process": "poisson"},
        "input_distribution": {"type": "gaussian", "params": {"mean": 90, "std_dev": 40, "min": 20, "max": 200}},
        "output_distribution": {"type": "gaussian", "params": {"mean": 25, "std_dev": 10, "min": 5, "max": 50}},
        "reasoning": {"multi_turn": multi_turn},
    }
    if prefix_tokens:
        client |= {"prefix_group": "system", "prefix_length": prefix_tokens}
    spec = {"version": "2", "seed": 3, "aggregate_rate": 60.0, "num_requests": 30, "clients": [client]}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "prefix_tokens", "reasoning_parser"),
    [("completions", 0, None), ("chat", 100, None), ("chat", 0, "qwen3"), ("responses", 0, None)],
)
def test_a_replay_of_a_closed_loop_has_every_round_and_the_hit_rate_of_the_server(
    api: str, prefix_tokens: int, reasoning_parser: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thoughts are not sent back, so then only the prompts before are found."""
    spec, prefix = written(tmp_path, prefix_tokens), str(tmp_path / "talks")
    latency = resolve(DeploymentOptions(model=MODEL, hardware="H100", tp=1)).latency
    with running_server(latency, model=MODEL, speed=1.0, reasoning_parser=reasoning_parser) as server:
        asked = ["--url", server.url, "--workload-spec", spec, "--api-format", api, "-o", prefix, "--scrape-metrics"]
        assert run(["observe", *asked]) == 0
    recorded = read_trace(f"{prefix}.yaml")
    rounds = [row.round_index for row in recorded.rows]
    assert {rounds.count(each) for each in range(NUM_ROUNDS)} == {len(rounds) // NUM_ROUNDS}
    results, metrics = tmp_path / "results.json", tmp_path / "metrics.json"
    files = ["--results-path", str(results), "--metrics-path", str(metrics)]
    assert run(["replay", f"{prefix}.yaml", "--model", MODEL, "--hardware", "H100", "--tp", "1", *files]) == 0
    capsys.readouterr()
    assert len(json.loads(results.read_text())) == len(recorded.rows)
    assert recorded.header.observed_kv_metrics is not None
    observed = recorded.header.observed_kv_metrics["hit_rate"]
    assert observed > 0.25
    assert json.loads(metrics.read_text())["cache_hit_rate"] == pytest.approx(observed, abs=0.02)
