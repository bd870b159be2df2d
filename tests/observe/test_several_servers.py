"""One load on several servers, shared out by a strategy, and its figures by server and by tenant."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import blis_sim
from blis_sim.options import BlisError, options_from
from blis_sim.testing import server
from observe.command import run
from observe.http import addressed_to, parse_server, post_bytes
from observe.options import ObserveOptions
from traces import read_trace
from traces.server_settings import located_settings

Observe = Callable[..., Any]
Seen = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def two_urls(server_url: str) -> tuple[str, str]:
    """One server under two names."""
    return server_url, server_url.replace("127.0.0.1", "localhost")


def hosts(requests: list[dict[str, Any]]) -> list[str]:
    """The names under which a run's own requests went to the server, in the order of sending."""
    sent = [each["headers"] for each in requests if "x-request-id" in each["headers"]]
    return [each["host"].split(":")[0] for each in sorted(sent, key=lambda headers: headers["x-request-start"])]


def test_servers_take_turns(observe: Observe, two_urls: tuple[str, str], seen: Seen) -> None:
    run = observe(url=",".join(two_urls), num_requests=10)
    assert run.code == 0
    assert hosts(seen()) == ["127.0.0.1", "localhost"] * 5
    assert {url: each["completed"] for url, each in run.summary["per_server"].items()} == dict.fromkeys(two_urls, 5)
    assert "by server" in run.messages


def test_a_request_made_for_one_server_fits_another() -> None:
    plain, deep = parse_server("http://one:8000"), parse_server("https://two/deep")
    for first, second in ((plain, deep), (deep, plain)):
        made = post_bytes(first, "/v1/completions", {"a": "b"}, b"\r\nhost: x\r\n")
        assert addressed_to(second, made, first) == post_bytes(
            second, "/v1/completions", {"a": "b"}, b"\r\nhost: x\r\n"
        )
        assert addressed_to(first, made, first) is made


def test_a_random_server_is_drawn_by_the_seed(observe: Observe, two_urls: tuple[str, str], seen: Seen) -> None:
    drawn = []
    for seed in (1, 1, 2):
        observe(url=",".join(two_urls), num_requests=20, url_strategy="random", seed=seed)
        drawn.append(hosts(seen()))
    assert drawn[0] == drawn[1] != drawn[2]
    assert min(Counter(drawn[0]).values()) >= 4


def test_the_least_busy_server_gets_the_next_request(observe: Observe, two_urls: tuple[str, str], seen: Seen) -> None:
    # None ends before the last is sent, so the numbers in flight are those of what was sent.
    observe(url=",".join(two_urls), num_requests=12, url_strategy="least-outstanding", model="ok-600-1", rate=100.0)
    sent = hosts(seen())
    for number in range(2, 13, 2):
        assert set(Counter(sent[:number]).values()) == {number // 2}


def test_several_processes_share_the_servers(observe: Observe, two_urls: tuple[str, str], seen: Seen) -> None:
    run = observe(url=",".join(two_urls), num_requests=12, processes=2)
    assert Counter(hosts(seen())) == {"127.0.0.1": 6, "localhost": 6}
    assert [each["completed"] for each in run.summary["per_server"].values()] == [6, 6]


def test_a_strategy_for_one_server_has_no_effect(observe: Observe) -> None:
    run = observe(url_strategy="random", num_requests=2)
    assert "--url-strategy has no effect without several servers in --url" in run.messages
    assert "per_server" not in run.summary


def test_a_server_that_cannot_be_reached_is_named(server_url: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"url": f"{server_url},http://127.0.0.1:1", "rate": 1.0, "num_requests": 1}
    assert run(ObserveOptions(**values, output=str(tmp_path / "x"))) == 1
    with pytest.raises(BlisError, match=r"^--url must be like http://host:port, got ''"):
        options_from(ObserveOptions, **(values | {"url": f"{server_url},"}), output="x")


def test_tenants_have_rows_of_their_own(observe: Observe, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    lengths = "{type: constant, params: {value: 5}}"
    clients = "".join(
        f"- {{id: {name}, tenant_id: {tenant}, rate_fraction: {share}, arrival: {{process: constant}},"
        f" input_distribution: {lengths}, output_distribution: {lengths}}}\n"
        for name, tenant, share in (("a", "acme", 3), ("b", "zeta", 1))
    )
    spec.write_text(f"version: '2'\nseed: 1\naggregate_rate: 100\nnum_requests: 20\nclients:\n{clients}")
    run = observe(workload_spec=str(spec), rate=None, num_requests=None)
    assert run.trace.header.workload_seed == 1
    rows = Counter(row.tenant_id for row in run.trace.rows)
    tenants = run.summary["per_tenant"]
    assert {name: each["completed"] for name, each in tenants.items()} == rows
    assert set(rows) == {"acme", "zeta"}
    assert tenants["acme"]["ttft_ms"]["p99"] > 0
    assert sum(each["output_throughput_tokens_per_s"] for each in tenants.values()) == pytest.approx(
        run.summary["output_throughput_tokens_per_s"], rel=1e-3
    )
    assert "by tenant" in run.messages


@pytest.mark.slow
def test_a_recording_of_equal_servers_replays_as_a_cluster_of_them(tmp_path: Path) -> None:
    words = ("qwen/qwen3-14b", "--hardware", "H100", "--speed", "0.5")
    with server(*words) as one, server(*words) as other:
        options: dict[str, Any] = {"rate": 10.0, "num_requests": 40, "prompt_tokens": 2000, "output_tokens": 16}
        prefix = str(tmp_path / "both")
        assert run(ObserveOptions(url=f"{one.url},{other.url}", output=prefix, **options)) == 0
    settings = located_settings(Path(f"{prefix}.yaml"))
    assert settings["num_instances"][0] == 2
    assert settings["routing_policy"][0] == "round-robin"
    assert len(read_trace(f"{prefix}.yaml").rows) == 40
    assert blis_sim.calibrate(f"{prefix}.yaml").metrics["e2e"].mape < 0.1
