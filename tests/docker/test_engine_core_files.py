"""The compose file and the manifest with vLLM's own frontend: both sides meet at one address with one model."""

from typing import Any

import pytest

from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from blis_sim.wings.engine_core.command import rewritten
from blis_sim.wings.engine_core.options import EngineCoreOptions
from tests.architecture.project import pyproject
from tests.docker.files import DOCKER, load, pod_of

FOLDER = DOCKER / "engine-core"
VERSION = pyproject()["project"]["version"]


def sides() -> list[Any]:
    """The names, images, programs and arguments of frontend and engine in each file."""
    (compose,) = load(FOLDER / "compose.yaml")
    deployment, _ = load(FOLDER / "kubernetes.yaml")
    services = [{"name": name, **each} for name, each in compose["services"].items()]
    containers = [
        {**each, "entrypoint": each.get("command"), "command": each["args"]}
        for each in pod_of(deployment)["containers"]
    ]
    return [pytest.param(services, id="compose"), pytest.param(containers, id="kubernetes")]


@pytest.mark.parametrize("parts", sides())
def test_frontend_and_engine_have_one_model_and_meet_at_one_address(parts: list[dict[str, Any]]) -> None:
    frontend, engine = parts
    assert (frontend["name"], engine["name"]) == ("frontend", "engine")
    assert "--data-parallel-size-local=0" in frontend["command"]
    assert engine["entrypoint"] == ["blis", "engine-core"]
    assert engine["image"] == f"blis-engine-core:{VERSION}"
    options = options_from(
        EngineCoreOptions, **parse_command_line(EngineCoreOptions, rewritten(engine["command"])).values
    )
    assert options.handshake_timeout_s == float("inf")
    address = f"tcp://{_value(frontend, 'address')}:{_value(frontend, 'rpc-port')}"
    assert options.handshake_address == address
    assert _value(frontend, "size") == str(options.deployment.dp)
    assert frontend["command"][0] == engine["command"][0] == options.deployment.model


def _value(frontend: dict[str, Any], name: str) -> str:
    (found,) = [each for each in frontend["command"] if each.startswith(f"--data-parallel-{name}=")]
    return str(found.partition("=")[2])
