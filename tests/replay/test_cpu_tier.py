"""`blis replay` and `blis run` with a tier of CPU memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from blis_sim.cli.main import run
from tests.replay.small_traces import row, written
from tests.replay.test_command import DEPLOYMENT, THREE, Captured, replayed
from traces import TraceHeader, write_trace

PREFIX = [
    row(index, index * 100_000, input_tokens=each, prefix_group="g" if each < 100 else "", prefix_length=64)
    for index, each in enumerate((10, 1000, 10))
]
"""The prefix of the first is pushed out by the second, and used again by the third."""

SMALL = ("--total-kv-blocks", "63", "--max-model-len", "1008", "--kv-cpu-blocks", "500")


def breakdown(header: Path, capsys: Captured, *flags: str) -> dict[str, Any]:
    assert run(["replay", str(header), *DEPLOYMENT, "--json", *flags]) == 0
    reported: dict[str, Any] = json.loads(capsys.readouterr().out)["breakdown"]
    return reported


def test_figures_of_the_tier_are_part_of_the_breakdown(tmp_path: Path, capsys: Captured) -> None:
    assert breakdown(written(tmp_path, PREFIX), capsys, *SMALL)["kv_cpu_tier"] == {
        "blocks_stored": 66,
        "blocks_evicted": 0,
        "blocks_brought_back": 4,
        "blocks_thrashed": 0,
        "thrashing_rate": 0,
    }


def test_the_summary_has_no_tier_without_a_tier(tmp_path: Path, capsys: Captured) -> None:
    assert "kv_cpu_tier" not in breakdown(written(tmp_path, PREFIX), capsys)


def test_the_thrashing_rate_is_printed(tmp_path: Path, capsys: Captured) -> None:
    command = ["replay", str(written(tmp_path, PREFIX)), *DEPLOYMENT, *SMALL, "--kv-cpu-blocks", "1"]
    assert run([*command, "--format", "blis"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[printed.index("=== KV Cache Metrics ===") + 3] == "KV Thrashing Rate: 0.9952"
    assert run(command) == 0
    assert "CPU tier of the KV cache: 99.5% of its blocks thrashed\n" in capsys.readouterr().out


def test_bringing_blocks_back_takes_time(tmp_path: Path, capsys: Captured) -> None:
    header = written(tmp_path, PREFIX)
    free, _ = replayed(header, capsys, *SMALL, "--kv-transfer-bandwidth", "1000")
    slow, _ = replayed(header, capsys, *SMALL, "--kv-transfer-bandwidth", "1000", "--kv-transfer-base-latency", "250")
    assert slow["ttft_p99_ms"] - free["ttft_p99_ms"] == pytest.approx(0.98 * 4 * 0.25)


def test_blocks_that_come_back_count_as_found_in_the_cache(tmp_path: Path, capsys: Captured) -> None:
    header, metrics = written(tmp_path, PREFIX), tmp_path / "metrics.json"
    rates = []
    for blocks in ("0", "500"):
        replayed(header, capsys, *SMALL, "--kv-cpu-blocks", blocks, "--metrics-path", str(metrics))
        rates.append(json.loads(metrics.read_text())["cache_hit_rate"])
    assert rates == [0, pytest.approx(4 / 73)]


@pytest.mark.parametrize(("mode", "is_simulated"), [("generated", True), ("replayed", True), ("real", False)])
def test_the_chain_of_tiers_of_a_simulated_trace_is_simulated(
    tmp_path: Path, capsys: Captured, mode: str, is_simulated: bool
) -> None:
    header = tmp_path / "trace.yaml"
    write_trace(header, TraceHeader(mode=mode, kv_offload={"cpu_bytes_to_use": 2**30}), THREE)
    assert ("kv_cpu_tier" in breakdown(header, capsys)) == is_simulated
