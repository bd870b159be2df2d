"""The Helm chart, the Kustomize base with its components, and the action for GitHub."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.architecture.project import pyproject
from tests.docker.files import DOCKER, PROJECT, container_of, load, parsed, pod_of
from tests.ports import reserved_port

DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "helm" / "blis-mockserve"
KUSTOMIZE = DEPLOY / "kustomize"
ACTION = DEPLOY / "github-action" / "action.yml"
VERSION = pyproject()["project"]["version"]
KUBERNETES = "1.31"
OPERATORS = ("PodMonitor", "ServiceMonitor")
"""Kinds whose schemas are not those of Kubernetes but of the Prometheus operator."""


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def rendered(given: dict[str, Any]) -> list[Any]:
    """The objects that Helm makes of the chart with these values."""
    helm = pytest.importorskip("helm_python")
    files = helm.Chart.load(str(CHART)).render(given, name="test", namespace="default")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each is not None]


def check_objects(found: list[Any]) -> None:
    """Check objects against the schemas of Kubernetes, and pods for rights that they must not have."""
    validator = pytest.importorskip("kubernetes_validate")
    for each in found:
        if each["kind"] not in OPERATORS:
            validator.validate(each, KUBERNETES, strict=True)
    for deployment in (each for each in found if each["kind"] == "Deployment"):
        security = container_of(deployment)["securityContext"]
        assert pod_of(deployment)["securityContext"]["runAsNonRoot"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_values_fit_their_schema_and_others_do_not() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values(), schema)
    assert set(values()) <= set(schema["properties"])
    for wrong in ({"replicas": "2"}, {"flags": "--speed max"}, {"modle": "x"}, {"podMonitor": {"interval": "soon"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values(), **wrong}, schema)


def test_templates_name_values_that_exist() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").iterdir())
    names = re.findall(r"\.Values\.([\w.]+)", text)
    assert {"model", "flags", "autoscaling.enabled"} <= set(names)
    for name in names:
        found: Any = values()
        for part in name.split("."):
            found = found[part]


def test_the_flags_of_the_chart_are_those_of_blis_serve() -> None:
    assert parsed([values()["model"], *values()["flags"]]).accepted_without_effect == ()


def test_helm_makes_objects_that_kubernetes_takes() -> None:
    everything = {
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "serviceMonitor": {"enabled": True},
        "autoscaling": {"enabled": True},
        "apiKeySecret": "vllm",
        "modelConfigMap": {"name": "mine", "configMap": "mine-files"},
        "imagePullSecrets": [{"name": "registry"}],
        "podAnnotations": {"team": "a"},
    }
    few = rendered({})
    assert sorted(each["kind"] for each in few) == ["Deployment", "Service"]
    check_objects(few)
    found = rendered(everything)
    assert sorted(each["kind"] for each in found) == [
        "Deployment", "HorizontalPodAutoscaler", "PodMonitor", "Service", "ServiceMonitor",
    ]  # fmt: skip
    check_objects(found)
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    assert "replicas" not in deployment["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for each in found:
        selector = each["spec"].get("selector", {})
        assert set(selector.get("matchLabels", selector).items()) <= set(labels.items()), each["kind"]


def test_the_base_is_the_manifest_of_docker() -> None:
    (*base,) = (load(KUSTOMIZE / "base" / name)[0] for name in ("deployment.yaml", "service.yaml"))
    assert base == load(DOCKER / "kubernetes" / "mockserve.yaml")
    component = KUSTOMIZE / "components" / "autoscaling" / "autoscaler.yaml"
    assert load(component) == load(DOCKER / "kubernetes" / "autoscaling.yaml")


def test_kustomizations_name_files_that_exist() -> None:
    for path in KUSTOMIZE.rglob("kustomization.yaml"):
        (kustomization,) = load(path)
        named = [*kustomization.get("resources", ()), *kustomization.get("components", ())]
        assert named
        assert [each for each in named if not (path.parent / each).exists()] == []
        assert [each["newTag"] for each in kustomization.get("images", ())] in ([], [VERSION])


def test_the_overlay_makes_objects_that_kubernetes_takes() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed here")
    words = ["kubectl", "kustomize", str(KUSTOMIZE / "example")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = list(yaml.safe_load_all(done.stdout))
    assert sorted(each["kind"] for each in found) == ["Deployment", "HorizontalPodAutoscaler", "PodMonitor", "Service"]
    assert {each["metadata"]["namespace"] for each in found} == {"blis"}
    check_objects(found)


def steps_of_action() -> list[dict[str, Any]]:
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    steps: list[dict[str, Any]] = action["runs"]["steps"]
    assert all(step["shell"] == "bash" for step in steps)
    return steps


def test_the_inputs_of_the_action_reach_its_scripts_by_the_environment_alone() -> None:
    """An input within a script would be run as part of it."""
    text = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    used = {
        name
        for step in steps_of_action()
        for value in step["env"].values()
        for name in re.findall(r"inputs\.([\w-]+)", value)
    }
    assert used == set(text["inputs"])
    assert [step for step in steps_of_action() if "${{" in step["run"]] == []
    assert parsed([text["inputs"]["model"]["default"], *text["inputs"]["flags"]["default"].split()]).speed > 1


@pytest.mark.slow
def test_the_action_starts_a_server_and_offers_its_address(tmp_path: Path, blis_on_path: dict[str, str]) -> None:
    (script,) = [step["run"] for step in steps_of_action() if step.get("id") == "start"]
    output = tmp_path / "output"
    output.touch()
    with reserved_port() as port:
        settings = {"MODEL": "qwen/qwen3-14b", "FLAGS": "--speed max", "PORT": str(port)}
        places = {"RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(output)}
        once = f"trap 'kill $server 2> /dev/null' EXIT\n{script}"
        words = ["bash", "-e", "-c", once]
        subprocess.run(words, env={**blis_on_path, **settings, **places}, check=True, timeout=120)
    assert output.read_text().splitlines()[0] == f"url=http://127.0.0.1:{port}"
    assert "serving qwen/qwen3-14b" in (tmp_path / "blis-serve.log").read_text()


@pytest.fixture
def blis_on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `blis` is the one of this project."""
    program = tmp_path / "bin" / "blis"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m blis_sim.cli "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(PROJECT)}
