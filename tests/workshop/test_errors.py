"""The table of errors by kind of server, made of single recordings."""

import csv
import json
from math import exp, log
from pathlib import Path
from random import Random
from statistics import median

import pytest

from blis_sim.engine.latency.confidence import DENSE, FULL, METRICS, NVLINK, ONE_GPU, ServerKind
from workshop.errors import (
    POINTS,
    Cell,
    Seen,
    covered,
    kinds_of,
    score_again,
    seen_in,
    spread_of,
    table_text,
)
from workshop.points import COLUMNS, KIND_SEPARATOR

LARGE = Cell(ServerKind(DENSE, FULL, "H100", NVLINK), "large", (80, 8192))
SMALL = Cell(ServerKind(DENSE, FULL, "H100", ONE_GPU), "small", (32, 4096))
LEARNED_FROM = Cell(ServerKind(DENSE, FULL, "H100", ONE_GPU), "qwen3-14b", (40, 5120))


def seen(cell: Cell, *errors: float) -> list[Seen]:
    return [
        Seen("here", cell, "kernels", dict.fromkeys(METRICS, each), dict.fromkeys(METRICS, each)) for each in errors
    ]


def test_a_kind_has_the_median_and_the_ninth_of_ten_of_its_recordings() -> None:
    (kind,) = kinds_of(seen(LARGE, *(0.01 * number for number in range(11))), "kernels")
    assert kind.num_recordings == 11
    assert kind.errors["itl"] == pytest.approx((0.05, 0.09))


def test_growth_is_the_ratio_between_kinds_with_so_many_unlike_properties() -> None:
    found = seen(LARGE, 0.1) + seen(SMALL, 0.4)
    spread = spread_of(kinds_of(found, "kernels"), found, "ttft")
    one, two, *_ = spread["growth"]
    assert one == [1.0, 1.0]  # the two differ in the model and in how they share the work
    assert two[0] == 4.0
    assert spread["all"] == pytest.approx([0.25, 0.37])


def test_a_server_that_was_learned_from_is_marked_and_widens_nothing() -> None:
    found = seen(LARGE, 0.1) + seen(LEARNED_FROM, 0.001)
    table = json.loads(table_text(found))
    marks = {row["model"]: row["errors"]["kernels"].get("learned_from", False) for row in table["kinds"]}
    assert marks == {"large": False, "qwen3-14b": True}
    assert table["spread"]["kernels"]["itl"]["growth"][-1] == [1.0, 1.0]


@pytest.mark.parametrize("left_out", ["the recording", "its model and GPU"])
def test_steps_of_requests_that_wait_have_intervals_of_their_own(left_out: str) -> None:
    draws = Random(5)
    calm = [one for place in range(6) for one in of_model(place, *(draws.gauss(0, 0.02) for _ in range(12)))]
    bursts = [one for place in range(6) for one in of_model(place, *(draws.gauss(0, 0.2) for _ in range(12)))]
    found = [*calm, *(each._replace(waiting=True) for each in bursts)]
    widths = {
        metric: [
            median(high - low for one, _, (low, high) in covered(found, metric, left_out) if one.waiting == waiting)
            for waiting in (False, True)
        ]
        for metric in METRICS
    }
    assert widths["itl"][1] > 5 * widths["itl"][0]
    assert widths["throughput"][1] > 5 * widths["throughput"][0]
    assert widths["ttft"][1] == pytest.approx(widths["ttft"][0], rel=0.2)
    inside = [low <= exp(ratio) <= high for one, ratio, (low, high) in covered(found, "itl", left_out) if one.waiting]
    assert 0.8 <= sum(inside) / len(inside) <= 1


def test_a_table_keeps_whose_requests_wait() -> None:
    found = [each._replace(waiting=place % 2 == 1) for place, each in enumerate(seen(LARGE, 0.1, 0.2, 0.3))]
    assert [each.waiting for each in seen_in(json.loads(table_text(found)))] == [False, True, False]


def of_model(place: int, *errors: float) -> list[Seen]:
    return seen(LARGE._replace(model=f"model {place}", shape=(place, 1)), *errors)


def test_the_intervals_of_a_table_are_written_again(tmp_path: Path) -> None:
    found = [
        one
        for place in range(3)
        for one in seen(
            LARGE._replace(model=f"model {place}", shape=(place, 1)), *(0.02 * (number + place) for number in range(5))
        )
    ]
    table, page = tmp_path / "table.json", tmp_path / "page.md"
    table.write_text(table_text(found))
    written = table.read_text()
    page.write_text("# Title\n\nFirst.\n\n## kernels\n\nLast.\n")
    for _ in range(2):
        score_again(table, page)
        assert table.read_text() == written
    before, _, rest = page.read_text().partition("## Intervals\n")
    assert (before, rest.partition("## ")[2]) == ("# Title\n\nFirst.\n\n", "kernels\n\nLast.\n")
    assert "| kernels, here | its model and GPU | 15 |" in rest


def test_points_that_are_predicted_anew_replace_those_of_a_table(tmp_path: Path) -> None:
    of_points = [each._replace(source=POINTS) for each in seen(LARGE, 0.3, 0.4)]
    fitted = [each._replace(predictor="fitted") for each in of_points]
    table, anew = tmp_path / "table.json", tmp_path / "points.csv"
    fitted += [each._replace(predictor="fitted") for each in seen(SMALL, 0.2)]
    table.write_text(table_text([*seen(LARGE, 0.1), *seen(SMALL, 0.2), *of_points, *fitted]))
    times = dict.fromkeys(("ttft", "itl", "e2e", "duration"), 2.0)
    row = {
        **dict.fromkeys(COLUMNS, "0"),
        "predictor": "kernels",
        "kind": KIND_SEPARATOR.join(LARGE.kind),
        "model": LARGE.model,
        "layers": LARGE.shape[0],
        "width": LARGE.shape[1],
        **{f"{name}{side}": time / (2 if side else 1) for name, time in times.items() for side in ("", "_sim")},
    }
    with anew.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow(row)
    score_again(table, None, anew)
    found = [each for each in seen_in(json.loads(table.read_text())) if each.source == POINTS]
    assert [(each.predictor, each.ratios["itl"]) for each in found] == [
        ("kernels", pytest.approx(log(2), abs=0.001)), ("fitted", 0.3), ("fitted", 0.4)
    ]  # fmt: skip


def test_most_recordings_lie_in_the_intervals_of_the_others() -> None:
    draws = Random(3)
    found = [
        one
        for place in range(5)
        for one in seen(
            LARGE._replace(model=f"model {place}", shape=(place, 1)), *(draws.gauss(0, 0.1) for _ in range(16))
        )
    ]
    for left_out in ("the recording", "its kind", "its model and GPU"):
        inside = [low <= exp(ratio) <= high for _, ratio, (low, high) in covered(found, "itl", left_out)]
        assert 0.85 <= sum(inside) / len(inside) <= 0.95
