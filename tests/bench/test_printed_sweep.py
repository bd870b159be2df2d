"""A sweep on standard output."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from blis_sim.bench.points import FIGURES, Outcome, Point, Row, Table
from blis_sim.bench.sweep_report import MOST_ROWS, SweepResult, sweep_report
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


def beaten(number: int, **varied: float) -> Row:
    """A point with the latencies of its number and hardly any throughput."""
    found = row(number, None, 1, **varied)
    worse = {**found.outcome.figures, "tokens_per_sec": 1.0, "gpu_hours_per_million_tokens": 9.0}
    return replace(found, outcome=replace(found.outcome, figures=worse))


def failed(number: int, **varied: float) -> Row:
    """A point whose settings do not fit together."""
    return Row(f"key{number}", Point(number, varied, {}), Outcome(error="--tp must be at least 1, got 0"))


def test_without_targets_all_points_are_printed_and_those_on_the_frontier_marked() -> None:
    found = result(row(0, None, 1, tp=1), beaten(1, tp=2), row(2, None, 2, tp=4), failed(3, tp=0))
    text = printed(found, "table")
    assert text.startswith("2 of 4 points are beaten by no other one, marked *:\n")
    assert "verdict" not in text
    assert [line.split()[:2] for line in text.splitlines()[3:7]] == [["*", "1"], ["2", "1"], ["*", "4"], ["0", "-"]]
    assert text.rstrip().endswith("failed: tp=0")


def test_points_that_are_all_on_the_frontier_need_no_mark() -> None:
    text = printed(result(row(0, None, 1, tp=1), row(1, None, 2, tp=2)), "table")
    assert text.startswith("2 of 2 points are beaten by no other one:\n")
    assert "*" not in text


@pytest.mark.parametrize("attainment", [None, 0.5])
@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_all_points_are_in_the_table_of_each_format(form: str, attainment: float | None) -> None:
    rows = [row(0, attainment, 1, tp=701), beaten(1, tp=702), failed(2, tp=703)]
    text = printed(result(*rows, price=2.0), form)
    assert all(re.search(rf"\b{number}\b", text) for number in (701, 702, 703))
    assert "not printed" not in text


@pytest.mark.parametrize("form", ["table", "markdown", "html"])
def test_of_very_many_points_those_on_the_frontier_are_printed_and_the_others_counted(form: str) -> None:
    rows = [*(beaten(number, rate=1000 + number) for number in range(1, MOST_ROWS + 40)), row(0, None, 9, rate=701)]
    text = printed(replace(result(*rows), path="many.csv"), form).partition("Pictures")[0]
    assert f"40 of {MOST_ROWS + 40} points are not printed; all are in many.csv" in text
    assert re.search(r"\b701\b", text)
    assert len(re.findall(r"\b1\d\d\d\b", text)) == MOST_ROWS - 1


def test_with_targets_those_of_very_many_points_that_meet_them_are_printed() -> None:
    rows = [*(row(number, 0.5, 1, tp=1000 + number) for number in range(MOST_ROWS)), row(MOST_ROWS, 1.0, 1, tp=701)]
    text = printed(replace(result(*rows), path="many.csv"), "table")
    assert f"1 of {MOST_ROWS + 1} points are not printed; all are in many.csv" in text
    assert "cheapest" in next(line for line in text.splitlines() if line.startswith(" 701"))


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
