"""A sweep on standard output."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from blis_sim.bench.points import FIGURES, Outcome, Point, Row, Table
from blis_sim.bench.sweep_report import SweepResult, sweep_report
from blis_sim.options.provenance import Provenance

ORIGIN = Provenance(command="blis sweep", model="m")


def row(number: int, attainment: float | None, num_gpus: int, **varied: float) -> Row:
    """A point with as many output tokens per second as GPUs, and latencies that rise with its number."""
    figures: dict[str, float | int | None] = dict.fromkeys(FIGURES)
    figures |= {"completed_requests": 10, "tokens_per_sec": 100.0 * num_gpus, "responses_per_sec": 1.0}
    figures |= {"ttft_p99_ms": 10.0 + number, "itl_p99_ms": 5.0 + number, "num_gpus": num_gpus}
    figures |= {"slo_attainment": attainment, "gpu_hours_per_million_tokens": 2.5 - 0.1 * number}
    return Row(f"key{number}", Point(number, varied, {}), Outcome(figures))


def result(*rows: Row, price: float | None = None) -> SweepResult:
    points = {each.key: each.point for each in rows}
    table = Table(varied=list(rows[0].point.varied), gpu_cost_per_hour=price, points=points)
    return SweepResult(table=table, rows=rows, least_attainment=0.99)


def printed(found: SweepResult, form: str) -> str:
    return sweep_report(found, lambda: ORIGIN).text(form, width=200)


def test_without_targets_the_frontier_is_printed() -> None:
    found = result(row(0, None, 1, tp=1), row(1, None, 2, tp=2))
    text = printed(found, "table")
    assert text.startswith("2 of 2 points are beaten by no other one:\n")
    assert "verdict" not in text


def test_with_targets_each_point_has_its_attainment_and_the_cheapest_that_meets_them_is_named() -> None:
    found = result(row(0, 0.5, 1, tp=1), row(1, 0.995, 4, tp=4), row(2, 1.0, 2, tp=2), price=3.0)
    text = printed(found, "table")
    assert text.startswith("2 of 3 points meet the targets (99 % of requests within all of them):\n")
    assert [line.split()[-2:] for line in text.splitlines()[3:6]] == [
        ["50.0%", "misses"],
        ["99.5%", "meets"],
        ["100.0%", "cheapest"],
    ]
    assert "cheapest per hour that meets them: tp=2 (2 GPUs, $6.00 an hour, $6.90/M tokens, 100.0% within)" in text


def test_targets_for_percentiles_need_no_share_of_requests() -> None:
    rows = (row(0, None, 1, tp=1), row(1, None, 2, tp=2), row(2, None, 4, tp=4))
    judged = [
        replace(each, outcome=replace(each.outcome, figures={**each.outcome.figures, "percentile_targets_met": met}))
        for each, met in zip(rows, (0, 1, 1), strict=True)
    ]
    text = printed(result(*judged), "table")
    assert text.startswith("2 of 3 points meet the targets:\n")
    assert [line.split()[-1] for line in text.splitlines()[3:6]] == ["misses", "cheapest", "meets"]
    assert text.rstrip().endswith("cheapest per hour that meets them: tp=2 (2 GPUs)")


def test_points_with_other_loads_are_compared_by_their_costs_per_token() -> None:
    found = result(row(0, 1.0, 1, rate=1), row(1, 1.0, 2, rate=2))
    assert found.cheapest is found.rows[1]
    assert "cheapest per token that meets them: rate=2" in printed(found, "markdown")


def test_where_no_point_meets_the_targets_the_nearest_is_named() -> None:
    found = result(row(0, 0.5, 1, tp=1), row(1, 0.7, 2, tp=2))
    assert found.cheapest is None
    assert "none meets the targets, nearest is tp=2 with 70.0%" in printed(found, "table")


@pytest.mark.parametrize("has_targets", [True, False])
def test_json_and_csv_have_all_points_and_their_marks(has_targets: bool) -> None:
    found = result(row(0, 1.0 if has_targets else None, 1, tp=1), row(1, 0.5 if has_targets else None, 1, tp=2))
    document = json.loads(printed(found, "json"))
    assert document["provenance"]["model"] == "m"
    assert document["cheapest_point"] == ("key0" if has_targets else None)
    assert [each.get("meets_targets") for each in document["points"]] == ([True, False] if has_targets else [None] * 2)
    rows = list(csv.DictReader(io.StringIO(printed(found, "csv"))))
    assert [(each["point"], each["on_frontier"]) for each in rows] == [("key0", "True"), ("key1", "True")]


def test_the_page_has_the_table_the_frontier_with_its_target_and_the_origin(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = result(row(0, 0.5, 1, tp=1), row(1, 1.0, 4, tp=4), price=3.0)
    sweep_report(replace(found, ttft_limits_ms={"default": 1000.0}), lambda: ORIGIN).write(
        str(tmp_path / "sweep.html"), None
    )
    text = (tmp_path / "sweep.html").read_text()
    assert "<title>Sweep of m</title>" in text
    assert '<li class="good">cheapest per hour that meets them: tp=4' in text
    assert text.count("<svg") == 3
    assert "target of default, 1 s" in text
    assert "blis sweep" in text
