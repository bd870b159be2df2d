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

from blis_sim.testing import server
from tests.architecture.project import pyproject
from tests.docker.files import DASHBOARDS, DOCKER, PROJECT, container_of, load, parsed, pod_of
from tests.docker.kserve_keys import faults
from tests.ports import reserved_port

DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "helm" / "blis-mockserve"
KUSTOMIZE = DEPLOY / "kustomize"
ACTION = DEPLOY / "github-action" / "action.yml"
VERSION = pyproject()["project"]["version"]
KUBERNETES = "1.31"
OF_PROMETHEUS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
"""Kinds of the Prometheus operator."""


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
        if each["kind"] in OF_PROMETHEUS:
            check_resource(each, "prometheus_operator.v1")
        elif each["kind"] != "InferencePool":  # whose published schema no package of an index has
            validator.validate(each, KUBERNETES, strict=True)
    for deployment in (each for each in found if each["kind"] == "Deployment"):
        security = container_of(deployment)["securityContext"]
        assert pod_of(deployment)["securityContext"]["runAsNonRoot"]
        assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
        assert security["capabilities"] == {"drop": ["ALL"]}


def check_resource(found: dict[str, Any], module: str) -> None:
    """Check an object against the model made of its kind's published schema, which forgets what it does not know."""
    models = pytest.importorskip(f"cloudcoil.models.{module}")
    read = getattr(models, found["kind"]).model_validate(found)
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True) == found


def test_a_wrong_key_of_a_resource_would_be_found() -> None:
    (scaled,) = load(DOCKER / "kubernetes" / "keda.yaml")
    check_resource(scaled, "keda.v1alpha1")
    scaled["spec"]["minReplicas"] = 1
    with pytest.raises(AssertionError):
        check_resource(scaled, "keda.v1alpha1")


def kserve_service() -> dict[str, Any]:
    (service,) = load(DOCKER / "kubernetes" / "kserve.yaml")
    found: dict[str, Any] = service
    return found


def test_the_service_of_kserve_has_keys_that_kserve_knows() -> None:
    service = kserve_service()
    assert list(faults(service)) == []
    predictor = service["spec"]["predictor"]
    of_kserve = ("minReplicas", "maxReplicas")
    pod = {"spec": {key: value for key, value in predictor.items() if key not in of_kserve}}
    whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"}, **pod}
    pytest.importorskip("kubernetes_validate").validate(whole, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"minReplica": 1}, "v1beta1_predictor_spec: unknown key minReplica"),
        ({"minReplicas": "1"}, "v1beta1_predictor_spec: minReplicas must be int, got '1'"),
        ({"containers": {}}, "v1beta1_predictor_spec: containers must be list[V1Container], got {}"),
    ],
)
def test_a_wrong_key_of_a_service_of_kserve_would_be_found(change: dict[str, Any], fault: str) -> None:
    service = kserve_service()
    service["spec"]["predictor"] |= change
    assert list(faults(service)) == [fault]


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


VARIANTS: dict[str, dict[str, Any]] = {
    "other port": {"port": 9000},
    "environment": {"env": [{"name": "BLIS_SEED", "value": "3"}], "apiKeySecret": "vllm"},
    "environment of a secret": {"envFrom": [{"secretRef": {"name": "tokens"}}]},
    "role of a pod": {"podLabels": {"llm-d.ai/role": "decode", "llm-d.ai/model": "qwen3-14b"}},
    "annotations": {"annotations": {"a/b": "c"}, "podAnnotations": {"prometheus.io/scrape": "true"}},
    "node port": {"service": {"type": "NodePort", "nodePort": 30080}},
    "load balancer": {"service": {"type": "LoadBalancer", "annotations": {"cloud/internal": "true"}}},
    "labels of the service": {"service": {"labels": {"team": "a"}}},
    "ingress": {"ingress": {"enabled": True}},
    "ingress with TLS": {"ingress": {"enabled": True, "host": "llm.example", "tlsSecret": "t", "className": "nginx"}},
    "own account": {"serviceAccount": {"create": True}},
    "account that exists": {"serviceAccount": {"name": "llm"}},
    "volumes": {
        "extraVolumes": [{"name": "traces", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "traces", "mountPath": "/traces"}],
    },
    "pod monitor": {"podMonitor": {"enabled": True}},
    "alerts": {"prometheusRule": {"enabled": True, "ttftSeconds": 2}},
    "dashboard": {"dashboard": {"enabled": True}},
    "pool of a gateway": {"inferencePool": {"enabled": True, "endpointPicker": "epp"}},
    "no replicas": {"replicas": 0},
    "autoscaling": {"autoscaling": {"enabled": True, "maxReplicas": 2}},
    "places": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_fits_the_schemas(name: str) -> None:
    jsonschema.validate(VARIANTS[name], {**json.loads((CHART / "values.schema.json").read_text()), "required": []})
    check_objects(rendered(VARIANTS[name]))


def objects_by_kind(given: dict[str, Any]) -> dict[str, Any]:
    return {each["kind"]: each for each in rendered(given)}


@pytest.mark.slow
def test_the_port_moves_what_points_to_it() -> None:
    found = objects_by_kind({"port": 9000, "inferencePool": {"enabled": True, "endpointPicker": "epp"}})
    container = container_of(found["Deployment"])
    assert container["args"][-2:] == ["--port", "9000"]
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]
    assert {container[each]["httpGet"]["port"] for each in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        "http"
    }
    assert found["Service"]["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]
    assert found["InferencePool"]["spec"]["targetPorts"] == [{"number": 9000}]


@pytest.mark.slow
def test_labels_of_pods_do_not_change_what_selects_them() -> None:
    found = objects_by_kind({"podLabels": {"llm-d.ai/role": "decode", "app.kubernetes.io/name": "other"}})
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert labels["llm-d.ai/role"] == "decode"
    assert set(found["Service"]["spec"]["selector"].items()) <= set(labels.items())


@pytest.mark.slow
def test_the_dashboard_and_the_alerts_name_series_that_the_server_has() -> None:
    found = objects_by_kind({"dashboard": {"enabled": True}, "prometheusRule": {"enabled": True}})
    dashboard = json.loads(found["ConfigMap"]["data"]["vllm.json"])
    assert dashboard == json.loads((DASHBOARDS / "vllm.json").read_text())
    rules = found["PrometheusRule"]["spec"]["groups"][0]["rules"]
    names = {name.removesuffix("_bucket") for rule in rules for name in re.findall(r"vllm:\w+", rule["expr"])}
    assert len(names) == len(rules) == 4
    with server("qwen3-14b", "--speed", "max") as running:
        for name in names:
            running.count(name if not name.endswith("seconds") else f"{name}_count")
    assert all('pod=~"test-blis-mockserve-.*"' in rule["expr"] for rule in rules)


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


def test_the_action_installs_the_repository_that_it_comes_from() -> None:
    """GitHub fetches the whole repository of an action at its tag, and names the folder of the action in it."""
    (script,) = [step["run"] for step in steps_of_action() if step.get("id") != "start"]
    (place,) = re.findall(r'"\$\{PACKAGE:-\$GITHUB_ACTION_PATH/([./]+)\}"', script)
    assert (ACTION.parent / place).resolve() == PROJECT
