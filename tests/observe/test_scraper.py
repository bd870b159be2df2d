"""The server's own metrics beside a recording."""

import json
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from observe.server import MetricsReading, header_settings, observed_hit_rate, parse_reading

Observe: TypeAlias = Callable[..., Any]


def entries(prefix: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{prefix}.metrics.jsonl").read_text().splitlines()]


def test_metrics_are_read_before_during_and_after(observe: Observe) -> None:
    run = observe(model="ok", rate=50.0, num_requests=40, scrape_metrics=True, scrape_interval=0.1)
    settings, *readings = entries(run.prefix)
    assert settings["server"]["cache_config"]["num_gpu_blocks"] == "811"
    assert settings["server"]["models"]["data"][0]["id"] == "ok"
    phases = [entry["phase"] for entry in readings]
    assert phases[0] == "before"
    assert phases[-1] == "after"
    assert phases[1:-1] == ["during"] * (len(phases) - 2)
    assert len(phases) > 3
    assert [entry["at_us"] for entry in readings] == sorted(entry["at_us"] for entry in readings)
    asked = [entry["samples"]['vllm:prefix_cache_queries_total{engine="0"}'] for entry in readings]
    assert asked[-1] - asked[0] == 40 * 100
    assert not [name for name in readings[0]["samples"] if "bucket" in name or "process" in name]


def test_settings_and_the_hit_rate_of_the_run_are_in_the_header(observe: Observe) -> None:
    header = observe(model="ok", scrape_metrics=True).trace.header
    assert header.server == {
        "type": "vllm",
        "model": "ok",
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "max_model_len": 4096,
    }
    assert header.observed_kv_metrics["hit_rate"] == 0.5
    assert header.observed_kv_metrics["block_queries"] == 1000


def test_metrics_are_read_only_on_request(observe: Observe) -> None:
    run = observe(model="ok")
    assert not Path(f"{run.prefix}.metrics.jsonl").exists()
    assert run.trace.header.observed_kv_metrics is None


def test_a_resumed_run_appends_its_readings(observe: Observe) -> None:
    run = observe(model="ok", scrape_metrics=True)
    data = Path(f"{run.prefix}.csv")
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:-3]))
    first = entries(run.prefix)
    run = observe(model="ok", scrape_metrics=True, resume=True)
    assert entries(run.prefix)[: len(first)] == first
    assert entries(run.prefix)[-1]["phase"] == "after"
    assert len(run.trace.rows) == 10


def test_lines_that_are_no_samples_are_passed_over() -> None:
    page = '# HELP vllm:x y\nvllm:x{a="b c"} 1.5\nvllm:y nonsense\nother 2\n\nvllm:z_bucket{le="1"} 4\n'
    assert parse_reading(page, 7) == MetricsReading(7, {'vllm:x{a="b c"}': 1.5})


def test_line_separators_of_unicode_in_a_label_end_no_line() -> None:
    assert parse_reading('vllm:x{a="b\u2028vllm:y 2"} 1\n', 7) == MetricsReading(
        7, {'vllm:x{a="b\u2028vllm:y 2"}': 1.0}
    )


@pytest.mark.parametrize(
    ("before", "after"), [((0, 0), (0, 0)), ((9, 5), (3, 1)), ((1, 5), (9, 2)), ((1, 0), (inf, 2))]
)
def test_counters_that_stood_still_or_began_anew_give_no_hit_rate(
    before: tuple[float, float], after: tuple[float, float]
) -> None:
    assert observed_hit_rate(counted(*before), counted(*after)) is None


@pytest.mark.parametrize("block_size", ["nan", "0", "-1", "9" * 30, "9" * 5000, "x"])
@pytest.mark.parametrize("share", ["nan", "inf", "-1", "7", "x"])
@pytest.mark.parametrize("max_model_len", [True, 0, -1, 2**64 - 1, "4096", 4096.0])
def test_settings_that_cannot_be_true_stay_out_of_the_header(block_size: str, share: str, max_model_len: Any) -> None:
    assert header_settings({"block_size": block_size, "gpu_memory_utilization": share}, max_model_len) == {}


def counted(queries: float, hits: float) -> MetricsReading:
    return MetricsReading(0, {"vllm:prefix_cache_queries_total": queries, "vllm:prefix_cache_hits_total": hits})
