"""The modules that a server of one engine loads."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
STARTED = """
import sys
import mockserve.command, mockserve.server
print(*sys.modules)
"""


@pytest.mark.slow
def test_server_of_one_engine_loads_no_gateway_no_autoscaler_and_no_recorded_replies() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=PROJECT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"mockserve.listening", "mockserve.routes.states", "mockserve.http.application"} <= loaded
    cluster = "blis_sim.engine.cluster"
    unused = {f"{cluster}.{name}" for name in ("assembly", "autoscaling.pipeline", "gateway.rules", "policy_file")}
    unused |= {"mockserve.playback.playback", "mockserve.http.playing", "traces"}
    assert loaded & unused == set()
