"""The modules that a server of one engine loads."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mockserve.routes.table import ROUTES

PROJECT = Path(__file__).resolve().parents[2]
STARTED = """
import sys
import mockserve.command, mockserve.server
from mockserve.routes.table import ROUTES
responders = [each.responder for each in ROUTES]
print(*sys.modules)
"""


@pytest.mark.slow
def test_server_of_one_engine_loads_no_gateway_no_autoscaler_and_no_recorded_replies() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=PROJECT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"mockserve.listening", "mockserve.routes.states", "mockserve.http.application"} <= loaded
    cluster = "blis_sim.engine.cluster"
    unused = {f"{cluster}.{name}" for name in ("assembly", "autoscaler", "gateway", "policy_file")}
    unused |= {"blis_sim.wings.playback.recordings", "blis_sim.wings.playback.playing", "traces"}
    assert all(find_spec(each) for each in unused)
    assert loaded & unused == set()


@pytest.mark.slow
def test_bodies_of_rare_routes_are_loaded_by_their_first_request() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], cwd=PROJECT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    protocol = "mockserve.protocol"
    rare = {f"{protocol}.{name}" for name in ("anthropic", "generate", "responses", "weights")}
    assert all(find_spec(each) for each in rare)
    assert f"{protocol}.completions" in loaded
    assert loaded & rare == set()


def test_each_route_has_a_handler_of_its_own_name() -> None:
    assert all(route.handler.__name__ == route.place.partition(".")[2] for route in ROUTES)
    assert len({route.handler.__name__ for route in ROUTES}) == len({route.place for route in ROUTES})
