"""Every file in docker/ parses, and what it names exists: paths, flags, ports, images, objects."""

import re
from pathlib import Path
from typing import Any

import pytest

from blis_sim.engine.cluster.autoscaler_manifest import read_manifest
from blis_sim.options import OptionError
from mockserve.engines import deployment_of
from mockserve.options.engine_features import read_transfer_config
from mockserve.routes.table import ROUTES
from tests.architecture.project import PACKAGES, pyproject
from tests.docker.files import (
    DASHBOARDS,
    DOCKER,
    PROJECT,
    command_lines,
    compose_services,
    container_of,
    dockerfile,
    instruction,
    load,
    objects,
    parsed,
    pod_of,
)

DATA = sorted(path for path in DOCKER.rglob("*") if path.suffix in (".yaml", ".json"))
GET_PATHS = {route.path for route in ROUTES if route.method == "GET"}
IMAGE = f"blis-mockserve:{pyproject()['project']['version']}"
DEPLOYMENTS = objects("Deployment")


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.name)
def test_every_file_parses(path: Path) -> None:
    documents = load(path)
    assert documents
    assert all(isinstance(each, dict) for each in documents)


@pytest.mark.parametrize(("where", "arguments"), list(command_lines()))
def test_every_command_line_is_one_of_blis_serve(where: str, arguments: list[str]) -> None:
    options = parsed(arguments)
    assert options.network.port == int(instruction("EXPOSE").rest), where
    assert options.accepted_without_effect == (), where
    assert deployment_of(options).config.total_kv_blocks > 0


def test_a_flag_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(OptionError):
        parsed(["qwen/qwen3-14b", "--no-such-flag"])


def test_the_image_is_built_from_the_packages_and_nothing_else() -> None:
    lines = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert allowed == {*PACKAGES, "hatch_build.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert [name for name in allowed if not (PROJECT / name).exists()] == []


def test_everything_in_the_image_has_a_version_that_the_tests_passed_with() -> None:
    installs = [each.rest for each in dockerfile() if each.name == "RUN" and "pip install" in each.rest]
    assert len(installs) == 2
    assert all("/requirements/constraints.txt" in each for each in installs)
    pinned = {line.partition("==")[0].lower() for line in (PROJECT / "constraints.txt").read_text().splitlines()}
    project = pyproject()["project"]
    extras = instruction("ARG").rest.removeprefix("EXTRAS=").split(",")
    needed = [*project["dependencies"], *(each for name in extras for each in project["optional-dependencies"][name])]
    names = {re.split(r"[<>=!;\[ ]", each)[0].lower() for each in needed}
    assert {name for name in names if name not in pinned and name.replace("-", "_") not in pinned} == set()


def test_the_image_asks_for_extras_that_exist() -> None:
    extras = instruction("ARG").rest.removeprefix("EXTRAS=").split(",")
    assert set(extras) <= set(pyproject()["project"]["optional-dependencies"])


def test_the_image_runs_as_an_unprivileged_user() -> None:
    user = instruction("USER").rest
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    names = [each.name for each in dockerfile()]
    assert names.index("USER") < names.index("ENTRYPOINT")
    for deployment in DEPLOYMENTS:
        security = pod_of(deployment)["securityContext"]
        assert (security["runAsNonRoot"], f"{security['runAsUser']}:{security['runAsGroup']}") == (True, user)


def test_where_nothing_can_be_written_uploads_have_a_place() -> None:
    service = compose_services()["mockserve"]
    assert (service["read_only"], service["tmpfs"]) == (True, ["/tmp"])
    for deployment in DEPLOYMENTS:
        container = container_of(deployment)
        assert container["securityContext"]["readOnlyRootFilesystem"]
        (mount,), (volume,) = container["volumeMounts"], pod_of(deployment)["volumes"]
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/tmp")


def test_all_name_one_image_of_this_version() -> None:
    images = [container_of(each)["image"] for each in DEPLOYMENTS]
    assert {*images, compose_services()["mockserve"]["image"]} == {IMAGE}
    assert IMAGE in (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def test_compose_mounts_and_builds_from_what_exists() -> None:
    services = compose_services()
    build = services["mockserve"]["build"]
    assert (DOCKER / build["context"]).resolve() == PROJECT
    assert (PROJECT / build["dockerfile"]).is_file()
    mounts = [each.split(":") for service in services.values() for each in service.get("volumes", ())]
    assert len(mounts) == 3
    assert [source for source, *_ in mounts if not (DOCKER / source).exists()] == []


def test_the_configured_paths_inside_containers_are_mounted() -> None:
    services = compose_services()
    inside = {
        target for service in services.values() for _, target, _ in (v.split(":") for v in service.get("volumes", ()))
    }
    (config,) = (each for each in services["prometheus"]["command"] if each.startswith("--config.file="))
    assert config.partition("=")[2] in inside
    (provider,) = load(DOCKER / "grafana/provisioning/dashboards/vllm.yaml")
    (folder,) = (each["options"]["path"] for each in provider["providers"])
    assert folder in inside
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DASHBOARDS / Path(home).relative_to(folder)).is_file()


def test_services_find_each_other() -> None:
    services = compose_services()
    ports = {name: service["ports"][0].split(":")[1] for name, service in services.items()}
    (prometheus,) = load(DOCKER / "prometheus/prometheus.yaml")
    (job,) = prometheus["scrape_configs"]
    assert job["metrics_path"] in GET_PATHS
    (source,) = load(DOCKER / "grafana/provisioning/datasources/prometheus.yaml")
    asked = [target for each in job["static_configs"] for target in each["targets"]]
    asked.append(source["datasources"][0]["url"].removeprefix("http://"))
    assert asked == [f"{name}:{ports[name]}" for name in ("mockserve", "prometheus")]


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["metadata"]["name"])
def test_probes_and_scrapes_ask_for_routes_on_the_port_that_is_served(deployment: Any) -> None:
    container = container_of(deployment)
    (port,) = container["ports"]
    assert port["containerPort"] == parsed(container["args"]).network.port
    probes = {name: each for name, each in container.items() if name.endswith("Probe")}
    assert {"startupProbe", "readinessProbe"} <= set(probes)
    for probe in probes.values():
        assert probe["httpGet"]["path"] in GET_PATHS
        assert probe["httpGet"]["port"] == port["name"]
    notes = deployment["spec"]["template"]["metadata"]["annotations"]
    assert notes["prometheus.io/path"] in GET_PATHS
    assert notes["prometheus.io/port"] == str(port["containerPort"])


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["metadata"]["name"])
def test_a_pod_may_start_as_slowly_as_its_manifest_allows(deployment: Any) -> None:
    container = container_of(deployment)
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > parsed(container["args"]).process.startup_s + 10


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda each: each["metadata"]["name"])
def test_a_pod_that_stops_is_not_killed_before_its_replies_are_done(deployment: Any) -> None:
    grace_s = parsed(container_of(deployment)["args"]).network.shutdown_timeout
    assert pod_of(deployment)["terminationGracePeriodSeconds"] > grace_s
    probe = container_of(deployment).get("livenessProbe")
    assert probe is None or probe["periodSeconds"] * (probe["failureThreshold"] - 1) > grace_s


