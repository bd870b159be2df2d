"""Goodput and pictures of whole runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from observe.options import ObserveOptions
from traces import SloTargets

Observe: TypeAlias = Callable[..., Any]


def test_targets_given_are_judged_and_noted_in_the_recording(observe: Observe) -> None:
    run = observe(model="ok-20-5", slo_ttft="default=10s", slo_e2e="default=1us")
    assert run.summary["slo_attainment"] == 0
    assert run.summary["per_class"]["default"]["slo_attainment_by_dim"] == {"e2e": 0, "ttft": 1}
    assert run.summary["per_class"]["default"]["count"] == 10
    assert "goodput 0.00 requests/s, 0.0% of all" in run.messages
    assert run.trace.header.goodput_slo_targets == {"default": SloTargets(ttft_ms=10_000, e2e_ms=0.001)}


@pytest.mark.slow
def test_a_recording_sent_again_is_held_to_its_own_targets(observe: Observe) -> None:
    first = observe(model="ok", slo_e2e="default=1us", output="first")
    again = observe(model="ok", trace=f"{first.prefix}.yaml", output="again")
    assert again.summary["slo_attainment"] == 0
    assert again.trace.header.goodput_slo_targets == first.trace.header.goodput_slo_targets


def test_without_targets_the_summary_has_no_goodput(observe: Observe) -> None:
    assert "goodput_rps" not in observe(model="ok").summary


@pytest.mark.slow
def test_the_picture_of_a_run_is_drawn(observe: Observe, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = observe(model="ok-20-5", plot=str(tmp_path / "run.svg"))
    picture = (tmp_path / "run.svg").read_text()
    assert run.code == 0
    assert picture.startswith("<?xml")


def test_a_picture_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(Exception, match="--plot must be a file that ends in"):
        ObserveOptions(url="http://127.0.0.1:1", rate=1.0, num_requests=1, output="x", plot="x.txt")
