"""Metrics of KV blocks in CPU memory, under the names and labels of vLLM's OffloadingConnector."""

import json
import re
from collections.abc import Iterator

import pytest

from tests.patience import wait_until
from tests.wire.plain_http import call
from tests.wire.serving import TestServer, running_server

PREFIX = "vllm:kv_offload_"
LABELLED = ("total_bytes", "total_time", "size")
PLAIN = (
    "load_bytes", "load_time", "load_size", "store_bytes", "store_time", "store_size", "cpu_allocation_size",
    "lookup_sync_delay_seconds", "cpu_cache_usage_perc", "cpu_cache_write_usage_perc", "cpu_cache_read_usage_perc",
)  # fmt: skip
FURTHER = ("lookup_async_delay_seconds", "allocation_failure", "config_info")
BLOCK_BYTES = 16 * 163_840
"""Bytes of a block of qwen3-14b."""


@pytest.fixture
def server() -> Iterator[TestServer]:
    with running_server(total_kv_blocks=100, max_model_len=1024, kv_offloading_size=1.0) as running:
        yield running


def page(server: TestServer) -> str:
    return call(server, "GET", "/metrics").body.decode()


def value(server: TestServer, name: str, label: str = "") -> float:
    (found,) = re.findall(rf"^{PREFIX}{name}{{[^}}]*{label}[^}}]*}} (\S+)$", page(server), re.MULTILINE)
    return float(found)


def complete(server: TestServer, first: int) -> None:
    """Send a prompt of 1,000 tokens that begins with this one."""
    body = {"model": "m", "prompt": [first, *range(1, 1000)], "max_tokens": 2, "ignore_eos": True}
    assert call(server, "POST", "/v1/completions", body).status == 200


def test_families_are_there_before_the_first_step_and_most_samples_come_with_it(server: TestServer) -> None:
    before = page(server)
    families = set(re.findall(rf"^# TYPE {PREFIX}(\w+?)(?:_total)? (?:counter|gauge|histogram)$", before, re.MULTILINE))
    assert families >= {*LABELLED, *PLAIN, *FURTHER}
    sampled = set(re.findall(rf"^{PREFIX}(\w+?)(?:_total|_bucket|_count|_sum|_created)?{{", before, re.MULTILINE))
    assert sampled == set(LABELLED)
    for first in (7, 8, 7):
        complete(server, first)
    after = set(re.findall(rf"^{PREFIX}(\w+?)(?:_total|_bucket|_count|_sum|_created)?{{", page(server), re.MULTILINE))
    assert after == {*LABELLED, *PLAIN, "config_info"}


def test_bytes_and_sizes_are_those_of_the_blocks_that_moved(server: TestServer) -> None:
    for first in (7, 8, 7):  # the first comes back, for the second took its blocks
        complete(server, first)
    assert value(server, "store_bytes_total") == 2 * 62 * BLOCK_BYTES
    (num_tokens,) = re.findall(r"^vllm:external_prefix_cache_hits_total{.*} (\S+)$", page(server), re.MULTILINE)
    assert value(server, "load_bytes_total") == float(num_tokens) / 16 * BLOCK_BYTES > 0
    assert value(server, "load_size_count") == 1
    for name, label in (("load", "CPU_to_GPU"), ("store", "GPU_to_CPU")):
        assert value(server, "total_bytes_total", label) == value(server, f"{name}_bytes_total")
        assert value(server, "total_time_total", label) == value(server, f"{name}_time_total") > 0
        assert value(server, "size_count", label) == value(server, f"{name}_size_count")
    assert value(server, "cpu_cache_usage_perc") == 0
    assert value(server, "lookup_sync_delay_seconds_count") == 3
    blocks = 2**30 // BLOCK_BYTES
    info = f'cpu_blocks_per_chunk="1",cpu_kv_cache_size_bytes="{blocks * BLOCK_BYTES}"'
    assert info in page(server)
    assert f'cpu_num_chunks="{blocks}"' in page(server)


def test_a_server_without_cpu_memory_has_none_of_them() -> None:
    with running_server() as running:
        assert PREFIX not in page(running)


TIERING = PREFIX + "tiering_"
TRANSFER = json.dumps({
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 70 * BLOCK_BYTES,
        "secondary_tiers": [
            {"type": "fs", "root_dir": "/nowhere", "device_class": "cpu_dram"},
            {"type": "fs", "root_dir": "/nowhere", "device_class": "s3"},
        ],
    },
})  # fmt: skip


def tiering_samples(server: TestServer) -> dict[tuple[str, str], float]:
    """Sums, counts and values of the metrics of tiers, by name and tier."""
    rows = re.findall(rf'^{TIERING}(\w+){{.*?(?:tier="([^"]+)")?}} (\S+)$', page(server), re.MULTILINE)
    return {(name, tier): float(value) for name, tier, value in rows if not name.endswith(("_bucket", "_created"))}


def test_devices_behind_cpu_memory_have_metrics_by_tier() -> None:
    with running_server(total_kv_blocks=100, max_model_len=1024, kv_transfer_config=TRANSFER) as running:
        assert tiering_samples(running) == {}
        for first in (7, 8, 9, 7):  # what the last finds has left the GPU and CPU memory, so a device brings it
            complete(running, first)
            wait_until(
                lambda: not sum(number for (name, _), number in tiering_samples(running).items() if "jobs" in name)
            )
        found = tiering_samples(running)
        text = page(running)
    near, far = "1:fs", "2:fs"
    assert found["write_bytes_total", near] == 3 * 62 * BLOCK_BYTES
    num_read = found["chunk_hits_total", near]
    assert 0 < num_read <= 62
    assert found["read_bytes_total", near] == num_read * BLOCK_BYTES
    assert ("read_bytes_total", far) not in found
    assert found["read_time_total", near] > 0
    assert found["lookup_sync_delay_seconds_count", near] == found["chunk_queries_total", near]
    assert found["lookup_async_delay_seconds_count", near] == found["chunk_queries_total", near]
    assert {found["active_promotion_jobs", tier] for tier in (near, far)} == {0}
    assert (
        f'{TIERING}promotion_latency_seconds_count{{engine="0",model_name="m",result="success",tier="1:fs"}} 1.0'
        in text
    )
    assert re.search(r'kv_offload_config_info{cpu_blocks_per_chunk="",.*tier="2:fs"} 1.0', text)
    assert re.search(r'kv_offload_config_info{cpu_blocks_per_chunk="1",.*tier="0:primary"} 1.0', text)
    assert f"# TYPE {TIERING}backpressure_stores_dropped_total counter" in text


def test_without_devices_the_page_has_no_metric_of_tiers(server: TestServer) -> None:
    complete(server, 7)
    assert TIERING not in page(server)
