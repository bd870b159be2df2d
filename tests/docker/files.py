"""The files in docker/, parsed."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from blis_sim.options import options_from
from blis_sim.options.command_line import parse_command_line
from mockserve.command import rewritten
from mockserve.options.serve import ServeOptions

PROJECT = Path(__file__).resolve().parents[2]
DOCKER = PROJECT / "docker"
DASHBOARDS = PROJECT / "deploy" / "helm" / "blis-mockserve" / "files"
MANIFESTS = sorted((DOCKER / "kubernetes").glob("*.yaml"))


def load(path: Path) -> list[Any]:
    """The documents of a YAML or JSON file."""
    text = path.read_text(encoding="utf-8")
    return [json.loads(text)] if path.suffix == ".json" else list(yaml.safe_load_all(text))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile."""

    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        """The JSON list that the instruction is, or ends with."""
        words: list[str] = json.loads(self.rest[self.rest.index("[") :])
        return words


def dockerfile() -> list[Instruction]:
    """The instructions of the Dockerfile in order, with continued lines joined."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [Instruction(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def instruction(name: str) -> Instruction:
    """The last one of that name, which is the one that counts."""
    return [each for each in dockerfile() if each.name == name][-1]


def objects(kind: str) -> list[Any]:
    """Every Kubernetes object of that kind in all manifests."""
    return [each for path in MANIFESTS for each in load(path) if each.get("kind") == kind]


def pod_of(deployment: Any) -> Any:
    return deployment["spec"]["template"]["spec"]


def container_of(deployment: Any) -> Any:
    (container,) = pod_of(deployment)["containers"]
    return container


def compose_services() -> dict[str, Any]:
    (compose,) = load(DOCKER / "compose.yaml")
    services: dict[str, Any] = compose["services"]
    return services


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every list of arguments that the image gets somewhere, with where that is."""
    yield "Dockerfile", instruction("CMD").words
    yield "compose.yaml", compose_services()["mockserve"]["command"]
    for deployment in objects("Deployment"):
        yield deployment["metadata"]["name"], container_of(deployment)["args"]


def parsed(arguments: list[str]) -> ServeOptions:
    """Return the settings of a command line of `blis serve`. Raises the command's errors."""
    return options_from(ServeOptions, **parse_command_line(ServeOptions, rewritten(arguments)).values)


METRIC = re.compile(r"\b(?:vllm:\w+|blis_\w+|http_\w+)")


def expressions(dashboard: Any) -> Iterator[tuple[str, str]]:
    """Each query of a dashboard with the title of what asks it."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["definition"]
