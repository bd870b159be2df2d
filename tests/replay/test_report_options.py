"""Report options of a simulation, and those that are refused."""

from pathlib import Path
from typing import Any

import pytest

from blis_sim.options import OptionError, options_from
from replay.replay_options import ReplayOptions
from replay.report_options import ReportOptions
from traces import SloTargets


def options(**given: Any) -> ReportOptions:
    return options_from(ReplayOptions, model="qwen/qwen3-14b", **given).report


def test_no_report_is_written_by_default() -> None:
    plain = options()
    assert (plain.slo_targets, plain.weights, plain.saturation.names) == ({}, {}, ())
    assert (plain.saturation.final_window_us, plain.itl_path) == (None, None)


def test_targets_are_put_together_by_class() -> None:
    found = options(slo_ttft="default=100ms,batch=1.5s", slo_e2e="batch=1m").slo_targets
    assert found == {"batch": SloTargets(ttft_ms=1_500, e2e_ms=60_000), "default": SloTargets(ttft_ms=100)}


def test_the_flags_of_blis_mean_what_goodput_means() -> None:
    found = options(goodput=("ttft:100ms", "batch/ttft:1.5s", "batch/e2e:1m")).slo_targets
    assert found == options(slo_ttft="default=100ms,batch=1.5s", slo_e2e="batch=1m").slo_targets


def test_all_stands_for_every_detector() -> None:
    assert options(detectors=("all",)).saturation.names == ("composite", "threshold", "backlog-drift")
    assert options(detectors=("threshold", "all")).saturation.names == ("composite", "threshold", "backlog-drift")
    assert options(detectors=("threshold", "composite", "threshold")).saturation.names == ("threshold", "composite")


def test_a_final_window_is_a_duration() -> None:
    assert options(detectors=("all",), saturation_final_window="1m30s").saturation.final_window_us == 90_000_000


def test_token_times_go_beside_the_trace_unless_said_otherwise() -> None:
    assert options(record_itl=True, trace_output="run").itl_path == Path("run.itl.csv")
    assert options(record_itl=True, trace_output="run", itl_output="b.csv").itl_path == Path("b.csv")
    assert options(record_itl=True, itl_output="b.csv.gz").itl_path == Path("b.csv.gz")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"goodput": ("ttft:100",)}, "--goodput ttft must be a duration such as 40ms or 1s, got '100'"),
        ({"slo_ttft": "standard=100"}, "--slo-ttft must be class=duration.*, got 'standard=100'"),
        ({"slo_itl": "standard"}, "--slo-itl must be class=duration.*, got 'standard'"),
        ({"slo_e2e": "a=0s"}, "--slo-e2e must be class=duration.*, got 'a=0s'"),
        (
            {"detectors": ("foo",)},
            "--detectors must be one of composite, threshold, backlog-drift, queue, all, got 'foo'",
        ),
        ({"saturation_report": "x"}, "--saturation-report needs --detectors"),
        ({"saturation_config": "x"}, "--saturation-config needs --detectors"),
        ({"saturation_final_window": "3s"}, "--saturation-final-window needs --detectors"),
        (
            {"detectors": ("all",), "saturation_final_window": "30"},
            "--saturation-final-window must be a duration such as 30s, up to 31 years, got '30'",
        ),
        ({"detectors": ("all",), "saturation_final_window": "0s"}, "--saturation-final-window must be a duration"),
        ({"fitness_weights": "speed:1"}, "--fitness-weights has the metrics "),
        ({"record_itl": True}, "--record-itl needs --trace-output or --itl-output"),
        ({"itl_output": "x.csv"}, "--itl-output needs --record-itl"),
    ],
)
def test_a_report_that_cannot_be_made_is_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options(**given)