def test_compose_does_not_kill_a_server_before_its_replies_are_done() -> None:
    service = compose_services()["mockserve"]
    assert int(service["stop_grace_period"].removesuffix("s")) > parsed(service["command"]).network.shutdown_timeout


def test_each_service_selects_the_pods_of_one_deployment() -> None:
    labels = {each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"] for each in DEPLOYMENTS}
    for each in DEPLOYMENTS:
        assert each["spec"]["selector"]["matchLabels"] == labels[each["metadata"]["name"]]
    services = objects("Service")
    assert {each["metadata"]["name"]: each["spec"]["selector"] for each in services} == labels
    for each in services:
        assert [port["targetPort"] for port in each["spec"]["ports"]] == ["http"]


def test_the_autoscaler_scales_a_deployment_on_a_metric_that_the_adapter_offers() -> None:
    (scaler,) = objects("HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] in [each["metadata"]["name"] for each in DEPLOYMENTS]
    (values,) = load(DOCKER / "kubernetes/prometheus-adapter-values.yaml")
    offered = [rule["name"]["as"] for rule in values["rules"]["custom"]]
    assert [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]] == offered


def test_the_object_of_keda_scales_a_deployment_on_series_that_the_server_has() -> None:
    path = DOCKER / "kubernetes/keda.yaml"
    (scaled,) = load(path)
    assert scaled["spec"]["scaleTargetRef"]["name"] in [each["metadata"]["name"] for each in DEPLOYMENTS]
    found = read_manifest(path)
    assert (found.least, found.most, found.wakes) == (0, 8, True)


def test_the_service_of_kserve_is_the_deployment_on_its_port() -> None:
    (service,) = load(DOCKER / "kubernetes/kserve.yaml")
    predictor = service["spec"]["predictor"]
    (container,) = predictor["containers"]
    assert container["name"] == "kserve-container"
    port = container["ports"][0]["containerPort"]
    assert parsed(container["args"]).network.port == container["readinessProbe"]["httpGet"]["port"] == port
    ours = next(each for each in DEPLOYMENTS if each["metadata"]["name"] == "blis-mockserve")
    alike = ("image", "resources", "securityContext", "volumeMounts")
    assert {name: container[name] for name in alike} == {name: container_of(ours)[name] for name in alike}
    assert container["args"][:-2] == container_of(ours)["args"]


def test_prefill_hands_over_what_decode_takes() -> None:
    found = {each["metadata"]["name"]: parsed(container_of(each)["args"]) for each in DEPLOYMENTS}
    prefill, decode = (
        found["blis-prefill"].kv_sharing.kv_transfer_config,
        found["blis-decode"].kv_sharing.kv_transfer_config,
    )
    assert '"kv_producer"' in prefill
    assert '"kv_consumer"' in decode
    assert read_transfer_config(prefill).connector == read_transfer_config(decode).connector == "NixlConnector"
    environment = [variable["name"] for each in DEPLOYMENTS for variable in container_of(each).get("env", ())]
    assert set(environment) == {"VLLM_NIXL_SIDE_CHANNEL_HOST"}
    assert environment[0] in (PROJECT / "mockserve" / "options" / "environment.py").read_text(encoding="utf-8")


def test_the_page_about_deploying_names_files_that_exist() -> None:
    page = (PROJECT / "docs" / "deploy.md").read_text(encoding="utf-8")
    named = set(re.findall(r"docker/[\w./-]*\w", page))
    assert len(named) >= 6
    assert [name for name in named if not (PROJECT / name).exists()] == []
    assert IMAGE in page
