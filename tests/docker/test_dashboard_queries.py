"""The Grafana dashboard and the autoscaling rule read metrics, and labels of them, that vLLM has."""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.docker.files import DASHBOARDS, DOCKER, METRIC, expressions, load
from tests.wire.plain_http import call, complete
from tests.wire.serving import running_server

(DASHBOARD,) = load(DASHBOARDS / "vllm.json")
QUERIES = list(expressions(DASHBOARD))
ADDED_BY_PROMETHEUS = {"instance", "job", "le"}

Labels = dict[str, set[str]]
"""The labels of each sample on a metrics page."""


def labels_of(page: str) -> Labels:
    found: Labels = defaultdict(set)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] |= set(sample.labels)
    return found


@pytest.fixture(scope="module")
def mocked() -> Iterator[Labels]:
    """Return the metrics of a mock server after a request."""
    with running_server() as server:
        complete(server)
        yield labels_of(call(server, "GET", "/metrics").body.decode())


def unknown(query: str, known: Labels) -> list[str]:
    """Metrics and labels of a query that are not among those known."""
    metrics = METRIC.findall(query)
    missing = [name for name in metrics if name not in known]
    allowed = set().union(*(known[name] for name in metrics if name in known)) | ADDED_BY_PROMETHEUS
    used = set(re.findall(r"(\w+)=~?\"", query))
    used |= {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
    return missing + sorted(used - allowed)


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_every_query_reads_what_the_mock_server_exports(title: str, query: str, mocked: Labels) -> None:
    assert METRIC.search(query), title
    assert unknown(query, mocked) == []


@pytest.mark.parametrize(("title", "query"), [each for each in QUERIES if "blis_" not in each[1]])
def test_every_query_reads_what_vllm_was_seen_to_export(title: str, query: str, reference: Path) -> None:
    page = (reference / "golden/vllm/metrics1.txt").read_text(encoding="utf-8")
    assert unknown(query, labels_of(page)) == [], title


def test_only_the_panel_of_the_lag_is_for_the_mock_alone() -> None:
    assert {title for title, query in QUERIES if "blis_" in query} == {"Lag of the mock server"}


def test_unknown_metrics_and_labels_would_be_found(mocked: Labels) -> None:
    query = 'sum by (engine, colour) (vllm:num_requests_running{shape="x"}) + vllm:nothing'
    assert unknown(query, mocked) == ["vllm:nothing", "colour", "shape"]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_every_parenthesis_is_closed(title: str, query: str) -> None:
    open_ones: list[str] = []
    for character in re.sub(r'"[^"]*"', "", query):
        if character in "({[":
            open_ones.append({"(": ")", "{": "}", "[": "]"}[character])
        elif character in ")}]":
            assert open_ones.pop() == character, title
    assert open_ones == []


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken = [cell for panel in panels for cell in cells(panel["gridPos"])]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24


def cells(place: dict[str, Any]) -> list[tuple[int, int]]:
    return [(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])]


def test_queries_use_the_variables_that_the_dashboard_has() -> None:
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]} | {"__rate_interval"}
    assert {name for _, query in QUERIES for name in re.findall(r"\$(\w+)", query)} <= variables


def test_the_autoscaling_rule_reads_the_queue_depth(mocked: Labels) -> None:
    (values,) = load(DOCKER / "kubernetes/prometheus-adapter-values.yaml")
    (rule,) = values["rules"]["custom"]
    assert METRIC.findall(rule["seriesQuery"]) == ["vllm:num_requests_waiting"]
    assert "vllm:num_requests_waiting" in mocked
