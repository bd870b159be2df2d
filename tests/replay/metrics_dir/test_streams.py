"""Files of a folder of metrics while a run goes on: rows, and courses over time."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from replay.metrics_dir.recorder import Course, ReplicaUse, utilization
from replay.metrics_dir.tables import EventTrace, JsonItems, RowFile, write_csv
from traces import TraceError


def test_cells_read_back_as_they_were(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", ["a", "b"], [["plain", 0.1], ['with "quotes", and commas\n', None]])
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["plain", "0.1"], ['with "quotes", and commas\n', ""]]


@pytest.mark.parametrize("items", [[], [{"a": 1}], [{"a": 1}, {"b": [2.5, None]}]])
def test_an_array_of_any_length_is_valid_json(tmp_path: Path, items: list[object]) -> None:
    with RowFile(tmp_path / "t.json") as file:
        array = JsonItems(file)
        for each in items:
            array.add(each)
        array.end()
    assert json.loads((tmp_path / "t.json").read_text()) == items


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        RowFile(tmp_path / "nowhere" / "t.csv")


def test_arrivals_that_are_known_ahead_come_in_their_turn(tmp_path: Path) -> None:
    with RowFile(tmp_path / "t.json") as file:
        events = EventTrace(file)
        for number, at in enumerate((10, 20, 30, 40)):
            events.add_arrival(at, number)
        events.add_event(25, "batch_end", batch_id=0)
        events.end(until=35)
    written = json.loads((tmp_path / "t.json").read_text())
    assert [each.get("request_id", "batch") for each in written] == [0, 1, "batch", 2]
    assert [each["time"] for each in written] == [10e-6, 20e-6, 25e-6, 30e-6]


def test_the_mean_of_a_level_weighs_by_time_from_its_very_beginning() -> None:
    """Vidur drops the time before the second change, as it takes the instant 0 for none."""
    level = Course()
    level.set(40.0, 0)
    level.set(0.0, 500)
    level.set(100.0, 750)
    assert (level.mean(1000), level.largest) == (45.0, 100.0)


def test_a_value_that_is_replaced_at_once_is_the_largest_and_takes_no_time() -> None:
    level = Course()
    level.set(90.0, 500)
    level.set(10.0, 500)
    assert (level.mean(1000), level.largest) == (5.0, 90.0)


def test_an_interval_begins_after_the_one_before() -> None:
    level = Course()
    level.add_interval(50.0, 0, 400)
    level.add_interval(50.0, 200, 600)
    level.add_interval(50.0, 300, 500)
    assert level.mean(1000) == 30.0


@pytest.mark.parametrize("until", [3_000, 512_000, 3_584_123])
def test_the_course_of_a_level_has_its_mean_whatever_the_length_of_the_run(until: int) -> None:
    level, draws = Course(), np.random.default_rng(2)
    for at in np.sort(draws.integers(0, until, 400)).tolist():
        level.set(float(draws.uniform(0, 100)), at)
    times, values = level.time_series(until)
    assert len(times) == len(values)
    assert values.mean() == pytest.approx(level.mean(until))
    assert 0 <= values.min() <= values.max() <= 100


def test_replica_0_is_the_first_one_and_every_stage_has_figures() -> None:
    idle, used = ReplicaUse.of_stages(1), ReplicaUse.of_stages(2)
    used.stages[1].computes(100, 350, 60.0)
    used.memory.set(10.0, 500)
    found = utilization({1: used, 0: idle}, 1000)
    assert found["replica_0_stage_0_busy_time_percent_weighted_mean"] == 0.0
    assert found["replica_1_stage_1_busy_time_percent_weighted_mean"] == 25.0
    assert found["replica_1_stage_1_mfu_weighted_mean"] == 15.0
    assert (found["replica_1_memory_usage_max"], found["replica_1_memory_usage_weighted_mean"]) == (10.0, 5.0)
    assert len(found) == 3 * (3 + 5)


def test_memory_is_weighed_by_time_not_by_the_number_of_its_changes() -> None:
    """Vidur's mean is that of all values that memory had, the first 0 included, however long each lasted."""
    changes = ((0, 20.0), (10, 60.0), (20, 20.0))
    use = ReplicaUse.of_stages(1)
    for at, value in changes:
        use.memory.set(value, at)
    found = utilization({0: use}, 100)["replica_0_memory_usage_weighted_mean"]
    of_vidur = sum(value for _, value in changes) / (len(changes) + 1)
    assert (found, of_vidur) == (24.0, 25.0)


def test_the_figures_of_a_replica_are_not_those_of_the_next_one() -> None:
    """Vidur keeps the figures of each replica one place too early, those of the first one in the last place."""
    uses = {number: ReplicaUse.of_stages(1) for number in range(3)}
    uses[0].stages[0].computes(0, 100, 50.0)
    found = utilization(uses, 100)
    busy = [found[f"replica_{number}_stage_0_busy_time_percent_weighted_mean"] for number in range(3)]
    of_vidur = [*busy[1:], busy[0]]
    assert (busy, of_vidur) == ([100.0, 0.0, 0.0], [0.0, 0.0, 100.0])
