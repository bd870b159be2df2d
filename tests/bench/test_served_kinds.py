"""Servers of many kinds, observed and replayed without a flag: the recording says what the server was."""

import json
import urllib.request
from pathlib import Path

import pytest

import blis_sim
from blis_sim.cli.main import run
from tests.patience import attempts
from traces.server_settings import engine_settings

KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "pipeline stages": ("qwen/qwen3-14b", {"pp": 2}),
    "expert parallelism": ("qwen/qwen3-30b-a3b", {"dp": 2, "enable_expert_parallel": True}),
    "instances": ("qwen/qwen3-14b", {"num_instances": 3, "routing_policy": "least-loaded"}),
}
"""Further kinds, with the bounds of the workshop's command, are in `tests/workshop/test_served_kinds.py`."""


LOAD = [  # milliseconds of a busy machine are a small share of what these take
    "--rate",
    "24",
    "--num-requests",
    "24",
    "--prompt-tokens-stdev",
    "200",
    "--output-tokens",
    "48",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_of_any_kind_replays_as_it_was(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, settings = KINDS[kind]
    monkeypatch.chdir(tmp_path)
    with blis_sim.server(model, **settings) as server:  # type: ignore[arg-type]
        with urllib.request.urlopen(f"{server.url}/blis/settings") as reply:
            published = json.load(reply)["engine_settings"]
        for number, _ in enumerate(attempts()):
            assert run(["observe", "--url", server.url, *LOAD, "--seed", str(number), "-o", "served"]) == 0
            errors = blis_sim.calibrate("served.yaml").metrics
            if errors["ttft"].mape < 0.25 and errors["e2e"].mape < 0.05:
                break
    assert settings.items() <= published.items()
    taken = engine_settings(Path("served.yaml"))
    assert published.items() <= taken.items()
