"""The output folder of `blis vidur`: the files that Vidur writes by default and those that its flags ask for."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.wings.vidur.small import STEP_S, written

REQUESTS = "0.5,8,3\n"
"""One request of three batches."""
BLOCKS = ("--sarathi_scheduler_config_num_blocks", "100")
WITHOUT_PICTURES = "--no-metrics_config_store_plots"
ALL_TABLES = (
    "--metrics_config_store_operation_metrics",
    "--metrics_config_store_token_completion_metrics",
    "--metrics_config_write_json_trace",
)
DURATIONS_S = (STEP_S, STEP_S + 0.009 * 32 / 1000, STEP_S + 0.010 * 32 / 1000)
"""The batches of the request, whose decodes have 9 and 10 tokens of context."""
ROUNDED_S = (STEP_S, STEP_S + 0.064 * 32 / 1000, STEP_S + 0.064 * 32 / 1000)
"""With contexts rounded up to 64 tokens, as the original has them."""


def table(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def use(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in (folder / "plots").glob("*.json"):
        found |= json.loads(file.read_text())
    return found


@pytest.mark.slow
def test_the_default_flags_write_the_timeline_and_a_table_and_a_picture_of_each_figure(tmp_path: Path) -> None:
    folder = written(tmp_path, REQUESTS, "--no-metrics_config_store_batch_metrics")
    assert {each.name for each in folder.iterdir()} == {
        "config.json", "request_metrics.csv", "chrome_trace.json", "plots",
    }  # fmt: skip
    names = {each.name for each in (folder / "plots").iterdir()}
    histograms = {"request_inter_arrival_delay", "request_pd_ratio", "request_num_restarts"}
    histograms |= {f"request_num_{kind}tokens" for kind in ("", "prefill_", "decode_")}
    tables = {name.removesuffix(".csv") for name in names if name.endswith(".csv")}
    assert {name.removesuffix(".png") for name in names if name.endswith(".png")} == histograms | tables
    assert {"request_e2e_time", "prefill_e2e_time", "request_completion_time_series"} <= tables
    assert {name for name in names if name.endswith(".json")} == {
        "replica_0_memory_usage.json", "replica_0_stage_0_busy_time_percent.json", "replica_0_stage_0_mfu.json",
    }  # fmt: skip


def test_flags_that_turn_files_off_leave_them_out(tmp_path: Path) -> None:
    off = ("enable_chrome_trace", "store_request_metrics", "store_batch_metrics", "store_utilization_metrics")
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, *(f"--no-metrics_config_{name}" for name in off))
    assert {each.name for each in folder.iterdir()} == {"config.json", "plots"}
    assert list((folder / "plots").iterdir()) == []


def test_the_use_of_a_replica_is_weighted_by_time_from_the_start_of_the_run(tmp_path: Path) -> None:
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, *BLOCKS)
    busy_s = sum(DURATIONS_S)
    found, until_s = use(folder), 0.5 + busy_s
    assert found["replica_0_memory_usage_max"] == pytest.approx(1)
    assert found["replica_0_memory_usage_weighted_mean"] == pytest.approx(busy_s / until_s)
    assert found["replica_0_stage_0_busy_time_percent_weighted_mean"] == pytest.approx(100 * busy_s / until_s)
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    operations = 2 * 8 * weights + 4 * 32 * 4096 * (8 * 9 / 2)
    assert found["replica_0_stage_0_mfu_max"] == pytest.approx(100 * operations / STEP_S / 312e12)


def test_the_original_counts_replicas_from_1_with_the_first_one_last_and_takes_means_of_samples(tmp_path: Path) -> None:
    requests = f"0.5,8,3\n{0.6!r},8,1\n"
    cluster = ("--cluster_config_num_replicas", "2")
    found = use(written(tmp_path, requests, WITHOUT_PICTURES, *BLOCKS, *cluster, "--compat", "vidur"))
    # One block at three starts of a batch and two ends, none at the last end, and none before all of them.
    assert found["replica_2_memory_usage_weighted_mean"] == pytest.approx(5 / 7)
    assert found["replica_1_memory_usage_weighted_mean"] == pytest.approx(1 / 3)
    # The time before the first batch does not count.
    assert found["replica_2_stage_1_busy_time_percent_weighted_mean"] == pytest.approx(100)
    assert not [name for name in found if name.startswith("replica_0")]


def test_the_timeline_has_batches_and_requests_or_is_that_of_vidur(tmp_path: Path) -> None:
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES)
    events = json.loads((folder / "chrome_trace.json").read_text())["traceEvents"]
    batches = [each for each in events if each["ph"] == "X"]
    assert [each["name"] for each in batches] == ["prefill 1", "decode 1", "decode 1"]
    assert [each["args"]["num_tokens"] for each in batches] == [[8], [1], [1]]
    assert [each["ts"] for each in events if each["ph"] in "stf"] == [batches[0]["ts"], batches[2]["ts"]]
    assert {each["name"] for each in events if each["ph"] == "b"} == {"request 0", "waiting", "prefill", "decode"}
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, "--compat", "vidur")
    first, *others = json.loads((folder / "chrome_trace.json").read_text())["traceEvents"]
    assert len(others) == 2
    args = {"batch_id": 0, "batch_size": 1, "request_ids": [0], "num_tokens": [8]}
    times = {"ts": 500000.0, "dur": pytest.approx(STEP_S * 1e6)}
    assert first == {"name": "[0]", "ph": "X", **times, "pid": 0, "tid": 0, "args": args}


def test_a_timeline_has_a_slice_in_each_pipeline_stage(tmp_path: Path) -> None:
    stages = ("--replica_config_num_pipeline_stages", "2")
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, *stages, "--compat", "vidur")
    events = json.loads((folder / "chrome_trace.json").read_text())["traceEvents"]
    assert [(each["args"]["batch_id"], each["tid"]) for each in events] == [
        (n, stage) for n in range(3) for stage in (0, 1)
    ]
    ends = [each["ts"] + each["dur"] for each in events]
    assert ends[0] == pytest.approx(events[1]["ts"])
    assert set(use(folder)) >= {f"replica_1_stage_{number}_mfu_max" for number in (1, 2)}


def test_tables_of_operators_and_tokens_have_what_the_layers_took(tmp_path: Path) -> None:
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, *ALL_TABLES, "--compat", "vidur")
    header, *rows = table(folder / "operation_metrics.csv")
    of_batches = [dict(zip(header, row, strict=True)) for row in rows]
    assert [each["add"] for each in of_batches] == ["16.0"] * 3  # Vidur reports twice the 8 ms that it counts
    assert [each["attn_prefill"] for each in of_batches] == ["0.0", "", ""]
    assert [each["attn_decode"] for each in of_batches] == ["", "0.064", "0.064"]
    assert table(folder / "cpu_operation_metrics.csv")[1][4] == str(pytest.approx(256.0))[:5]
    plots = folder / "plots"
    assert table(plots / "decode_completion_time_series.csv")[0] == ["", "Time (sec)", "decode_completion"]
    decoded = [float(row[1]) for row in table(plots / "decode_completion_time_series.csv")[1:]]
    assert decoded == pytest.approx([0.5 + sum(ROUNDED_S[:2]), 0.5 + sum(ROUNDED_S)])
    assert table(plots / "prefill_completion_time_series.csv")[1][2] == "8"
    median = table(plots / "decode_token_execution_plus_preemption_time.csv")[51]
    assert float(median[2]) == pytest.approx(ROUNDED_S[1], rel=0.001)
    assert (plots / "mlp_up_proj_execution_time.csv").exists()
    assert (plots / "add_per_batch.csv").exists()


def test_json_traces_are_whole(tmp_path: Path) -> None:
    folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, *ALL_TABLES)
    events = json.loads((folder / "event_trace.json").read_text())
    expected = ["request_arrival", "request_scheduled", *["batch_end"] * 3, "request_end"]
    assert [each["event_type"] for each in events] == expected
    (replica,) = json.loads((folder / "cluster.json").read_text())["replicas"]
    assert (replica["id"], replica["num_layers"], replica["num_pipeline_stages"]) == (0, 32, 1)


def test_quantiles_are_exact_or_off_by_a_thousandth_as_those_of_vidur(tmp_path: Path) -> None:
    for flags, size in (((), 1.0), (("--compat", "vidur"), 0.999)):
        folder = written(tmp_path, REQUESTS, WITHOUT_PICTURES, *flags)
        header, *rows = table(folder / "plots" / "batch_size.csv")
        assert header == ["", "cdf", "batch_size"]
        assert [float(row[2]) for row in rows] == [pytest.approx(size)] * 101


def test_flags_that_cannot_act_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blis_sim.wings.vidur.effects.can_draw", lambda: False)
    monkeypatch.setattr("blis_sim.wings.vidur.output.can_draw", lambda: False)
    flag = "random_forrest_execution_time_predictor_config_skip_cpu_overhead_modeling"
    written(tmp_path, REQUESTS, f"--no-{flag}", *ALL_TABLES)
    said = capsys.readouterr().err.splitlines()
    assert f"blis vidur: --{flag} has no effect: the times of operators come from --operators" in said
    assert any("store_plots has no effect: pictures need matplotlib" in line for line in said)
    assert len([line for line in said if "has no effect" in line]) == 2
