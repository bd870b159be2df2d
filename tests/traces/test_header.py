"""Headers are strict when read and exact when written."""

from pathlib import Path
from typing import Any

import pytest

from traces import SloTargets, TraceError, TraceHeader, read_header, write_header


def _read(folder: Path, text: str) -> TraceHeader:
    (folder / "h.yaml").write_text(text)
    return read_header(folder / "h.yaml")


def _written(folder: Path, header: TraceHeader) -> str:
    write_header(folder / "h.yaml", header)
    return (folder / "h.yaml").read_text()


def test_a_recordings_header_is_written_key_by_key(tmp_path: Path) -> None:
    header = TraceHeader(
        time_unit="us",
        created_at="2026-06-23T03:53:59Z",
        mode="real",
        workload_seed=42,
        workload_spec="/data/workload.yaml",
        server={"type": "vllm", "model": "Qwen/Qwen3-14B"},
    )
    assert _written(tmp_path, header) == (
        "trace_version: 3\n"
        "time_unit: us\n"
        'created_at: "2026-06-23T03:53:59Z"\n'
        "mode: real\n"
        "warm_up_requests: 0\n"
        "workload_seed: 42\n"
        "workload_spec: /data/workload.yaml\n"
        "server:\n"
        "    type: vllm\n"
        "    model: Qwen/Qwen3-14B\n"
        "network: {}\n"
    )


def test_a_generated_header_leaves_out_what_is_empty(tmp_path: Path) -> None:
    header = TraceHeader(workload_seed=0, goodput_slo_targets={"b": SloTargets(itl_ms=40), "a": SloTargets(e2e_ms=0.5)})
    assert _written(tmp_path, header) == (
        "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\nworkload_seed: 0\n"
        "goodput_slo_targets:\n    a:\n        e2e_ms: 0.5\n    b:\n        itl_ms: 40\n"
    )


def test_every_key_of_a_header_reads_back(tmp_path: Path) -> None:
    header = TraceHeader(
        trace_version=2,
        created_at="2026-01-01T00:00:00Z",
        mode="real",
        warm_up_requests=3,
        session_context_growth="accumulate",
        measured_rtt_ms=1.5,
        goodput_slo_targets={"default": SloTargets(ttft_ms=100)},
        kv_offload={"block_size": 16, "secondary_tiers": [{"type": "fs", "direct_io": True}]},
        observed_kv_metrics={"source": "tiered", "hit_rate": 0.5},
    )
    write_header(tmp_path / "h.yaml", header)
    assert read_header(tmp_path / "h.yaml") == header


def test_one_key_is_a_header(tmp_path: Path) -> None:
    header = _read(tmp_path, "trace_version: 3.0\n")
    assert (header.trace_version, header.mode, header.warm_up_requests, header.workload_seed) == (3, "", 0, None)


def test_a_date_without_quotes_is_text(tmp_path: Path) -> None:
    assert _read(tmp_path, "created_at: 2026-06-23T03:53:59Z\n").created_at == "2026-06-23T03:53:59Z"


def test_a_key_without_a_value_is_as_good_as_absent(tmp_path: Path) -> None:
    assert _read(tmp_path, "mode: real\nnetwork:\nserver:\nwarm_up_requests:\n") == _read(tmp_path, "mode: real\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "h.yaml: the file is empty, expected a trace header such as `trace_version: 3`"),
        ("trace_version: '3'", "h.yaml key trace_version: expected a whole number between 1 and 3, got '3'"),
        ("trace_version: 3.5", "h.yaml key trace_version: expected a whole number between 1 and 3, got 3.5"),
        ("warm_up_requests: -1", "h.yaml key warm_up_requests: expected a whole number of at least 0, got -1"),
        ("warm_up_requests: true", "h.yaml key warm_up_requests: expected a whole number of at least 0, got True"),
        ("trace_version: 4", "h.yaml key trace_version: expected a whole number between 1 and 3, got 4"),
        ("trace_version: 0", "h.yaml key trace_version: expected a whole number between 1 and 3, got 0"),
        ("trace_version: 010", "h.yaml key trace_version: expected a whole number between 1 and 3, got '010'"),
        ("time_unit: ms", "h.yaml key time_unit: expected us or microseconds, got 'ms'"),
        ("mode: Real", "h.yaml key mode: expected real or generated or replayed, got 'Real'"),
        ("foo: 1", "h.yaml: unknown key 'foo', known are trace_version, time_unit, "),
        ("server: {gpu: H100}", "h.yaml: unknown key 'gpu' of server, known are type, model, "),
        ("server: vllm", "h.yaml key server: expected keys and values, got 'vllm'"),
        ("mode: [real]", "h.yaml key mode: expected real or generated or replayed, got ['real']"),
        (
            "network: {measured_rtt_ms: -1}",
            "h.yaml key network.measured_rtt_ms: expected a number of at least 0, got -1",
        ),
        (
            "network: {measured_rtt_ms: .nan}",
            "h.yaml key network.measured_rtt_ms: expected a number of at least 0, got n",
        ),
        (
            "goodput_slo_targets: {batch: {ttft: 1}}",
            "h.yaml: unknown key 'ttft' of goodput_slo_targets.batch, known are ttft_ms, itl_ms, e2e_ms",
        ),
        ("goodput_slo_targets: 5", "h.yaml key goodput_slo_targets: expected names with keys and values, got 5"),
        ("kv_offload: {secondary_tiers: {}}", "h.yaml key kv_offload.secondary_tiers: expected a list, got {}"),
        (
            "kv_offload: {secondary_tiers: [{type: 1}]}",
            "h.yaml key kv_offload.secondary_tiers[0].type: expected fs, got 1",
        ),
        (
            "session_context_growth: Accumulate",
            "h.yaml key session_context_growth: expected accumulate, got 'Accumulate'",
        ),
        ("mode: real\n  x: [", "h.yaml line 2: expected YAML, "),
        ("request_id,input_tokens\n1,2", "h.yaml: expected a trace header (YAML keys and values), got 'request_id,"),
    ],
)
def test_a_bad_header_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        _read(tmp_path, text)
    assert str(raised.value).replace(str(tmp_path) + "/", "").startswith(said)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["on", "1.10", "null", "2026-01-01", "a: b", "ü", " x", "", "x" * 300])
def test_odd_text_survives_yaml(tmp_path: Path, value: str) -> None:
    fields: dict[str, Any] = {"workload_spec": value, "created_at": value}
    assert _read(tmp_path, _written(tmp_path, TraceHeader(**fields))) == TraceHeader(**fields)
