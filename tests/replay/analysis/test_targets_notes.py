"""Notes on targets that hold for no request, and on requests without targets."""

from replay.analysis.breakdown import notes_on_targets
from tests.fakes import request
from tests.replay.labelled_runs import ran
from traces import SloTargets

TARGETS = SloTargets(ttft_ms=100)


def test_targets_of_a_class_without_requests_are_named() -> None:
    run = ran((0, request("a"), {"slo_class": "critical"}))
    assert list(notes_on_targets({"batch": TARGETS}, run.requests)) == [
        "warning: the targets of class batch hold for no request: all requests are of critical"
    ]


def test_requests_without_targets_beside_others_with_are_counted() -> None:
    run = ran((0, request("a"), {"slo_class": "critical"}), (0, request("b"), {}), (5, request("c"), {}))
    assert list(notes_on_targets({"critical": TARGETS}, run.requests)) == [
        "2 of 3 requests have no targets, those of default"
    ]


def test_targets_for_all_requests_and_no_targets_need_no_line() -> None:
    run = ran((0, request("a"), {}))
    assert list(notes_on_targets({"default": TARGETS}, run.requests)) == []
    assert list(notes_on_targets({}, run.requests)) == []
