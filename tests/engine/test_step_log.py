"""The step log is where all token times come from."""

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_sim.engine.context import RecentSteps, StepLog
from blis_sim.engine.errors import EngineError

_durations = st.lists(st.integers(1, 10**9), min_size=1, max_size=30)


def logged(durations: list[int], start: int = 0) -> StepLog:
    """Steps that follow each other without a gap."""
    log = StepLog()
    for duration in durations:
        log.append(start, start + duration)
        start += duration
    return log


def test_instants_have_64_bits() -> None:
    log = StepLog()
    log.append(2**62, 2**63 - 1)
    assert log.end(0) == 2**63 - 1


def test_the_log_grows_after_its_arrays_were_taken() -> None:
    log = logged([10])
    before = log.durations(), log.ends()
    log.append(10, 30)
    assert [array.tolist() for array in before] == [[10], [10]]
    assert log.durations().tolist() == [10, 20]


def test_a_step_that_never_was_has_no_times() -> None:
    with pytest.raises(IndexError):
        StepLog().end(0)


@given(_durations, _durations, st.sampled_from(["many", "touching", "shifted"]))
def test_steps_recorded_together_are_those_recorded_one_by_one(durations: list[int], more: list[int], how: str) -> None:
    log, expected = logged(durations, start=5), logged(durations + more, start=5)
    start = 5 + sum(durations)
    ends = start + np.cumsum(more)
    if how == "touching":
        log.move_contiguous([start, *ends.tolist()])
    elif how == "shifted":
        log.extend_shifted(start, array("q", (ends - 7).tolist()), 7)
    else:
        log.extend(start, ends)
    assert log.ends().tolist() == expected.ends().tolist()
    assert log.durations().tolist() == expected.durations().tolist()


def test_steps_recorded_together_must_end_within_64_bits() -> None:
    with pytest.raises(EngineError, match=f"the step that starts at {2**63 - 2} us ends after the largest instant"):
        StepLog().extend(2**63 - 2, np.array([2**63 - 1, -(2**63)], np.int64))


@given(_durations, st.integers(1, 5), st.sampled_from([1, 2, 3, 100]))
def test_a_log_of_recent_steps_agrees_with_one_of_all_steps(durations: list[int], keep: int, at_once: int) -> None:
    everything, recent = logged(durations), RecentSteps(keep)
    ends = everything.ends()
    for first in range(0, len(durations), at_once):
        started_at = everything.start(first)
        some = ends[first : first + at_once]
        if at_once == 1:
            assert recent.append(started_at, int(some[0])) == first
        elif at_once == 2:
            recent.move_contiguous([started_at, *some.tolist()])
        elif at_once == 3:
            recent.extend_shifted(started_at, array("q", (some + first).tolist()), -first)
        else:
            recent.extend(started_at, some)
    assert len(recent) == len(everything)
    assert min(keep, len(durations)) <= len(recent.ends()) < 2 * keep + at_once
    first = len(durations) - min(keep, len(durations))
    for index in range(first, len(durations)):
        assert (recent.start(index), recent.end(index)) == (everything.start(index), everything.end(index))
    assert recent.run_time(first, 1) == durations[first]
    assert [each.tolist() for each in recent.span(first, 2)] == [each.tolist() for each in everything.span(first, 2)]
    runs = [[first, 1], [first + 1, 1]]
    assert recent.ends_in(runs).tolist() == everything.ends_in(runs).tolist() == recent.span(first, 2)[1].tolist()
    assert recent.ends_in([]).tolist() == []


@given(st.lists(st.tuples(st.sampled_from([0, 0, 30]), st.integers(1, 9), st.integers(-3, 3), st.booleans())))
def test_a_log_that_is_read_in_between_agrees_with_one_that_is_not(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    read, unread, at = StepLog(), StepLog(), 5
    expected: list[tuple[int, int]] = []
    for gap, duration, shift, reads in steps:
        at += gap
        expected.append((at, at + duration))
        for log in (read, unread):
            if shift < 0:
                log.append(at, at + duration)
            else:
                log.extend_shifted(at, array("q", [at + duration - shift]), shift)
        at += duration
        if reads:
            assert (read.start(len(read) - 1), read.end(len(read) - 1)) == expected[-1]
    for log in (read, unread):
        starts, ends = log.span(0, len(steps))
        assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == expected


def test_steps_that_are_forgotten_have_no_times() -> None:
    recent = RecentSteps(2)
    for step in range(10):
        recent.append(step, step + 1)
    with pytest.raises(IndexError, match="the times of step 0 are forgotten"):
        recent.start(0)
    with pytest.raises(IndexError):
        recent.end(10)
