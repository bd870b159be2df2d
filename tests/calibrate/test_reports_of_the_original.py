"""With --compat, every report of the original tool is reproduced number by number."""

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.command import CalibrateOptions, run

REAL = "real/real_qwen3_14b_h100_"
TRAINED = "replay/qwen3-14b_H100_tp1_trained"
RUNS: dict[str, dict[str, Any]] = {
    "c1_basic": {"trace": f"{REAL}8rps_first400", "sim": TRAINED},
    "c2_roofline": {"trace": f"{REAL}8rps_first400", "sim": "replay/qwen3-14b_H100_tp1_roofline"},
    "c3_warm50_rtt2ms_bw100": {
        "trace": f"{REAL}8rps_first400",
        "sim": TRAINED,
        "warmup_requests": 50,
        "network_rtt_us": 2000,
        "network_bandwidth_mbps": 100.0,
    },
    "c4_wrongmodel": {"trace": f"{REAL}8rps_first400", "sim": "replay/llama-3.1-8b_A100-SXM_tp1_trained"},
    "c5_goodput": {
        "trace": f"{REAL}8rps_first400",
        "sim": TRAINED,
        "slo_ttft": "default=100ms",
        "slo_e2e": "default=1.9s",
    },
    "c6_itl": {"trace": f"{REAL}2rps_first150", "sim": "replay/q3_2rps150", "itl": True},
    "c7_itl_goodput": {
        "trace": f"{REAL}2rps_first150",
        "sim": "replay/q3_2rps150",
        "itl": True,
        "slo_itl": "default=13ms",
        "slo_ttft": "default=80ms",
    },
    "c8_hitrate": {"trace": f"{REAL}8rps_first400", "header": "real/hit_header", "sim": TRAINED, "metrics": TRAINED},
    "c10_partial_slo": {"trace": "observe_mock/o4_noslotarget", "sim": "replay/o4_noslotarget"},
    "o7_err500": {"trace": "observe_mock/o7_err500", "sim": "replay/o7_err500"},
    "o9_timeout": {"trace": "observe_mock/o9_timeout", "sim": "replay/o9_timeout"},
    "o10_midcut": {"trace": "observe_mock/o10_midcut", "sim": "replay/o10_midcut"},
    "o12_warmup3": {"trace": "observe_mock/o12_warmup3", "sim": "replay/o12_warmup3"},
}


def _options(tools: Path, report: Path, given: dict[str, Any]) -> CalibrateOptions:
    rest = {key: value for key, value in given.items() if key not in ("trace", "header", "sim", "itl", "metrics")}
    if given.get("itl"):
        rest["itl_data"] = str(tools / f"{given['trace']}.itl.csv")
    if "metrics" in given:
        rest["sim_metrics"] = str(tools / f"{given['metrics']}.metrics.json")
    return CalibrateOptions(
        trace=str(tools / f"{given.get('header', given['trace'])}.yaml"),
        trace_data=str(tools / f"{given['trace']}.csv"),
        sim_results=str(tools / f"{given['sim']}.results.json"),
        report=str(report),
        compat=True,
        **rest,
    )


def _assert_same(ours: Any, original: Any, where: str = "") -> None:
    if isinstance(original, dict):
        assert list(ours) == list(original), where
        for key, value in original.items():
            _assert_same(ours[key], value, f"{where}.{key}")
    elif isinstance(original, list) and original and not isinstance(original[0], str):
        assert len(ours) == len(original), where
        for place, (mine, other) in enumerate(zip(ours, original, strict=True)):
            _assert_same(mine, other, f"{where}[{place}]")
    elif isinstance(original, int | float) and not isinstance(original, bool):
        assert ours == pytest.approx(original, rel=1e-9, abs=1e-9), where
    elif isinstance(original, list):  # sentences, which are the tool's own
        assert all(isinstance(each, str) for each in ours), where
    else:
        assert ours == original, where


@pytest.mark.parametrize("name", RUNS)
def test_a_report_is_reproduced(reference: Path, tmp_path: Path, name: str) -> None:
    tools = reference / "golden/tools"
    assert run(_options(tools, tmp_path / "r.json", RUNS[name])) == 0
    original = json.loads((tools / f"calibrate/{name}.report.json").read_text())
    _assert_same(json.loads((tmp_path / "r.json").read_text()), original)


def test_the_adapter_report_is_reproduced(reference: Path, tmp_path: Path) -> None:
    tools = reference / "golden/tools"
    options = CalibrateOptions(
        adapter_reference=str(tools / "calibrate/adapter_ref.json"),
        sim_metrics=str(tools / "run/s2_multiclient_prefix_slo.metrics.json"),
        sim_metrics_blind=str(tools / "run/s1_poisson_basic.metrics.json"),
        report=str(tmp_path / "r.json"),
    )
    assert run(options) == 0
    original = json.loads((tools / "calibrate/c9_adapter.report.json").read_text())
    _assert_same(json.loads((tmp_path / "r.json").read_text()), original)


def test_every_report_of_the_original_is_covered(reference: Path) -> None:
    reports = {
        path.name.removesuffix(".report.json") for path in (reference / "golden/tools/calibrate").glob("*.report.*")
    }
    assert reports == {*RUNS, "c9_adapter"}
